// @ts-check
/** Topics: all of them, to be searched and sorted; create and delete. */
import { del, entry, put, topicPath } from "../lib/api.js";
import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { ago, bytes, count, duration, rate, serverNow, short } from "../lib/format.js";
import { usePoll } from "../lib/poll.js";
import { address, go, replace } from "../lib/route.js";
import { Topics, known } from "../lib/topics.js";
import { Spark } from "../ui/chart.js";
import { VirtualList } from "../ui/list.js";
import { Button, Check, ClassBadge, Dialog, Empty, Failed, Field, Typed, curl, useReason } from "../ui/parts.js";

const ROW = 36;
const remembered = new Topics();

/** @typedef {import("../lib/topics.js").Entry} Entry */
/** @type {{name: string, label: string, of: (one: Entry) => number | string, kind: string}[]} */
const COLUMNS = [
  { name: "topic", label: "Topic", of: (one) => one.topic, kind: "" },
  { name: "head", label: "Head", of: (one) => one.head_seq, kind: "num wide" },
  { name: "count", label: "Live", of: (one) => one.count, kind: "num" },
  { name: "bytes", label: "Bytes", of: (one) => one.bytes, kind: "num wide" },
  { name: "rate", label: "Per s", of: (one) => one.rate ?? -1, kind: "num" },
  { name: "spark", label: "Trend", of: (one) => one.rate ?? -1, kind: "wide trend" },
  { name: "class", label: "Class", of: (one) => one.durability, kind: "" },
  { name: "priority", label: "Priority", of: (one) => one.effective_priority, kind: "num wide" },
  { name: "oldest", label: "Oldest", of: (one) => one.earliest_ts ?? Infinity, kind: "num wide" },
];

/** What tells two lists apart, of many topics too.
 * @param {Entry[]} all */
const heads = (all) => all.map((one) => `${one.topic} ${one.head_seq} ${one.count} ${one.rate}`).join();

/** @param {{query: URLSearchParams}} props */
export function TopicsPage({ query }) {
  const system = query.get("system") === "1";
  const reason = useReason(["delete"]);
  const found = usePoll((signal) => remembered.ask(signal, system), 3000, [system], heads);
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (query.get("new")) setDialog({ kind: "create" });
  }, [query]);
  const text = query.get("q") ?? "";
  const sort = query.get("sort") ?? "topic";
  const down = query.get("down") === "1";
  if (found.value) known.names = found.value.map((one) => one.topic);
  const rows = useMemo(() => arranged(found.value ?? [], text, sort, down), [found.value, text, sort, down]);
  const show = (/** @type {Record<string, string | null>} */ changed) =>
    replace(address("topics", "", { q: text, sort: sort === "topic" ? null : sort, down: down ? "1" : null, system: system ? "1" : null, ...changed }));
  const closed = () => {
    setDialog(null);
    if (query.get("new")) show({});
  };
  return html`
    <div class="head">
      <h1>Topics</h1>
      <span class="muted tab" aria-live="polite">${found.value ? `${count(rows.length)}${rows.length === found.value.length ? "" : ` of ${count(found.value.length)}`}` : ""}</span>
      <span class="grow"></span>
      <div class="filters">
        <input type="search" aria-label="search topics" placeholder="Search" value=${text} onInput=${(/** @type {any} */ event) => show({ q: event.currentTarget.value })} />
        <${Check} label="system" hint="Also the server's own topics" value=${system} onInput=${(/** @type {boolean} */ on) => show({ system: on ? "1" : null })} />
        <${Button} kind="main" needs=${["admin"]} onClick=${() => setDialog({ kind: "create" })}>New topic<//>
      </div>
    </div>
    <div class="grid">
      <${Failed} error=${found.error} />
      <section class="panel flush" role="table" aria-label="topics" aria-rowcount=${rows.length + 1}>
        <div class="cols top" role="row">
          ${COLUMNS.map((one) => {
            const on = sort === one.name;
            const turn = () => show({ sort: one.name, down: on ? (down ? null : "1") : one.name === "topic" ? null : "1" });
            return html`<span key=${one.name} role="columnheader" class=${one.kind} aria-sort=${on ? (down ? "descending" : "ascending") : "none"}>
              <button type="button" class="sort" onClick=${turn}>${one.label}${on ? (down ? " ↓" : " ↑") : ""}</button>
            </span>`;
          })}
          <span class="wide" role="columnheader"><span class="hidden">actions</span></span>
        </div>
        ${found.value && rows.length === 0
          ? html`<${Nothing} text=${text} />`
          : html`<${VirtualList} kind="topics-list" count=${rows.length} height=${ROW} attrs=${{ role: "rowgroup", tabIndex: 0, "aria-label": "topics, scrollable" }}
              row=${(/** @type {number} */ at) => html`<${Line} key=${rows[at]?.topic} one=${rows[at]} at=${at} reason=${reason} onDelete=${(/** @type {Entry} */ one) => setDialog({ kind: "delete", one })} />`} />`}
      </section>
    </div>
    ${dialog?.kind === "create" && html`<${Create} onClose=${closed} />`}
    ${dialog?.kind === "delete" && html`<${DeleteTopic} name=${dialog.one.topic} count=${dialog.one.count} onClose=${closed} onDone=${() => {
      closed();
      found.again();
    }} />`}
  `;
}

