// @ts-check
/**
 * Everything live comes over one connection: a watch over all topics that are followed (03 §2 to §5).
 *
 * Each topic has a cursor here, moved by every frame. Whatever ends the stream (the network, a restart, another topic to
 * follow, nobody looking), it goes on behind the cursors: first with the same session, and if the server has forgotten that,
 * with a new one. A record at or below the cursor is dropped, so that nothing is shown twice.
 */
import { ApiError, ROOT, authorization, get, post, refusal, topicPath } from "./api.js";
import { parse } from "./json.js";
import { stir } from "./poll.js";
import { Parser } from "./sse.js";
import { Store } from "./store.js";
import { pause, visible } from "./visible.js";

const HEARTBEAT_MS = 10_000;
/** So often it is looked whether anything was heard; at the third time that nothing was it is silence [FRM-13]. */
const LOOK_MS = HEARTBEAT_MS + 1500;
const BACKOFF_MIN_MS = 300;
const BACKOFF_MAX_MS = 5000;

/** @typedef {{$seq: number, $ts: number, $tag?: string, $node?: string, data: any, meta?: any}} LiveRecord */
/** @typedef {{kind: "records", records: LiveRecord[], headSeq: number}
 *   | {kind: "gap", from: number, to: number, reason: string, headSeq: number}
 *   | {kind: "caught-up", headSeq: number}
 *   | {kind: "behind", headSeq: number}
 *   | {kind: "deleted"}
 *   | {kind: "refused", error: ApiError}} LiveEvent */
/** @typedef {{cursor: number, tell: (event: LiveEvent) => void, mostBehind: number, instance: string}} Follower */

/** Which of the topics that ever had a name a plan is about [EPO-1].
 * @param {any} plan */
export const instanceOf = (plan) => `${plan.id}.${plan.epoch}`;

/** How the connection is doing: idle while nothing is followed or nobody looks. */
export const connection = new Store(/** @type {"idle" | "connecting" | "live" | "lost" | "refused"} */ ("idle"));

class Live {
  constructor() {
    /** @type {Map<string, Follower>} */
    this.followers = new Map();
    /** @type {AbortController | null} */
    this.running = null;
    this.session = { wid: "", last: "" };
    visible.subscribe(() => this.begin());
  }

  /** Follow a topic behind a cursor, until the returned function is called. More than `mostBehind` records are not
   * streamed: that is told, and the topic is not followed any more.
   * @param {string} topic @param {number} cursor @param {(event: LiveEvent) => void} tell @param {number} [mostBehind]
   * @param {string} [instance] which topic of that name the cursor is of
   * @returns {() => number} which says how far it came */
  follow(topic, cursor, tell, mostBehind = Infinity, instance = "") {
    const follower = { cursor, tell, mostBehind, instance };
    this.followers.set(topic, follower);
    this.begin();
    return () => {
      if (this.followers.get(topic) === follower) {
        this.followers.delete(topic);
        this.begin();
      }
      return follower.cursor;
    };
  }

  /** What is followed has changed: another session. */
  begin() {
    this.session = { wid: "", last: "" };
    this.restart();
  }

  restart() {
    this.running?.abort();
    this.running = null;
    if (!this.followers.size || !visible.value) {
      connection.set("idle");
      return;
    }
    this.running = new AbortController();
    void this.run(this.running.signal);
  }

  /** @param {AbortSignal} signal */
  async run(signal) {
    let backoff = BACKOFF_MIN_MS;
    while (!signal.aborted && this.followers.size) {
      connection.set("connecting");
      try {
        if (!this.session.wid && !(await this.open(signal))) continue;
        await this.read(signal, () => (backoff = BACKOFF_MIN_MS));
        if (signal.aborted) return;
      } catch (error) {
        if (signal.aborted) return;
        if (error instanceof ApiError && error.status === 404 && this.session.wid) {
          this.session = { wid: "", last: "" };
          continue;
        }
        if (error instanceof ApiError && error.status < 500 && error.status !== 429) {
          this.refused(error);
          return;
        }
      }
      connection.set("lost");
      try {
        await pause(backoff * (0.75 + Math.random() / 2), signal);
      } catch {
        return;
      }
      backoff = Math.min(backoff * 2, BACKOFF_MAX_MS);
    }
  }

  /** @param {ApiError} error */
  refused(error) {
    connection.set("refused");
    const told = [...this.followers.values()];
    this.followers.clear();
    for (const one of told) one.tell({ kind: "refused", error });
  }

