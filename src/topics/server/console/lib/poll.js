// @ts-check
/** Asking again and again, gently: one request at a time, none while nobody looks, slower while nobody answers. */
import { useEffect, useRef, useState } from "./dom.js";
import { pause, visible } from "./visible.js";

/** @typedef {{code?: string, message: string, status?: number}} Failure */
/** @template T @typedef {{value: T | null, error: Failure | null, again: () => void}} Polled */

/** Ask now and then as long as `signal` is not aborted.
 * @template T @param {(signal: AbortSignal) => Promise<T>} ask @param {number} everyMs
 * @param {(value: T | null, error: Failure | null) => void} tell @param {AbortSignal} signal */
export async function polling(ask, everyMs, tell, signal) {
  let failed = 0;
  while (!signal.aborted) {
    if (visible.value) {
      const began = performance.now();
      let took = 0;
      try {
        const value = await ask(signal);
        took = performance.now() - began;
        failed = 0;
        if (!signal.aborted) tell(value, null);
      } catch (error) {
        if (signal.aborted) return;
        failed += 1;
        tell(null, /** @type {Failure} */ (error));
      }
      // What takes long is asked for less often.
      const wait = Math.max(everyMs, took * 10) * Math.min(failed + 1, 5);
      await pause(wait, signal).catch(() => undefined);
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
 * @returns {Polled<T>} */
export function usePoll(ask, everyMs, inputs) {
  const [state, set] = useState(/** @type {{value: T | null, error: Failure | null}} */ ({ value: null, error: null }));
  const [turn, next] = useState(0);
  const last = useRef(/** @type {string} */ (""));
  useEffect(() => {
    const calling = new AbortController();
    const about = JSON.stringify(inputs);
    if (about !== last.current) {
      last.current = about;
      set({ value: null, error: null });
    }
    const tell = (/** @type {T | null} */ value, /** @type {Failure | null} */ error) =>
      set((old) => ({ value: error ? old.value : value, error }));
    void polling(ask, everyMs, tell, calling.signal);
    return () => calling.abort();
  }, [...inputs, turn]);
  return { ...state, again: () => next((n) => n + 1) };
}
