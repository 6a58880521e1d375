// @ts-check
/** The public HTTP API with the visitor's key; nothing else is ever called [U-30]. */
import { noteTime } from "./format.js";
import { encode, parse, parseRows } from "./json.js";
import { Store } from "./store.js";

/** Where the API is: beside the console, also behind a proxy that gives both a prefix. */
export const ROOT = new URL("..", new URL(".", location.href)).pathname;
const KEPT = "topics.key";

/** An answer that is a refusal. */
export class ApiError extends Error {
  /** @param {number} status @param {string} code @param {string} message @param {any} detail */
  constructor(status, code, message, detail) {
    super(message);
    this.status = status;
    this.code = code;
    this.detail = detail;
  }
}

/** No answer. */
export class Unreachable extends Error {
  /** @param {boolean} changes whether the request would have changed something */
  constructor(changes) {
    super(changes ? "The server did not answer; whether it was done is not known." : "The server does not answer.");
    this.code = "unreachable";
    this.status = 0;
  }
}

/** Whether an error may be over at the next try.
 * @param {any} error */
export const passing = (error) => error?.code === "unreachable" || error?.status >= 500 || error?.status === 429;

const READS = /\/(diff|watch)(\?|$)/;

/** @typedef {"unknown" | "open" | "asked" | "wrong" | "given"} Access */

/** How the visitor stands with the server: no key needed, asked for one, or given. */
export const access = new Store(/** @type {Access} */ ("unknown"));

/** @returns {string} */
export function key() {
  return sessionStorage.getItem(KEPT) ?? "";
}

/** @param {string} value */
export function keepKey(value) {
  if (value) sessionStorage.setItem(KEPT, value);
  else sessionStorage.removeItem(KEPT);
}

/** @returns {Record<string, string>} */
export function authorization() {
  const value = key();
  return value ? { Authorization: `Bearer ${value}` } : {};
}

/** A refusal's body as an error.
 * @param {Response} answer */
export async function refusal(answer) {
  let told = null;
  try {
    told = (await answer.json()).error;
  } catch {
    told = null;
  }
  if (answer.status === 401) access.set(key() ? "wrong" : "asked");
  return new ApiError(
    answer.status,
    told?.code ?? String(answer.status),
    told?.message ?? `status ${answer.status}`,
    told?.detail,
  );
}

/** One request; an `ApiError` or `Unreachable` if it comes to nothing. `rows` names the member of the answer whose rows are to
 * be sent on.
 * @param {string} method @param {string} path @param {any} [body]
 * @param {{signal?: AbortSignal, headers?: Record<string, string>, rows?: string}} [options] @returns {Promise<any>} */
export async function call(method, path, body, options = {}) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json", ...authorization(), ...options.headers };
  /** @type {RequestInit} */
  const asked = { method, headers, signal: options.signal, cache: "no-store" };
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    asked.body = encode(body);
  }
  const changes = body !== undefined ? !READS.test(path) : method === "DELETE";
  let answer;
  try {
    answer = await fetch(ROOT + path.slice(1), asked);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable(changes);
  }
  noteTime(answer.headers.get("Date"));
  if (!answer.ok) throw await refusal(answer);
  try {
    const text = await answer.text();
    if (!text) return null;
    return options.rows ? parseRows(text, options.rows) : parse(text);
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new Unreachable(changes);
  }
}

/** @param {string} path @param {{signal?: AbortSignal}} [options] */
export const get = (path, options) => call("GET", path, undefined, options);
/** @param {string} path @param {any} body @param {{signal?: AbortSignal, rows?: string}} [options] */
export const post = (path, body, options) => call("POST", path, body, options);
/** @param {string} path @param {any} body */
export const put = (path, body) => call("PUT", path, body);
/** @param {string} path */
export const del = (path) => call("DELETE", path);

/** The path of a topic, and what follows it.
 * @param {string} name @param {string} [more] */
export const topicPath = (name, more = "") => `/v0/topics/${segment(name)}${more}`;
/** @param {string} name */
export const routerPath = (name) => `/v0/routers/${segment(name)}`;

/** A name as a part of a path; dots alone would lead elsewhere, and are no name.
 * @param {string} name */
const segment = (name) => encodeURIComponent(name).replace(/^\.{1,2}$/, "$&%20");

/** Every page of a list.
 * @param {string} path @param {string} member @param {{signal?: AbortSignal}} [options] @returns {Promise<any[]>} */
export async function all(path, member, options) {
  const found = [];
  let cursor = "";
  do {
    const page = await get(`${path}${path.includes("?") ? "&" : "?"}page_size=1000&cursor=${cursor}`, options);
    found.push(...page[member]);
    cursor = page.next_cursor ?? "";
  } while (cursor);
  return found;
}

/** What the list says of one topic; null if there is none, or the key may not see it. Absence is no error here.
 * @param {string} name @param {{signal?: AbortSignal}} [options] @returns {Promise<any>} */
export async function entry(name, options) {
  const page = await get(`/v0/topics?system=true&page_size=1&prefix=${encodeURIComponent(name)}`, options);
  return page.topics[0]?.topic === name ? page.topics[0] : null;
}

/** @typedef {"read" | "write" | "delete" | "admin"} Scope */
/** @typedef {Record<Scope, boolean | null>} Scopes */

/** What the key may do; null where it cannot be told before it is tried. */
export const scopes = new Store(/** @type {Scopes} */ ({ read: true, write: true, delete: true, admin: true }));

/** Whether a method of a path is open to the key: asking which methods there are needs the same scope [API-22].
 * @param {string} path @returns {Promise<boolean>} */
async function mayCall(path) {
  try {
    await call("OPTIONS", path);
    return true;
  } catch (error) {
    if (error instanceof ApiError && error.status === 403) return false;
    if (error instanceof ApiError && error.status !== 401) return true;
    throw error;
  }
}

/** Find out whether a key is needed, and what it may do. */
export async function enter() {
  access.set(access.value === "open" || access.value === "given" ? access.value : "unknown");
  let read = true;
  let name = "";
  try {
    const page = await get("/v0/topics?page_size=1");
    name = page.topics[0]?.topic ?? "";
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    if (error.status === 401) return;
    read = error.status !== 403;
  }
  if (!key()) {
    access.set("open");
    scopes.set({ read: true, write: true, delete: true, admin: true });
    return;
  }
  const [write, admin] = await Promise.all([mayCall("/v0/txn/commit"), mayCall("/v0/checkpoint")]);
  // Deletes are always of a name, and the key may be for some names only: one that it can see tells.
  const remove = name ? await mayCall(topicPath(name, "/delete")) : null;
  scopes.set({ read, write, delete: remove, admin });
  access.set("given");
}
