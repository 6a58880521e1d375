// @ts-check
/** Whether somebody looks: nothing is asked for while nobody does. */
import { Store } from "./store.js";

export const visible = new Store(!document.hidden);
document.addEventListener("visibilitychange", () => visible.set(!document.hidden));

/** Resolves after a while, or as soon as the network is back; rejects when called off.
 * @param {number} ms @param {AbortSignal} [signal] @returns {Promise<void>} */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(new DOMException("called off", "AbortError"));
      return;
    }
    const over = () => {
      clearTimeout(timer);
      removeEventListener("online", over);
      signal?.removeEventListener("abort", off);
      resolve();
    };
    const off = () => {
      over();
      reject(new DOMException("called off", "AbortError"));
    };
    const timer = setTimeout(over, ms);
    addEventListener("online", over);
    signal?.addEventListener("abort", off);
  });
}
