// @ts-check
/** Where one is: `#/topics/orders?from=120`. Everything that can be shown has such an address. */
import { Store } from "./store.js";

/** @typedef {{page: string, name: string, query: URLSearchParams, text: string}} Place */

/** @param {string} hash @returns {Place} */
export function parsed(hash) {
  const text = hash.replace(/^#?\/?/, "");
  const at = text.indexOf("?");
  const path = at < 0 ? text : text.slice(0, at);
  const [page = "", ...rest] = path.split("/");
  return { page: page || "overview", name: decoded(rest.join("/")), query: new URLSearchParams(at < 0 ? "" : text.slice(at + 1)), text };
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

export const place = new Store(parsed(location.hash));
addEventListener("hashchange", () => place.set(parsed(location.hash)));

/** @param {string} page @param {string} [name] @param {Record<string, string | number | null | undefined>} [query] */
export function address(page, name, query = {}) {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const search = new URLSearchParams(given.map(([key, value]) => [key, String(value)])).toString();
  return `#/${page}${name ? `/${encodeURIComponent(name)}` : ""}${search ? `?${search}` : ""}`;
}

/** @param {string} to */
export function go(to) {
  location.hash = to;
}

/** Another address for the same view: the way back leads past it.
 * @param {string} to */
export function replace(to) {
  if (location.hash === to) return;
  history.replaceState(null, "", to);
  place.set(parsed(to));
}
