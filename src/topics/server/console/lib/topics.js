// @ts-check
/** All topics with how fast they grow: the list, asked for again and again, and what changed between two answers. */
import { all } from "./api.js";

export const KEPT = 30;

/** @typedef {{topic: string, type: string, durability: string, head_seq: number, earliest_seq: number, count: number, bytes: number,
 *   last_write_ts: number | null, earliest_ts: number | null, effective_priority: number, rate: number | null, spark: number[]}} Entry */

/** Remembers the heads of the last answers. */
export class Topics {
  constructor() {
    /** @type {Map<string, {head: number, at: number, spark: number[]}>} */
    this.seen = new Map();
  }

  /** @param {AbortSignal} signal @param {boolean} system @returns {Promise<Entry[]>} */
  async ask(signal, system) {
    const found = await all(`/v0/topics?system=${system}`, "topics", { signal });
    const at = performance.now();
    const seen = new Map();
    for (const one of found) {
      const before = this.seen.get(one.topic);
      const grown = before && one.head_seq >= before.head ? one.head_seq - before.head : 0;
      const spark = before?.spark ?? [];
      one.rate = before ? (grown * 1000) / Math.max(at - before.at, 1) : null;
      if (before) spark.push(one.rate);
      if (spark.length > KEPT) spark.shift();
      one.spark = spark;
      seen.set(one.topic, { head: one.head_seq, at, spark });
    }
    this.seen = seen;
    return found;
  }
}

/** The names that are known, for the palette and for fields that ask for one.
 * @type {{names: string[]}} */
export const known = { names: [] };
