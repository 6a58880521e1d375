// @ts-check
/** The newest rows of a tail: bounded in number and in what each of them holds, so that memory stays flat. */
import { preview } from "./json.js";

export const MOST = 5000;
const TEXT_MOST = 300;

/** @typedef {{id: number, kind: "record", seq: number, ts: number, tag: string, node: string, text: string}} RecordRow */
/** @typedef {{id: number, kind: "gap", from: number, to: number, reason: string}} GapRow */
/** @typedef {RecordRow | GapRow} Row */

let ids = 0;

/** @param {import("./live.js").LiveRecord} record @returns {RecordRow} */
export function recordRow(record) {
  return {
    id: ++ids,
    kind: "record",
    seq: record.$seq,
    ts: record.$ts,
    tag: record.$tag ?? "",
    node: record.$node ?? "",
    text: preview(record.data, TEXT_MOST),
  };
}

/** @param {number} from @param {number} to @param {string} reason @returns {GapRow} */
export function gapRow(from, to, reason) {
  return { id: ++ids, kind: "gap", from, to, reason };
}

/** Rows in a ring: adding drops the oldest, and what is left keeps its place. */
export class Rows {
  constructor(most = MOST) {
    this.most = most;
    /** @type {Row[]} */
    this.ring = [];
    this.first = 0;
    this.dropped = 0;
  }

  get length() {
    return this.ring.length;
  }

  /** @param {number} at @returns {Row | undefined} */
  at(at) {
    return this.ring[(this.first + at) % this.ring.length];
  }

  /** @param {Row} row */
  push(row) {
    if (this.ring.length < this.most) {
      this.ring.push(row);
      return;
    }
    this.ring[this.first] = row;
    this.first = (this.first + 1) % this.most;
    this.dropped += 1;
  }

  /** @param {(row: Row) => boolean} test @returns {Rows} */
  matching(test) {
    const found = new Rows(this.most);
    for (let at = 0; at < this.length; at++) {
      const row = this.at(at);
      if (row && test(row)) found.push(row);
    }
    return found;
  }
}

/** Whether a record passes; gaps always do. A `*` at the end stands for anything.
 * @param {string} tag @param {string} node @returns {((row: Row) => boolean) | null} */
export function filter(tag, node) {
  if (!tag && !node) return null;
  /** @param {string} wanted @param {string} value */
  const fits = (wanted, value) => !wanted || (wanted.endsWith("*") ? value.startsWith(wanted.slice(0, -1)) : value === wanted);
  return (row) => row.kind === "gap" || (fits(tag, row.tag) && fits(node, row.node));
}
