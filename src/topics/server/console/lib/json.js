// @ts-check
/** JSON without losing what it says: integers that a double cannot hold keep their digits. */

/** A value as it was written. */
export class Exact {
  /** @param {string} source */
  constructor(source) {
    this.source = source;
  }
  toString() {
    return this.source;
  }
}

const LONG = /[0-9.]{16}/;

/** @param {string} _key @param {unknown} value @param {{source?: string}} [context] */
function keepSpelling(_key, value, context) {
  const source = context?.source;
  return typeof value === "number" && source !== undefined && String(value) !== source ? new Exact(source) : value;
}

/** @param {string} key @param {unknown} value @param {{source?: string}} [context] */
function keepDigits(key, value, context) {
  return LONG.test(context?.source ?? "") ? keepSpelling(key, value, context) : value;
}

/** Parse; long numbers become `Exact` where the browser tells how they were written.
 * @param {string} text @returns {any} */
export function parse(text) {
  return LONG.test(text) ? JSON.parse(text, /** @type {any} */ (keepDigits)) : JSON.parse(text);
}

/** Parse what is to be sent on: every number is spelled as it was, `1.0` and `1e3` too.
 * @param {string} text @returns {any} */
export function parseExactly(text) {
  return JSON.parse(text, /** @type {any} */ (keepSpelling));
}

/** One line of JSON, cut after about `most` characters.
 * @param {unknown} value @param {number} most */
export function preview(value, most = 300) {
  const parts = /** @type {string[]} */ ([]);
  let room = most;
  /** @param {string} text */
  const put = (text) => {
    parts.push(text);
    room -= text.length;
  };
  /** @param {any} one */
  const walk = (one) => {
    if (room <= 0) return;
    if (typeof one === "string") put(JSON.stringify(one.length > most ? one.slice(0, most) : one));
    else if (one === null || typeof one !== "object" || one instanceof Exact) put(String(one));
    else if (Array.isArray(one)) {
      put("[");
      one.some((item, at) => {
        if (at) put(",");
        walk(item);
        return room <= 0;
      });
      put("]");
    } else {
      put("{");
      Object.keys(one).some((name, at) => {
        put(`${at ? "," : ""}${JSON.stringify(name)}:`);
        walk(one[name]);
        return room <= 0;
      });
      put("}");
    }
  };
  walk(value);
  const text = parts.join("");
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** Several lines of JSON.
 * @param {any} value @param {string} indent @returns {string} */
export function pretty(value, indent = "") {
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  if (value instanceof Exact) return value.source;
  const inner = `${indent}  `;
  if (Array.isArray(value)) {
    if (!value.length) return "[]";
    return `[\n${value.map((one) => inner + pretty(one, inner)).join(",\n")}\n${indent}]`;
  }
  const names = Object.keys(value);
  if (!names.length) return "{}";
  const lines = names.map((name) => `${inner}${JSON.stringify(name)}: ${pretty(value[name], inner)}`);
  return `{\n${lines.join(",\n")}\n${indent}}`;
}

/** Several lines of JSON, or one where they would be longer than `most`: a deep value is mostly indentation.
 * @param {any} value @param {number} most @returns {string} */
export function readable(value, most) {
  let room = most;
  /** @param {any} one @param {number} depth */
  const measure = (one, depth) => {
    room -= 2 * depth + 1;
    if (room <= 0 || one === null || typeof one !== "object") return;
    for (const inner of Object.values(one)) measure(inner, depth + 1);
  };
  measure(value, 0);
  return room > 0 ? pretty(value) : encode(value);
}

/** JSON to send; what was read exactly goes back exactly.
 * @param {any} value @returns {string} */
export function encode(value) {
  if (value instanceof Exact) return value.source;
  if (value === null || typeof value !== "object") return JSON.stringify(value) ?? "null";
  if (Array.isArray(value)) return `[${value.map(encode).join(",")}]`;
  const members = Object.keys(value).filter((name) => value[name] !== undefined);
  return `{${members.map((name) => `${JSON.stringify(name)}:${encode(value[name])}`).join(",")}}`;
}
