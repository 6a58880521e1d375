// @ts-check
/** The server's metrics over the last minutes, asked for once for all pages. */
import { get } from "./api.js";
import { polling } from "./poll.js";
import { History, between, merged, perSecond, percentile } from "./series.js";
import { Store } from "./store.js";

export const EVERY_MS = 2000;
const KEPT = 150;

/** @typedef {{now: any, error: import("./poll.js").Failure | null, history: History, recent: any}} Metrics */

/** `recent`: histograms of what happened within the last half minute. */
export const metrics = new Store(
  /** @type {Metrics} */ ({ now: null, error: null, history: new History(KEPT), recent: null }),
);

/** @type {any[]} */
let snapshots = [];
/** @type {AbortController | null} */
let running = null;

/** Begin to ask, or begin anew: with another key, another server may be seen. */
export function start() {
  running?.abort();
  running = new AbortController();
  snapshots = [];
  metrics.set({ now: null, error: null, history: new History(KEPT), recent: null });
  void polling((signal) => get("/v0/metrics", { signal }), EVERY_MS, tell, running.signal);
}

export function stop() {
  running?.abort();
  running = null;
}

/** @param {any} now @param {import("./poll.js").Failure | null} error */
function tell(now, error) {
  const held = metrics.value;
  if (error) {
    metrics.set({ ...held, error });
    return;
  }
  const before = snapshots[snapshots.length - 1];
  if (before && now.uptime_ms < before.uptime_ms) snapshots = [];
  snapshots.push(now);
  if (snapshots.length > 15) snapshots.shift();
  const last = snapshots[snapshots.length - 2];
  if (last) held.history.push(Date.now() / 1000, sample(now, last));
  const first = snapshots[0];
  metrics.set({ now, error: null, history: held.history, recent: recentOf(now, first === now ? undefined : first) });
}

/** @param {any} now @param {any} before @returns {Record<string, number | null>} */
function sample(now, before) {
  const ms = now.uptime_ms - before.uptime_ms;
  /** @param {string} name */
  const rate = (name) => perSecond(now.traffic[name], before.traffic[name], ms);
  const acks = merged(
    Object.keys(now.ack_latency_ms).map((name) => between(now.ack_latency_ms[name], before.ack_latency_ms[name])),
  );
  return {
    written: rate("records_written"),
    read: rate("records_read"),
    delivered: rate("records_delivered"),
    jobs: rate("jobs_delivered"),
    syncs: perSecond(now.wal.fsyncs, before.wal.fsyncs, ms),
    p50: percentile(acks, 0.5),
    p99: percentile(acks, 0.99),
    pressure: now.pressure,
  };
}

/** @param {any} now @param {any} first */
function recentOf(now, first) {
  const acks = /** @type {Record<string, import("./series.js").Histogram>} */ ({});
  for (const name of Object.keys(now.ack_latency_ms)) {
    acks[name] = between(now.ack_latency_ms[name], first?.ack_latency_ms[name]);
  }
  return { acks, syncs: between(now.fsync_latency_us, first?.fsync_latency_us) };
}
