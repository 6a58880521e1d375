// @ts-check
/** Numbers, sizes, times as people read them. Pure, but for how far the server's clock is from ours. */

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

/** @param {number | null | undefined} value */
export function count(value) {
  return value === null || value === undefined ? "–" : WHOLE.format(value);
}

/** A count in few characters: 12.3k.
 * @param {number | null | undefined} value */
export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e9) return `${trim(value / 1e9)}G`;
  if (size >= 1e6) return `${trim(value / 1e6)}M`;
  if (size >= 1e4) return `${trim(value / 1e3)}k`;
  return WHOLE.format(value);
}

/** @param {number} value */
function trim(value) {
  return Math.abs(value) >= 100 ? value.toFixed(0) : value.toFixed(1);
}

/** A rate per second.
 * @param {number | null | undefined} value */
export function rate(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value > 0 && value < 10) return value.toFixed(1);
  return short(Math.round(value));
}

/** @param {number | null | undefined} value */
export function bytes(value) {
  if (value === null || value === undefined) return "–";
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${unit && value < 100 ? value.toFixed(1) : Math.round(value)} ${UNITS[unit]}`;
}

/** A latency.
 * @param {number | null | undefined} ms */
export function latency(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  if (ms < 1) return `${Math.round(ms * 1000)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

/** How long, in the two largest units.
 * @param {number | null | undefined} ms */
export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${Math.max(Math.round(ms), 0)} ms`;
  const seconds = Math.floor(ms / 1000);
  /** @type {[number, string][]} */
  const parts = [
    [Math.floor(seconds / 86400), "d"],
    [Math.floor(seconds / 3600) % 24, "h"],
    [Math.floor(seconds / 60) % 60, "min"],
    [seconds % 60, "s"],
  ];
  const from = parts.findIndex(([value]) => value > 0);
  return parts
    .slice(from, from + 2)
    .filter(([value]) => value > 0)
    .map(([value, unit]) => `${value} ${unit}`)
    .join(" ");
}

const SKEW_LEAST_MS = 2000;
let skewMs = 0;

/** What time an answer says it is, to the second.
 * @param {string | null} date */
export function noteTime(date) {
  const told = date ? Date.parse(date) : NaN;
  if (Number.isNaN(told)) return;
  const skew = told + 500 - Date.now();
  skewMs = Math.abs(skew) > SKEW_LEAST_MS ? skew : 0;
}

/** Now, by the server's clock, which is the one that its times are of. */
export const serverNow = () => Date.now() + skewMs;

/** How long ago.
 * @param {number | null | undefined} ts @param {number} now */
export function ago(ts, now = serverNow()) {
  if (ts === null || ts === undefined) return "never";
  return now - ts < 1000 ? "now" : `${duration(now - ts)} ago`;
}

/** @param {number} value @param {number} size */
const padded = (value, size = 2) => String(value).padStart(size, "0");

/** @param {number} ts */
export function clock(ts) {
  const at = new Date(ts);
  const time = `${padded(at.getHours())}:${padded(at.getMinutes())}:${padded(at.getSeconds())}`;
  return `${time}.${padded(at.getMilliseconds(), 3)}`;
}

/** @param {number | null | undefined} ts */
export function date(ts) {
  if (ts === null || ts === undefined) return "–";
  const at = new Date(ts);
  return `${at.getFullYear()}-${padded(at.getMonth() + 1)}-${padded(at.getDate())} ${clock(ts).slice(0, 8)}`;
}

const DURATIONS = /** @type {Record<string, number>} */ ({ ms: 1, s: 1e3, m: 6e4, min: 6e4, h: 3.6e6, d: 8.64e7 });
const SIZES = /** @type {Record<string, number>} */ ({ k: 1e3, M: 1e6, G: 1e9, Ki: 1024, Mi: 1024 ** 2, Gi: 1024 ** 3 });

/** A number a person typed, with or without a unit; null if it is none.
 * @param {string} text @param {"ms" | "bytes" | "count"} kind */
export function amount(text, kind) {
  const found = /^([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)$/.exec(text.trim());
  if (!found) return null;
  const unit = found[2] ?? "";
  const table = kind === "ms" ? DURATIONS : SIZES;
  const factor = unit === "" ? 1 : (table[unit] ?? table[unit.replace(/B$/, "")]);
  if (factor === undefined) return null;
  const value = Number(found[1]) * factor;
  return Number.isSafeInteger(Math.round(value)) ? Math.round(value) : null;
}
