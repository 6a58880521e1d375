// @ts-check
/** The view: Preact and htm behind one import. Values put into a template are text; nothing here makes HTML of them. */
import { Component, h, render } from "../vendor/preact.js";
import { useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState } from "../vendor/hooks.js";
import htm from "../vendor/htm.js";

export const html = htm.bind(h);
export { Component, h, render, useCallback, useEffect, useLayoutEffect, useMemo, useReducer, useRef, useState };

/** Render again when asked to.
 * @returns {() => void} */
export function useRedraw() {
  const [, redraw] = useReducer((/** @type {number} */ n) => n + 1, 0);
  return /** @type {any} */ (redraw);
}

/** @param {...(string | false | null | undefined)} names */
export function classes(...names) {
  return names.filter(Boolean).join(" ");
}
