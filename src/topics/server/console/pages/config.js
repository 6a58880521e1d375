// @ts-check
/** A topic's configuration as a form. A PUT replaces all of it, so that all of it is sent (01 §3). */
import { put, topicPath } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";
import { amount, bytes, count, duration } from "../lib/format.js";
import { Button, Check, Done, Failed, Field } from "../ui/parts.js";

/** @typedef {{name: string, label: string, kind: "ms" | "bytes" | "count" | "int" | "flag" | "choice" | "name", hint?: string,
 *   options?: (string | [string, string])[], low?: number, high?: number, queue?: boolean}} Item */

/** @type {[string, Item[]][]} */
const GROUPS = [
  ["Keeping", [
    { name: "durability", label: "Durability", kind: "choice", options: ["fsync", "disk", "memory", "ephemeral"], hint: "Of writes from now on." },
    { name: "ttl_ms", label: "Time to live", kind: "ms", hint: "0: never." },
    { name: "cap_records", label: "Records at most", kind: "count", hint: "0: no bound." },
    { name: "cap_bytes", label: "Bytes at most", kind: "bytes", hint: "0: no bound." },
    { name: "discard", label: "When full", kind: "choice", options: [["old", "evict the oldest"], ["reject", "refuse writes"]] },
  ]],
  ["Writing and reading", [
    { name: "idempotency_window_ms", label: "Idempotency window", kind: "ms", hint: "How long keys of writes are kept." },
    { name: "priority", label: "Priority", kind: "int", low: -2147483648, high: 2147483647, hint: "Empty: by how it is used." },
    { name: "auto_priority", label: "Raise the priority of what is read", kind: "flag" },
    { name: "auto_create", label: "Writes may create topics", kind: "flag" },
    { name: "dedupe_node", label: "Readers may leave out their own records", kind: "flag" },
  ]],
  ["Queue", [
    { name: "lease_ms", label: "Lease", kind: "ms", low: 100, high: 86400000, queue: true },
    { name: "claim_jitter_ms", label: "Claim window", kind: "ms", high: 5000, queue: true },
    { name: "max_deliveries", label: "Deliveries at most", kind: "count", hint: "0: no bound.", queue: true },
    { name: "dead_letter", label: "Dead letters go to", kind: "name", hint: "Empty: nowhere.", queue: true },
    { name: "leases_durable", label: "Leases survive a restart", kind: "flag", queue: true },
  ]],
];
const NAME = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$/;

/** @param {Item} item @param {string} text @returns {{value: any, wrong: string, hint: string}} */
function judge(item, text) {
  const plain = item.hint ?? "";
  if (item.kind === "choice") return { value: text, wrong: "", hint: plain };
  if (item.kind === "name") {
    const wrong = text && !NAME.test(text) ? "Not a name of a topic." : "";
    return { value: text || null, wrong, hint: plain };
  }
  if (item.kind === "int") {
    if (!text.trim()) return { value: null, wrong: "", hint: plain };
    const value = /^-?[0-9]+$/.test(text.trim()) ? Number(text) : NaN;
    const wrong = Number.isNaN(value) || value < (item.low ?? -Infinity) || value > (item.high ?? Infinity) ? "A whole number, or empty." : "";
    return { value, wrong, hint: plain };
  }
  const kind = /** @type {"ms" | "bytes" | "count"} */ (item.kind);
  const value = amount(text, kind);
  if (value === null) return { value, wrong: kind === "ms" ? "A time, such as 90s or 2h." : kind === "bytes" ? "A size, such as 64Mi." : "A number, such as 10k.", hint: plain };
  if (value < (item.low ?? 0) || value > (item.high ?? Infinity)) return { value, wrong: `From ${count(item.low ?? 0)} to ${count(item.high)} ms.`, hint: plain };
  const told = value === 0 ? "" : kind === "ms" ? duration(value) : kind === "bytes" ? bytes(value) : count(value);
  return { value, wrong: "", hint: told || plain };
}

/** @param {any} config @returns {Record<string, any>} */
function texts(config) {
  const found = /** @type {Record<string, any>} */ ({});
  for (const [, items] of GROUPS) {
    for (const item of items) found[item.name] = item.kind === "flag" ? config[item.name] : String(config[item.name] ?? "");
  }
  return found;
}

/** @param {{name: string, config: any, onDone: () => void}} props */
export function Config({ name, config, onDone }) {
  const stored = JSON.stringify(config);
  const [form, setForm] = useState(() => texts(config));
  const [base, setBase] = useState(config);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [saved, setSaved] = useState(false);
  const stands = texts(base);
  const changed = JSON.stringify(form) !== JSON.stringify(stands);
  useEffect(() => {
    // Somebody else changed it: what nobody touched here follows.
    const [before, now] = [texts(base), texts(config)];
    setForm((old) => Object.fromEntries(Object.keys(old).map((field) => [field, old[field] === before[field] ? now[field] : old[field]])));
    setBase(config);
  }, [stored]);
  const system = name.startsWith("$");
  const set = (/** @type {string} */ field) => (/** @type {any} */ value) => {
    setSaved(false);
    setForm((old) => ({ ...old, [field]: value }));
  };
  const judged = /** @type {Record<string, {value: any, wrong: string, hint: string}>} */ ({});
  for (const [, items] of GROUPS) {
    for (const item of items) {
      const same = form[item.name] === stands[item.name];
      const one = item.kind === "flag" ? { value: form[item.name], wrong: "", hint: "" } : judge(item, form[item.name]);
      // What stands is right as it stands, whatever this form thinks of it.
      judged[item.name] = same ? { value: base[item.name], wrong: "", hint: one.wrong ? "" : one.hint } : one;
    }
  }
  const wrong = Object.values(judged).some((one) => one.wrong);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (wrong || !changed) return;
    const body = { type: config.type, ...Object.fromEntries(Object.entries(judged).map(([field, one]) => [field, one.value])) };
    setError(null);
    try {
      const told = await put(topicPath(name), body);
      setForm(texts(told.config));
      setBase(told.config);
      setSaved(true);
      onDone();
    } catch (failed) {
      setError(failed);
    }
  };
  const why = system ? "The server keeps this topic." : wrong ? "Something is not valid." : "Nothing is changed.";
  return html`<section class="panel">
    <h2>Configuration</h2>
    <form class="stack" onSubmit=${submit}>
      ${GROUPS.filter(([, items]) => config.type === "queue" || !items[0]?.queue).map(
        ([title, items]) => html`<fieldset key=${title} class="stack" disabled=${system}><legend><h3>${title}</h3></legend>
          <div class="form-grid">
            ${items.filter((item) => item.kind !== "flag").map((item) => {
              const one = judged[item.name];
              return html`<${Field} key=${item.name} label=${item.label} value=${form[item.name]} onInput=${set(item.name)} options=${item.options} wrong=${one?.wrong} hint=${one?.hint} />`;
            })}
          </div>
          ${items.some((item) => item.kind === "flag") && html`<div class="row checks">${items.filter((item) => item.kind === "flag").map((item) => html`<${Check} key=${item.name} label=${item.label} value=${form[item.name]} onInput=${set(item.name)} />`)}</div>`}</fieldset>`,
      )}
      <${Failed} error=${error} />
      ${saved && !changed && html`<${Done} text="Saved. It is in force." />`}
      <div class="row">
        <${Button} kind="main" type="submit" needs=${["admin"]} disabled=${system || wrong || !changed} why=${why}>Save<//>
        <${Button} disabled=${!changed} why="Nothing is changed." onClick=${() => setForm(texts(config))}>Discard changes<//>
      </div>
    </form>
  </section>`;
}
