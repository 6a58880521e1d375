// @ts-check
/**
 * Asking again and again, gently: one request at a time, none while nobody looks, slower while nobody answers, and slower
 * while the answer stays the same. Then whatever the visitor does, or a record that arrives, makes it ask at once [U-33].
 */
import { passing } from "./api.js";
import { useEffect, useRef, useState } from "./dom.js";
import { pause, visible } from "./visible.js";

const AGAIN_MS = 2000;

/** How many times slower at most, while nothing changes. */
const SLOWEST = 5;
/** Equal answers after which it becomes slower. */
const STILL = 3;
/** What changes by itself: times, what decays with them, and what the server does in its own house. */
const BY_ITSELF = new Set(["performance", "now_ms", "uptime_ms", "effective_priority", "wal", "fsync_latency_us"]);

/** @typedef {{code?: string, message: string, status?: number}} Failure */
/** @template T @typedef {{value: T | null, error: Failure | null, again: () => void}} Polled */

/** @type {Set<() => void>} */
const resting = new Set();

/** Something happened: who asks slowly asks now. */
export function stir() {
  for (const wake of resting) wake();
}
for (const kind of ["pointermove", "pointerdown", "keydown", "wheel", "focus"]) addEventListener(kind, stir, { passive: true, capture: true });

/** Wait for the longer time, or, when something happens, for the shorter one; whether it did.
 * @param {number} leastMs @param {number} mostMs @param {AbortSignal} signal @returns {Promise<boolean>} */
async function rest(leastMs, mostMs, signal) {
  const woken = new AbortController();
  const wake = () => woken.abort();
  resting.add(wake);
  signal.addEventListener("abort", wake);
  try {
    await pause(leastMs, signal);
    if (mostMs > leastMs && !woken.signal.aborted) await pause(mostMs - leastMs, woken.signal);
  } catch {
    // Called off, or woken: it is over in both cases.
  } finally {
    resting.delete(wake);
    signal.removeEventListener("abort", wake);
  }
  return woken.signal.aborted;
}

/** An answer, however often it takes; null when it is not wanted any more. What is refused for good is thrown.
 * @template T @param {() => Promise<T>} ask @param {(error: Failure | null) => void} tell @param {() => boolean} wanted
 * @returns {Promise<T | null>} */
export async function insist(ask, tell, wanted) {
  for (;;) {
    try {
      const value = await ask();
      if (!wanted()) return null;
      tell(null);
      return value;
    } catch (error) {
      if (!wanted()) return null;
      if (!passing(error)) throw error;
      tell(/** @type {Failure} */ (error));
      do await pause(AGAIN_MS);
      while (wanted() && !visible.value);
    }
  }
}

/** An answer without what changes by itself.
 * @param {unknown} value @returns {string} */
export function gist(value) {
  return JSON.stringify(value, (key, one) => (BY_ITSELF.has(key) ? undefined : one)) ?? "";
}

/** Ask now and then as long as `signal` is not aborted.
 * @template T @param {(signal: AbortSignal) => Promise<T>} ask @param {number} everyMs
 * @param {(value: T | null, error: Failure | null) => void} tell @param {AbortSignal} signal
 * @param {(value: T) => string} [about] what tells two answers apart */
export async function polling(ask, everyMs, tell, signal, about = gist) {
  let failed = 0;
  let still = 0;
  let last = "";
  while (!signal.aborted) {
    if (visible.value) {
      const began = performance.now();
      let took = 0;
      try {
        const value = await ask(signal);
        took = performance.now() - began;
        failed = 0;
        const now = about(value);
        still = now === last ? still + 1 : 0;
        last = now;
        if (!signal.aborted) tell(value, null);
      } catch (error) {
        if (signal.aborted) return;
        failed += 1;
        still = 0;
        tell(null, /** @type {Failure} */ (error));
      }
      // What takes long is asked for less often.
      const least = Math.max(everyMs, took * 10) * Math.min(failed + 1, 5);
      const most = least * Math.min(Math.max(still - STILL + 1, 1), SLOWEST);
      if (await rest(least, most, signal)) still = 0;
    } else {
      await shown(signal);
    }
  }
}

/** @param {AbortSignal} signal @returns {Promise<void>} */
function shown(signal) {
  return new Promise((resolve) => {
    const over = () => {
      leave();
      signal.removeEventListener("abort", over);
      resolve();
    };
    const leave = visible.subscribe((is) => is && over());
    signal.addEventListener("abort", over);
  });
}

/** The newest answer, as long as the view is there. The last one stays while an error is shown beside it.
 * @template T @param {(signal: AbortSignal) => Promise<T>} ask @param {number} everyMs @param {unknown[]} inputs
 * @param {(value: T) => string} [about] @returns {Polled<T>} */
export function usePoll(ask, everyMs, inputs, about) {
  const [state, set] = useState(/** @type {{value: T | null, error: Failure | null}} */ ({ value: null, error: null }));
  const [turn, next] = useState(0);
  const last = useRef(/** @type {string} */ (""));
  useEffect(() => {
    const calling = new AbortController();
    const asked = JSON.stringify(inputs);
    if (asked !== last.current) {
      last.current = asked;
      set({ value: null, error: null });
    }
    const tell = (/** @type {T | null} */ value, /** @type {Failure | null} */ error) =>
      set((old) => ({ value: error ? old.value : value, error }));
    void polling(ask, everyMs, tell, calling.signal, about);
    return () => calling.abort();
  }, [...inputs, turn]);
  return { ...state, again: () => next((n) => n + 1) };
}
