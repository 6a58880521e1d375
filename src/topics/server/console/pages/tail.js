// @ts-check
/** The live tail of a topic: pause, filter, jump, gaps in line, one record in full. */
import { post, topicPath } from "../lib/api.js";
import { classes, html, useEffect, useMemo, useRedraw, useRef, useState } from "../lib/dom.js";
import { clock, count, date } from "../lib/format.js";
import { readable } from "../lib/json.js";
import { connection } from "../lib/live.js";
import { insist } from "../lib/poll.js";
import { address, replace } from "../lib/route.js";
import { useStore } from "../lib/store.js";
import { Tail } from "../lib/tail.js";
import { VirtualList } from "../ui/list.js";
import { Button, Copy, Dialog, Empty, Failed, Field, curl } from "../ui/parts.js";

const ROW = 28;
/** Characters of one record in the page, and those up to which it is laid out in lines. */
const SHOWN_MOST = 100_000;
const TEXT_MOST = 4_000_000;

/** @param {string | null} text */
const whole = (text) => (text !== null && /^[0-9]{1,15}$/.test(text) ? Number(text) : null);

/** @param {{name: string, query: URLSearchParams}} props */
export function TailView({ name, query }) {
  const draw = useRedraw();
  const tail = useRef(/** @type {Tail | null} */ (null));
  const due = useRef(0);
  const [stick, setStick] = useState(true);
  const [selected, setSelected] = useState(/** @type {import("../lib/rows.js").RecordRow | null} */ (null));
  const [jumping, setJumping] = useState(false);
  const state = useStore(connection);
  const from = whole(query.get("from"));
  const ts = whole(query.get("ts"));
  const tag = query.get("tag") ?? "";
  const node = query.get("node") ?? "";
  const show = (/** @type {Record<string, string | number | null>} */ changed) =>
    replace(address("topics", name, { from, ts, tag, node, ...changed }));

  useEffect(() => {
    const changed = () => {
      if (!due.current) {
        due.current = requestAnimationFrame(() => {
          due.current = 0;
          draw();
        });
      }
    };
    const one = new Tail(name, changed, () => setStick(false));
    tail.current = one;
    one.filter(tag, node);
    setSelected(null);
    setStick(from === null && ts === null);
    void one.start({ from, ts });
    return () => {
      one.seek += 1;
      one.stop();
      cancelAnimationFrame(due.current);
      due.current = 0;
    };
  }, [name, from, ts]);
  useEffect(() => tail.current?.filter(tag, node), [tag, node]);

  const one = tail.current;
  if (!one) return null;
  const paused = one.mode === "paused";
  const toEnd = () => {
    if (from !== null || ts !== null) show({ from: null, ts: null });
    else if (paused) one.resume();
    else void one.start({});
    setStick(true);
  };
  return html`<section class="panel flush" aria-label="live tail">
    <div class="tail-bar">
      <${Button} pressed=${paused} disabled=${one.mode !== "live" && !paused} why="It is not live." onClick=${() => (paused ? one.resume() : one.pause())}>${paused ? "Resume" : "Pause"}<//>
      <${Status} tail=${one} state=${state} />
      <span class="grow"></span>
      <div class="filters">
        <input aria-label="filter by tag" placeholder="tag, or prefix*" value=${tag} onInput=${(/** @type {any} */ event) => show({ tag: event.currentTarget.value })} />
        <input aria-label="filter by node" placeholder="node" value=${node} onInput=${(/** @type {any} */ event) => show({ node: event.currentTarget.value })} />
        <${Button} onClick=${() => setJumping(true)}>Jump to…<//>
        ${(!stick || from !== null || ts !== null) && html`<${Button} onClick=${toEnd}>To the end ↓<//>`}
      </div>
    </div>
    ${one.error && html`<${Failed} error=${one.error} />`}
    ${one.shown.length === 0
      ? html`<${NoRows} name=${name} tail=${one} filtered=${Boolean(tag || node)} />`
      : html`<div class=${classes("tail", selected && "open")}>
          <${List} tail=${one} stick=${stick} onStick=${setStick} selected=${selected} onSelect=${setSelected} />
          ${selected && html`<${Detail} key=${selected.seq} name=${name} row=${selected} onClose=${() => setSelected(null)} />`}
        </div>`}
    ${jumping && html`<${Jump} onClose=${() => setJumping(false)} onGo=${(/** @type {any} */ to) => {
      setJumping(false);
      show({ from: null, ts: null, ...to });
    }} />`}
  </section>`;
}

export const REASONS = /** @type {Record<string, string>} */ ({
  cap: "evicted by a cap",
  ttl: "expired",
  mixed: "evicted or expired",
  source_trim: "lost before they were copied",
  corrupt: "damaged",
  crash: "lost in a crash",
  from_seq_too_old: "no longer kept",
});

const SAID = /** @type {Record<string, [string, string]>} */ ({
  seeking: ["warn", "reading"],
  paging: ["warn", "scroll for more"],
  paused: ["warn", "paused"],
  deleted: ["bad", "the topic is gone"],
  failed: ["bad", "stopped"],
});

/** @param {{tail: Tail, state: string}} props */
function Status({ tail, state }) {
  const known = SAID[tail.mode];
  const [kind, text] = tail.error && (tail.mode === "seeking" || tail.mode === "paging") ? ["bad", "waiting for the server"] : known ?? (state === "live" ? ["good", "live"] : ["warn", state === "lost" ? "reconnecting" : "connecting"]);
  const behind = tail.mode === "paging" || tail.mode === "paused" ? Math.max(tail.head - tail.cursor, 0) : 0;
  return html`<span class="state" data-testid="tail-state"><span class=${`dot ${kind}`}></span>${text}
    <span class="tab long">${count(tail.shown.length)} shown${tail.shown.dropped ? `, ${count(tail.shown.dropped)} scrolled out` : ""}${behind ? `, ${count(behind)} behind` : ""}</span></span>`;
}

/** @param {import("../lib/rows.js").GapRow} one */
function gapText(one) {
  if (one.reason === "recreated") return "The topic was deleted and made anew; this is the new one:";
  return `gap: ${count(one.from)} – ${count(one.to)} ${REASONS[one.reason] ?? one.reason}`;
}

/** @param {{tail: Tail, stick: boolean, onStick: (is: boolean) => void, selected: any, onSelect: (row: any) => void}} props */
function List({ tail, stick, onStick, selected, onSelect }) {
  const rows = tail.shown;
  const indexOf = () => {
    for (let at = 0; at < rows.length; at++) if (rows.at(at)?.id === selected?.id) return at;
    return -1;
  };
  const [shown, setShown] = useState(-1);
  const pick = (/** @type {number} */ at, /** @type {number} */ step) => {
    while (at >= 0 && at < rows.length && rows.at(at)?.kind !== "record") at += step;
    const row = rows.at(at);
    if (at < 0 || at >= rows.length || !row) return;
    onSelect(row);
    onStick(false);
    setShown(at);
  };
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    const at = selected ? indexOf() : rows.length;
    if (event.key === "ArrowDown") pick(at + 1, 1);
    else if (event.key === "ArrowUp") pick(at - 1, -1);
    else if (event.key === "Home") pick(0, 1);
    else if (event.key === "End") pick(rows.length - 1, -1);
    else if (event.key === "Escape" && selected) onSelect(null);
    else return;
    event.preventDefault();
  };
  const row = (/** @type {number} */ at) => {
    const one = rows.at(at);
    if (!one) return null;
    if (one.kind === "gap") {
      return html`<div key=${one.id} class="rec gap" role="option" aria-disabled="true" aria-selected="false">${gapText(one)}</div>`;
    }
    return html`<div key=${one.id} id=${`rec-${one.id}`} class="rec" role="option" aria-selected=${String(selected?.id === one.id)} onClick=${() => {
      onSelect(one);
      onStick(false);
    }}>
      <span class="seq">${one.seq}</span><span class="ts">${clock(one.ts)}</span><span class="tag">${one.tag}</span><span class="node muted">${one.node}</span><span class="data">${one.text}</span>
    </div>`;
  };
  return html`<${VirtualList} count=${rows.length} height=${ROW} row=${row} stick=${stick} onStick=${(/** @type {boolean} */ is) => onStick(is && tail.mode !== "paging")} dropped=${rows.dropped} show=${shown}
    onEnd=${() => void tail.more()}
    attrs=${{ role: "listbox", tabIndex: 0, "aria-label": "records", "aria-activedescendant": selected ? `rec-${selected.id}` : undefined, onKeyDown: pressed }} />`;
}

/** @param {{name: string, tail: Tail, filtered: boolean}} props */
function NoRows({ name, tail, filtered }) {
  if (tail.mode === "seeking") return html`<p class="boot">Reading…</p>`;
  if (filtered) return html`<${Empty} title="No record passes the filter" text="New ones that do will appear here." />`;
  if (tail.mode === "deleted") return html`<${Empty} title="There is no such topic" text="It was deleted, or never made." command=${curl("PUT", `/v0/topics/${name}`)} />`;
  if (name.startsWith("$")) return html`<${Empty} title="Nothing here yet" text="The server writes to this topic when it has something to tell." />`;
  return html`<${Empty} title="No record yet" text="What is written to this topic appears here at once. Try it:" command=${curl("POST", `/v0/topics/${name}`, '{"records":[{"data":{"hello":"world"}}]}')} />`;
}

/** One record in full; it is fetched, because the tail keeps only the beginning of each.
 * @param {{name: string, row: import("../lib/rows.js").RecordRow, onClose: () => void}} props */
function Detail({ name, row, onClose }) {
  const [record, setRecord] = useState(/** @type {any} */ (null));
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    const calling = new AbortController();
    const { signal } = calling;
    const ask = () => post(topicPath(name, "/diff"), { from_seq: row.seq - 1, limit: 1, include_tags: true, max_batch_bytes: 8 << 20 }, { signal });
    insist(ask, setError, () => !signal.aborted).then(
      (page) => {
        if (!page) return;
        const found = page.records[0];
        if (found?.$seq === row.seq) setRecord(found);
        else setError({ code: "gone", message: "This record is no longer there; this is its beginning:" });
      },
      setError,
    );
    return () => calling.abort();
  }, [name, row.seq]);
  const data = useMemo(() => (record ? readable(record.data, TEXT_MOST) : ""), [record]);
  return html`<aside class="detail" aria-label=${`record ${row.seq}`}>
    <div class="spread"><h2>Record <span class="tab">${row.seq}</span></h2><${Button} kind="quiet small" label="close the record" onClick=${onClose}>✕<//></div>
    <dl class="facts">
      <div><dt>Written</dt><dd>${date(row.ts)}</dd></div>
      ${row.tag && html`<div><dt>Tag</dt><dd>${row.tag}</dd></div>`}
      ${row.node && html`<div><dt>Node</dt><dd>${row.node}</dd></div>`}
    </dl>
    <${Failed} error=${error} />
    <pre class="json" tabindex="0" aria-label="data">${record ? data.slice(0, SHOWN_MOST) : error ? row.text : "…"}</pre>
    ${data.length > SHOWN_MOST && html`<p class="muted">${count(data.length - SHOWN_MOST)} more characters are not shown; they are copied.</p>`}
    ${record?.meta && html`<h3>Meta</h3><pre class="json" tabindex="0" aria-label="meta">${readable(record.meta, SHOWN_MOST).slice(0, SHOWN_MOST)}</pre>`}
    ${record && html`<div class="row"><${Copy} text=${data} label="copy the data" /></div>`}
  </aside>`;
}

/** @param {{onClose: () => void, onGo: (to: {from?: number, ts?: number}) => void}} props */
function Jump({ onClose, onGo }) {
  const [seq, setSeq] = useState("");
  const [time, setTime] = useState("");
  const at = time ? new Date(time).getTime() : NaN;
  const wrong = seq && !/^[0-9]{1,15}$/.test(seq) ? "A whole number." : "";
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    if (seq && !wrong) onGo({ from: Number(seq) });
    else if (!Number.isNaN(at)) onGo({ ts: at });
  };
  return html`<${Dialog} title="Jump to a place" onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      <${Field} label="Seq" value=${seq} onInput=${setSeq} wrong=${wrong} hint="The first record at or after it." autofocus />
      <${Field} label="or a time" type="datetime-local" value=${time} onInput=${setTime} hint="The first record written then or later." />
      <div class="row end"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="main" type="submit" disabled=${(!seq || Boolean(wrong)) && Number.isNaN(at)} why="Give a seq or a time.">Go<//></div>
    </form>
  <//>`;
}
