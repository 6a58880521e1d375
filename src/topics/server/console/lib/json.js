// @ts-check
/** JSON without losing what it says: integers that a double cannot hold keep their digits, and what is sent on every byte. */

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
function keepDigits(_key, value, context) {
  const source = context?.source ?? "";
  return typeof value === "number" && LONG.test(source) && String(value) !== source ? new Exact(source) : value;
}

/** Parse; long numbers become `Exact` where the browser tells how they were written.
 * @param {string} text @returns {any} */
export function parse(text) {
  return LONG.test(text) ? JSON.parse(text, /** @type {any} */ (keepDigits)) : JSON.parse(text);
}

/** Parse an answer whose rows are to be sent on: their `data` and `meta` are kept as they were written. A browser would put
 * names that look like numbers first, drop all but the last of those that are there twice, and spell `1.0` as `1`.
 * @param {string} text @param {string} member the one that has the rows @returns {any} */
export function parseRows(text, member) {
  const told = parse(text);
  const rows = parts(text).find(({ name }) => name === member)?.value ?? "";
  parts(rows).forEach((row, at) => {
    for (const { name, value } of parts(row.value)) {
      if (name === "data" || name === "meta") told[member][at][name] = new Exact(value);
    }
  });
  return told;
}

/** @typedef {{name: string, value: string, whole: string}} Part */

/** The members of an object, or the items of an array, which have no name: as they were written, in their order.
 * @param {string} text valid JSON @returns {Part[]} */
export function parts(text) {
  const found = /** @type {Part[]} */ ([]);
  let depth = 0;
  let from = 0;
  let colon = -1;
  for (let at = 0; at < text.length; at++) {
    const mark = text[at];
    if (mark === '"') at = endOfString(text, at);
    else if (mark === ":" && depth === 1) colon = at;
    else if (mark === "{" || mark === "[") {
      if (++depth === 1) from = at + 1;
    } else if (mark === "}" || mark === "]" || mark === ",") {
      if (depth === 1) {
        const whole = text.slice(from, at).trim();
        const name = colon < 0 ? "" : JSON.parse(text.slice(from, colon));
        if (whole) found.push({ name, value: text.slice(Math.max(from, colon + 1), at).trim(), whole });
        from = at + 1;
        colon = -1;
      }
      if (mark !== ",") depth--;
    }
  }
  return found;
}

/** Where the string that begins at a place has its last quote.
 * @param {string} text @param {number} from @returns {number} */
function endOfString(text, from) {
  for (let at = text.indexOf('"', from + 1); at > 0; at = text.indexOf('"', at + 1)) {
    let slashes = 0;
    while (text[at - 1 - slashes] === "\\") slashes++;
    if (slashes % 2 === 0) return at;
  }
  return text.length;
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
