// @ts-check
/** A value that views follow. */
import { useEffect, useState } from "./dom.js";

/** @template T */
export class Store {
  /** @param {T} value */
  constructor(value) {
    this.value = value;
    /** @type {Set<(value: T) => void>} */
    this.listeners = new Set();
  }

  /** @param {T} value */
  set(value) {
    this.value = value;
    for (const listener of this.listeners) listener(value);
  }

  /** @param {(value: T) => void} listener @returns {() => void} */
  subscribe(listener) {
    this.listeners.add(listener);
    return () => void this.listeners.delete(listener);
  }
}

/** The value now, and a new rendering with every other one.
 * @template T @param {Store<T>} store @returns {T} */
export function useStore(store) {
  const [, set] = useState(/** @type {{value: T}} */ ({ value: store.value }));
  useEffect(() => store.subscribe((value) => set({ value })), [store]);
  return store.value;
}
