// @ts-check
/** Rates and percentiles from counters and histograms of two snapshots. Pure. */

/** @typedef {{bounds: number[], counts: number[], sum: number}} Histogram */

/** What was counted between two snapshots; all of it if the server has started anew.
 * @param {Histogram} now @param {Histogram | undefined} before @returns {Histogram} */
export function between(now, before) {
  if (!before || before.counts.some((count, at) => count > (now.counts[at] ?? 0))) return now;
  return {
    bounds: now.bounds,
    counts: now.counts.map((count, at) => count - (before.counts[at] ?? 0)),
    sum: now.sum - before.sum,
  };
}

/** @param {Histogram} histogram */
export function total(histogram) {
  return histogram.counts.reduce((sum, count) => sum + count, 0);
}

/** A percentile, from 0 to 1, by the straight line within its bucket; null of nothing.
 * @param {Histogram} histogram @param {number} share @returns {number | null} */
export function percentile(histogram, share) {
  const all = total(histogram);
  if (!all) return null;
  const wanted = all * share;
  let below = 0;
  for (let at = 0; at < histogram.counts.length; at++) {
    const count = histogram.counts[at] ?? 0;
    if (count && below + count >= wanted) {
      const low = at ? (histogram.bounds[at - 1] ?? 0) : 0;
      const high = histogram.bounds[at] ?? low;
      return low + (high - low) * ((wanted - below) / count);
    }
    below += count;
  }
  return histogram.bounds[histogram.bounds.length - 1] ?? null;
}

/** Several histograms of the same bounds as one.
 * @param {Histogram[]} all @returns {Histogram} */
export function merged(all) {
  const first = all[0] ?? { bounds: [], counts: [], sum: 0 };
  return all.slice(1).reduce(
    (sum, one) => ({
      bounds: sum.bounds,
      counts: sum.counts.map((count, at) => count + (one.counts[at] ?? 0)),
      sum: sum.sum + one.sum,
    }),
    first,
  );
}

/** What grew per second between two values; null without a time between them, or when it was set back.
 * @param {number} now @param {number} before @param {number} ms */
export function perSecond(now, before, ms) {
  return ms > 0 && now >= before ? ((now - before) * 1000) / ms : null;
}

/** The last values of something, oldest first. */
export class History {
  /** @param {number} most */
  constructor(most) {
    this.most = most;
    /** @type {number[]} */
    this.times = [];
    /** @type {Record<string, (number | null)[]>} */
    this.values = {};
  }

  /** @param {number} time @param {Record<string, number | null>} values */
  push(time, values) {
    this.times.push(time);
    for (const name of Object.keys(values)) (this.values[name] ??= this.times.slice(1).map(() => null)).push(values[name] ?? null);
    if (this.times.length > this.most) {
      this.times.shift();
      for (const series of Object.values(this.values)) series.shift();
    }
  }

  /** @param {string} name @returns {(number | null)[]} */
  of(name) {
    return this.values[name] ?? [];
  }

  /** @param {string} name @returns {number | null} */
  last(name) {
    const series = this.of(name);
    return series[series.length - 1] ?? null;
  }
}