/** @param {Entry[]} all @param {string} text @param {string} sort @param {boolean} down */
function arranged(all, text, sort, down) {
  const wanted = text.toLowerCase();
  const rows = wanted ? all.filter((one) => one.topic.toLowerCase().includes(wanted)) : [...all];
  const of = COLUMNS.find((one) => one.name === sort)?.of ?? ((/** @type {Entry} */ one) => one.topic);
  const sign = down ? -1 : 1;
  rows.sort((a, b) => {
    const [x, y] = [of(a), of(b)];
    return x < y ? -sign : x > y ? sign : a.topic < b.topic ? -1 : 1;
  });
  return rows;
}

/** Rows come and go by the dozen while one scrolls: they are made of plain elements.
 * @param {{one: Entry | undefined, at: number, reason: string, onDelete: (one: Entry) => void}} props */
function Line({ one, at, reason, onDelete }) {
  if (!one) return null;
  return html`<div class="cols line" role="row" aria-rowindex=${at + 2}>
    <span class="titled" role="cell"><a class="cut" href=${address("topics", one.topic)} title=${one.topic}>${one.topic}</a>${one.type === "queue" && html`<span class="badge type">queue</span>`}</span>
    <span class="num wide" role="cell">${count(one.head_seq)}</span>
    <span class="num" role="cell" title=${count(one.count)}>${short(one.count)}</span>
    <span class="num wide" role="cell">${bytes(one.bytes)}</span>
    <span class="num" role="cell">${rate(one.rate)}</span>
    <span class="wide trend" role="cell"><${Spark} values=${one.spark} /></span>
    <span role="cell"><${ClassBadge} name=${one.durability} /></span>
    <span class="num wide" role="cell">${one.effective_priority}</span>
    <span class="num wide" role="cell" title=${ago(one.last_write_ts)}>${one.earliest_ts === null ? "–" : duration(serverNow() - one.earliest_ts)}</span>
    <span class="wide" role="cell">${one.topic.startsWith("$") ? null : html`<button type="button" class="button quiet small" aria-label=${`delete ${one.topic}`} aria-disabled=${reason ? "true" : undefined} title=${reason || undefined} onClick=${() => !reason && onDelete(one)}>✕</button>`}</span>
  </div>`;
}

/** @param {{text: string}} props */
function Nothing({ text }) {
  if (text) return html`<${Empty} title="No topic has this in its name" text=${`Nothing matches “${text}”.`} />`;
  const body = '{"records":[{"data":{"sku":"B-12","qty":3},"tag":"order:991"}]}';
  return html`<${Empty} title="There is no topic yet" text="The first write makes its topic:" command=${curl("POST", "/v0/topics/orders", body)} />`;
}

const CLASSES = /** @type {[string, string][]} */ ([
  ["disk", "disk – survives a kill of the process"],
  ["fsync", "fsync – on the medium before the answer"],
  ["memory", "memory – written lazily"],
  ["ephemeral", "ephemeral – never written"],
]);
const NAME = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$/;

/** Whether there is a topic, as far as the key may see.
 * @param {string} name */
const exists = (name) => entry(name).catch((error) => {
  if (error.status === 403) return null;
  throw error;
});

/** @param {{onClose: () => void}} props */
function Create({ onClose }) {
  const [name, setName] = useState("");
  const [type, setType] = useState("log");
  const [durability, setDurability] = useState("disk");
  const [error, setError] = useState(/** @type {any} */ (null));
  const wrong = name && !NAME.test(name) ? "Letters and digits first, then also . _ : -; 255 at most." : "";
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!name || wrong) return;
    setError(null);
    try {
      // A PUT would replace the configuration of one that is there [CFG-1].
      if (await exists(name)) setError({ code: "exists", message: "There is a topic of this name." });
      else {
        await put(topicPath(name), { type, durability });
        go(address("topics", name));
      }
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title="New topic" onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      <${Field} label="Name" value=${name} onInput=${setName} wrong=${wrong} autofocus />
      <${Field} label="Type" value=${type} onInput=${setType} options=${[["log", "log – read by cursor"], ["queue", "queue – jobs, leased to workers"]]} />
      <${Field} label="Durability" value=${durability} onInput=${setDurability} options=${CLASSES} hint="Everything else can be set afterwards." />
      <${Failed} error=${error} />
      <div class="row end"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="main" type="submit" disabled=${!name || Boolean(wrong)} why="A valid name is needed.">Create<//></div>
    </form>
  <//>`;
}

/** @param {{name: string, count: number, onClose: () => void, onDone: () => void}} props */
export function DeleteTopic({ name, count: records, onClose, onDone }) {
  return html`<${Typed} title="Delete this topic" name=${name} action="Delete for good" onClose=${onClose}
    onDone=${async () => {
      await del(topicPath(name));
      onDone();
    }}>
    <p>${count(records)} live records of <strong>${name}</strong> go, and every router that touches it. Nothing brings them back.</p>
  <//>`;
}
