// @ts-check
/**
 * A topic as one scrolls through it: pages behind a cursor up to the head, then live.
 *
 *     seek ──▶ paging ──caught up──▶ live ⇄ paused
 *                ▲──── too far behind ────┘
 *
 * The cursor only moves forward, whoever moves it, so that nothing is shown twice and nothing is left out in silence.
 */
import { get, post, topicPath } from "./api.js";
import { instanceOf, live } from "./live.js";
import { insist } from "./poll.js";
import { Rows, filter, gapRow, recordRow } from "./rows.js";

const BACK = 200;
const UNTOLD = "from_seq_too_old";
const PAGE = 200;
const PAGES = 8;
/** What is streamed after a pause at most; beyond, one pages. */
const MOST_BEHIND = 2000;

/** @typedef {"seeking" | "paging" | "live" | "paused" | "deleted" | "failed"} Mode */

export class Tail {
  /** @param {string} topic @param {() => void} changed @param {() => void} [left] called when it is not at the end any more */
  constructor(topic, changed, left = () => undefined) {
    this.topic = topic;
    this.changed = changed;
    this.left = left;
    this.rows = new Rows();
    this.shown = this.rows;
    /** @type {((row: import("./rows.js").Row) => boolean) | null} */
    this.test = null;
    /** @type {Mode} */
    this.mode = "seeking";
    /** @type {any} */
    this.error = null;
    this.instance = "";
    this.cursor = 0;
    this.head = 0;
    this.records = 0;
    this.seek = 0;
    this.loading = false;
    /** @type {(() => number) | null} */
    this.leave = null;
  }

  /** Begin at a seq, at a time, or near the head.
   * @param {{from?: number | null, ts?: number | null}} where */
  async start({ from, ts }) {
    this.stop();
    const seek = ++this.seek;
    this.rows = new Rows();
    this.shown = this.test ? new Rows() : this.rows;
    this.records = 0;
    this.mode = "seeking";
    this.error = null;
    this.loading = false;
    this.changed();
    try {
      const plan = await this.ask(() => get(topicPath(this.topic, "/segments?limit=1")));
      if (!plan) return;
      this.head = plan.head_seq;
      this.instance = instanceOf(plan);
      if (ts !== null && ts !== undefined) {
        const page = await this.ask(() => post(topicPath(this.topic, "/diff"), { from_ts: ts, limit: PAGE, include_tags: true }));
        if (page) this.take(page);
        return;
      }
      // Pages first: they tell of a gap with its real reason, which a stream that begins does not.
      this.mode = "paging";
      if (from === null || from === undefined) {
        this.cursor = Math.max(plan.head_seq - BACK, plan.earliest_seq - 1, 0);
        await this.approach(seek);
      } else {
        this.cursor = Math.min(Math.max(from - 1, 0), plan.head_seq);
        await this.more();
      }
    } catch (error) {
      if (seek === this.seek) this.fail(error);
    }
  }

  /** An answer, however long the server is away; null if it is not wanted any more.
   * @template T @param {() => Promise<T>} request @returns {Promise<T | null>} */
  ask(request) {
    const seek = this.seek;
    const tell = (/** @type {any} */ error) => {
      if (error === this.error) return;
      this.error = error;
      this.changed();
    };
    return insist(request, tell, () => seek === this.seek);
  }

  /** @param {any} error */
  fail(error) {
    this.error = error;
    this.mode = error.status === 404 ? "deleted" : "failed";
    this.changed();
  }

  follow() {
    this.mode = "live";
    this.leave = live.follow(this.topic, this.cursor, (event) => this.hear(event), MOST_BEHIND, this.instance);
    this.changed();
  }

  stop() {
    if (this.leave) this.cursor = this.leave();
    this.leave = null;
  }

  pause() {
    this.stop();
    this.mode = "paused";
    this.changed();
  }

  resume() {
    this.follow();
  }

  /** @param {import("./live.js").LiveEvent} event */
  hear(event) {
    if (event.kind === "records") {
      this.head = Math.max(this.head, event.headSeq);
      for (const record of event.records) this.add(recordRow(record));
    } else if (event.kind === "gap") {
      const row = gapRow(event.from, event.to, event.reason);
      this.add(row);
      if (event.reason === UNTOLD) void this.explain(row);
    } else if (event.kind === "caught-up") {
      this.head = event.headSeq;
    } else if (event.kind === "behind") {
      this.head = event.headSeq;
      this.stop();
      this.mode = "paging";
      this.left();
      void this.more();
    } else if (event.kind === "deleted") {
      this.mode = "deleted";
    } else {
      this.fail(event.error);
    }
    this.changed();
  }

  /** Some pages up to the head; what is left then comes as a stream.
   * @param {number} seek */
  async approach(seek) {
    for (let page = 0; page < PAGES; page++) {
      await this.more();
      if (seek !== this.seek || this.mode !== "paging") return;
    }
    this.follow();
  }

  /** Why there is a gap that a stream met when it began [FRM-2].
   * @param {import("./rows.js").GapRow} row */
  async explain(row) {
    try {
      const { tombstone } = await post(topicPath(this.topic, "/diff"), { from_seq: row.from - 1, limit: 1 });
      if (tombstone) row.reason = tombstone.reason;
      this.changed();
    } catch {
      // It stays as it was told.
    }
  }

  /** The next page, unless one is on its way. */
  async more() {
    if (this.mode !== "paging" || this.loading) return;
    this.loading = true;
    const seek = this.seek;
    try {
      const page = await this.ask(() => post(topicPath(this.topic, "/diff"), { from_seq: this.cursor, limit: PAGE, include_tags: true }));
      if (page) this.take(page);
    } catch (error) {
      if (seek === this.seek) this.fail(error);
    } finally {
      if (seek === this.seek) this.loading = false;
    }
  }

  /** @param {any} page */
  take(page) {
    const gap = page.tombstone;
    if (gap) this.add(gapRow(gap.gap_from, gap.gap_to, gap.reason));
    for (const record of page.records) this.add(recordRow(record));
    this.cursor = page.next_from_seq;
    this.head = page.head_seq;
    if (page.caught_up) this.follow();
    else this.mode = "paging";
    this.changed();
  }

  /** @param {import("./rows.js").Row} row */
  add(row) {
    if (row.kind === "record") this.records += 1;
    this.rows.push(row);
    if (this.test && this.test(row)) this.shown.push(row);
  }

  /** @param {string} tag @param {string} node */
  filter(tag, node) {
    this.test = filter(tag, node);
    this.shown = this.test ? this.rows.matching(this.test) : this.rows;
    this.changed();
  }
}