  /** Make a session; whether there is anything left to stream.
   * @param {AbortSignal} signal @returns {Promise<boolean>} */
  async open(signal) {
    for (const [name, one] of this.followers) await this.identify(name, one, signal);
    const asked = Object.fromEntries([...this.followers].map(([name, one]) => [name, { from_seq: one.cursor }]));
    const body = { topics: asked, include_tags: true, heartbeat_ms: HEARTBEAT_MS };
    const told = await post("/v0/watch?lenient=true", body, { signal });
    let changed = false;
    for (const [name, one] of this.followers) {
      const found = told.topics[name];
      if (found && found.head_seq - one.cursor <= one.mostBehind) continue;
      this.followers.delete(name);
      changed = true;
      one.tell(found ? { kind: "behind", headSeq: found.head_seq } : { kind: "deleted" });
    }
    if (changed) {
      if (!this.followers.size) connection.set("idle");
      return false;
    }
    this.session = { wid: told.wid, last: "" };
    return true;
  }

  /** A new session cannot know that the cursor is of a topic that was deleted and made anew [EPO-4].
   * @param {string} name @param {Follower} one @param {AbortSignal} signal */
  async identify(name, one, signal) {
    if (!one.instance || !one.cursor) return;
    let plan;
    try {
      plan = await get(topicPath(name, "/segments?limit=1"), { signal });
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return;
      throw error;
    }
    if (instanceOf(plan) === one.instance) return;
    one.instance = instanceOf(plan);
    one.cursor = plan.earliest_seq - 1;
    one.tell({ kind: "gap", from: 1, to: plan.head_seq, reason: "recreated", headSeq: plan.head_seq });
  }

  /** Read the stream until it ends.
   * @param {AbortSignal} signal @param {() => void} began */
  async read(signal, began) {
    const own = new AbortController();
    const off = () => own.abort();
    signal.addEventListener("abort", off);
    // Counted, not timed: a clock that is set meanwhile changes nothing.
    let quiet = 0;
    const watchdog = setInterval(() => (quiet += 1) > 2 && own.abort(), LOOK_MS);
    try {
      /** @type {Record<string, string>} */
      const headers = { Accept: "text/event-stream", ...authorization() };
      if (this.session.last) headers["Last-Event-ID"] = this.session.last;
      const answer = await fetch(`${ROOT}v0/watch/${this.session.wid}`, { headers, signal: own.signal, cache: "no-store" });
      if (!answer.ok || !answer.body) throw await refusal(answer);
      const reader = answer.body.getReader();
      const parser = new Parser();
      connection.set("live");
      for (;;) {
        const { done, value } = await reader.read();
        if (done || signal.aborted) return;
        quiet = 0;
        began();
        for (const frame of parser.feed(value)) {
          if (signal.aborted) return;
          this.session.last = frame.id || this.session.last;
          this.take(frame.event, parse(frame.data));
        }
      }
    } finally {
      clearInterval(watchdog);
      signal.removeEventListener("abort", off);
      own.abort();
    }
  }

  /** @param {string} event @param {any} data */
  take(event, data) {
    stir();
    const one = this.followers.get(data.topic);
    if (event === "error") {
      if (data.code === 410) this.session = { wid: "", last: "" };
      return;
    }
    if (!one) return;
    if (event === "record") {
      const records = data.records.filter((/** @type {LiveRecord} */ record) => record.$seq > one.cursor);
      one.cursor = Math.max(one.cursor, data.to_seq);
      if (records.length) one.tell({ kind: "records", records, headSeq: data.head_seq });
    } else if (event === "tombstone") {
      this.passGap(one, data);
    } else if (event === "caught-up") {
      one.tell({ kind: "caught-up", headSeq: data.head_seq });
    } else if (event === "topic-deleted") {
      this.followers.delete(data.topic);
      one.tell({ kind: "deleted" });
    }
  }

  /** A gap is behind the cursor only if the topic is another one of the same name: then it is read from its start.
   * @param {Follower} one @param {any} data */
  passGap(one, data) {
    const recreated = data.reason === "recreated" || data.gap_from <= one.cursor;
    one.cursor = recreated ? data.earliest_seq - 1 : data.gap_to;
    const reason = recreated ? "recreated" : data.reason;
    one.tell({ kind: "gap", from: data.gap_from, to: data.gap_to, reason, headSeq: data.head_seq });
  }
}

export const live = new Live();
