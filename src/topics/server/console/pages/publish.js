// @ts-check
/** Writing one record, and deleting by tag. */
import { post, topicPath } from "../lib/api.js";
import { html, useRef, useState } from "../lib/dom.js";
import { count } from "../lib/format.js";
import { Exact, encode } from "../lib/json.js";
import { address } from "../lib/route.js";
import { Button, Copyable, Done, Failed, Field, curl } from "../ui/parts.js";

/** @param {string} text @param {boolean} needed @returns {{value?: any, wrong: string}} */
function read(text, needed) {
  if (!text.trim()) return { wrong: needed ? "Any JSON value." : "" };
  try {
    JSON.parse(text);
    return { value: new Exact(text.trim()), wrong: "" };
  } catch (error) {
    return { wrong: `Not JSON: ${/** @type {Error} */ (error).message}` };
  }
}

function unique() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((one) => one.toString(16).padStart(2, "0")).join("");
}

/** @param {{name: string}} props */
export function Publish({ name }) {
  const [data, setData] = useState('{"hello": "world"}');
  const [tag, setTag] = useState("");
  const [node, setNode] = useState("");
  const [meta, setMeta] = useState("");
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  const payload = read(data, true);
  const extra = read(meta, false);
  const bad = Boolean(payload.wrong || extra.wrong);
  const body = { records: [{ data: payload.value, tag: tag || undefined, node: node || undefined, meta: extra.value }] };
  const [busy, setBusy] = useState(false);
  const attempt = useRef({ text: "", key: "" });
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (bad || busy) return;
    setBusy(true);
    setError(null);
    setTold(null);
    // The same record again, after no answer came, is the same write [IDM-1].
    const text = encode(body);
    if (attempt.current.text !== text) attempt.current = { text, key: `console:${unique()}` };
    try {
      setTold(await post(topicPath(name), { ...body, idempotency_key: attempt.current.key }));
      attempt.current = { text: "", key: "" };
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  return html`<section class="panel">
    <h2>Publish a record</h2>
    <form class="stack" onSubmit=${submit}>
      <${Field} label="Data" area value=${data} onInput=${setData} wrong=${payload.wrong} hint="JSON; stored as written." />
      <div class="form-grid">
        <${Field} label="Tag" value=${tag} onInput=${setTag} hint="What deletes and filters select by." />
        <${Field} label="Node" value=${node} onInput=${setNode} hint="Who wrote it." />
        <${Field} label="Meta" value=${meta} onInput=${setMeta} wrong=${extra.wrong} placeholder='{"trace": "1f3a"}' hint="A small JSON object." />
      </div>
      <${Failed} error=${error} />
      ${told && html`<${Done} text=${`Written as seq ${told.first_seq} in ${told.performance.server_total_ms.toFixed(1)} ms.`} />`}
      <div class="row"><${Button} kind="main" type="submit" needs=${["write"]} disabled=${bad} why="The JSON is not valid." busy=${busy}>Publish<//>
        ${told && html`<a href=${address("topics", name, { from: told.first_seq })}>See it</a>`}</div>
    </form>
    ${!bad && html`<div class="stack"><h3>The same from a shell</h3><${Copyable} text=${curl("POST", `/v0/topics/${name}`, encode(body))} /></div>`}
  </section>`;
}

/** Delete by tag: nothing goes before its number was shown, and nothing that was written since.
 * @param {{name: string, live: number, onDone: () => void}} props */
export function DeleteRecords({ name, live, onDone }) {
  const [match, setMatch] = useState("");
  const [before, setBefore] = useState("");
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const [told, setTold] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const wrong = before && !/^[0-9]{1,15}$/.test(before) ? "A whole number." : "";
  const asked = { match: match || undefined, before_seq: before && !wrong ? Number(before) : undefined };
  const ready = Boolean(match || before) && !wrong;
  const change = (/** @type {(value: string) => void} */ set) => (/** @type {string} */ value) => {
    set(value);
    setPreview(null);
    setTold("");
  };
  const run = async (/** @type {boolean} */ dry) => {
    setError(null);
    setTold("");
    try {
      const bound = preview && !dry ? { before_seq: Math.min(asked.before_seq ?? Infinity, preview.head_seq + 1) } : {};
      const answer = await post(topicPath(name, "/delete"), { ...asked, ...bound, dry_run: dry });
      if (dry) {
        setPreview(answer);
        return;
      }
      setPreview(null);
      setTold(`${count(answer.deleted)} records are deleted, ${count(answer.count)} are left.`);
      onDone();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<section class="panel">
    <h2>Delete records</h2>
    <form class="stack" onSubmit=${(/** @type {Event} */ event) => {
      event.preventDefault();
      if (ready) void run(true);
    }}>
      <div class="form-grid">
        <${Field} label="Tag" value=${match} onInput=${change(setMatch)} placeholder="order:991 or order:*" hint="One tag, or all that begin so." />
        <${Field} label="Before seq" value=${before} onInput=${change(setBefore)} wrong=${wrong} hint="Only records below it." />
      </div>
      <${Failed} error=${error} />
      ${told && html`<${Done} text=${told} />`}
      ${preview && html`<div class="notice warn" role="status"><span class="grow">${count(preview.deleted)} of ${count(Math.max(live, preview.deleted))} live records would go. What is written from now on stays.</span></div>`}
      <div class="row">
        <${Button} type="submit" needs=${["delete"]} disabled=${!ready} why="Give a tag or a seq.">Preview<//>
        <${Button} kind="danger" needs=${["delete"]} disabled=${!preview || preview.deleted === 0} why=${preview ? "Nothing would go." : "Preview first."} onClick=${() => void run(false)}>
          ${preview?.deleted ? `Delete ${count(preview.deleted)} records` : "Delete"}<//>
      </div>
    </form>
  </section>`;
}
