// @ts-check
/** One topic: its seqs on a ruler, its segments, its tail, and what can be done with it. */
import { get, topicPath } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { ago, bytes, count, date, duration, serverNow } from "../lib/format.js";
import { damage, newest } from "../lib/losses.js";
import { usePoll } from "../lib/poll.js";
import { address, go } from "../lib/route.js";
import { Button, ClassBadge, Empty, Failed, curl } from "../ui/parts.js";
import { Ruler, SegmentMap, deadShare } from "../ui/ruler.js";
import { Config } from "./config.js";
import { DeleteRecords, Publish } from "./publish.js";
import { REASONS, TailView } from "./tail.js";
import { DeleteTopic } from "./topics.js";

const VIEWS = [["", "Tail"], ["publish", "Publish"], ["segments", "Segments"], ["delete", "Delete records"], ["config", "Configuration"]];
const LISTED = 200;
const LOSSES = 200;
const SEGMENTS = 100_000;

/** @param {{name: string, query: URLSearchParams}} props */
export function TopicPage({ name, query }) {
  const state = usePoll((signal) => get(topicPath(name, "?touch=false"), { signal }), 2000, [name]);
  const plan = usePoll((signal) => planOf(name, signal), 4000, [name], (one) => `${one.version} ${one.head_seq} ${one.durable_seq}`);
  const losses = usePoll((signal) => newest(LOSSES, signal), 10_000, [name]);
  const [deleting, setDeleting] = useState(false);
  const [whole, setWhole] = useState(/** @type {boolean | null} */ (null));
  const view = query.get("view") ?? "";
  const now = state.value;
  const system = name.startsWith("$");
  if (!now && state.error) {
    return html`<div class="head"><h1>${name}</h1></div>
      <section class="panel flush">
        <${Failed} error=${state.error} />
        ${state.error.code === "topic_not_found" && html`<${Empty} title="There is no such topic" text="A write makes it, or this:" command=${curl("PUT", `/v0/topics/${name}`)} />`}
      </section>`;
  }
  // The plan is asked for less often than the state, which knows a later head.
  const drawn = plan.value && { ...plan.value, head_seq: Math.max(plan.value.head_seq, now?.head_seq ?? 0) };
  const live = plan.value ? (plan.value.head_seq - plan.value.earliest_seq + 1) / Math.max(plan.value.head_seq, 1) : 1;
  const all = whole ?? live > 0.1;
  return html`
    <div class="head">
      <h1>${name}</h1>
      ${now && html`<span class="badge">${now.type}</span><${ClassBadge} name=${now.config.durability} />`}
      <span class="grow"></span>
      ${now?.type === "queue" && html`<a class="button" href=${address("queues", name)}>Jobs in flight</a>`}
      ${!system && html`<${Button} kind="danger" needs=${["delete"]} disabled=${!now} onClick=${() => setDeleting(true)}>Delete topic<//>`}
    </div>
    <div class="grid">
      <${Failed} error=${state.error ?? plan.error} />
      <section class="panel stack">
        <${Facts} now=${now} plan=${plan.value} />
        ${drawn && drawn.head_seq > 0 && html`
          <${Ruler} plan=${drawn} whole=${all} onPick=${(/** @type {number} */ seq) => go(address("topics", name, { from: seq }))} />
          <div class="spread"><${Key} /><${Button} kind="small" pressed=${all} onClick=${() => setWhole(!all)}>whole range<//></div>`}
        ${plan.value && html`<${Damage} name=${name} told=${damage(losses.value ?? [], plan.value)} />`}
      </section>
      <div>
        <nav class="tabs" aria-label="views of the topic">
          ${VIEWS.filter(([id]) => !system || id === "" || id === "segments").map(([id, label]) => html`<a key=${id} href=${address("topics", name, { view: id })} aria-current=${view === id ? "page" : undefined}>${label}</a>`)}
        </nav>
        ${view === "publish" && html`<${Publish} name=${name} />`}
        ${view === "segments" && html`<${Segments} plan=${drawn} whole=${all} />`}
        ${view === "delete" && html`<${DeleteRecords} name=${name} live=${now?.count ?? 0} onDone=${() => {
          state.again();
          plan.again();
        }} />`}
        ${view === "config" && now && html`<${Config} key=${name} name=${name} config=${now.config} onDone=${state.again} />`}
        ${view === "" && html`<${TailView} name=${name} query=${query} />`}
      </div>
    </div>
    ${deleting && html`<${DeleteTopic} name=${name} count=${now?.count ?? 0} onClose=${() => setDeleting(false)} onDone=${() => go(address("topics"))} />`}
  `;
}

/** All segments of a topic, of however many pages.
 * @param {string} name @param {AbortSignal} signal */
async function planOf(name, signal) {
  const plan = await get(topicPath(name, "/segments"), { signal });
  while (plan.next_seq !== null && plan.segments.length < SEGMENTS) {
    const more = await get(topicPath(name, `/segments?from_seq=${plan.next_seq}`), { signal });
    plan.segments = plan.segments.concat(more.segments);
    plan.next_seq = more.next_seq;
  }
  return plan;
}

/** @param {{now: any, plan: any}} props */
function Facts({ now, plan }) {
  const facts = [
    ["Head", count(now?.head_seq)],
    ["Live records", count(now?.count)],
    ["Bytes", bytes(now?.bytes)],
    ["Oldest", now?.earliest_ts ? duration(serverNow() - now.earliest_ts) : "–"],
    ["Last write", now ? ago(now.last_write_ts) : "–"],
    ["Last read", now ? ago(now.last_read_ts) : "–"],
    ["Durable up to", plan ? count(plan.durable_seq) : "–"],
    ["Priority", now ? String(now.effective_priority) : "–"],
  ];
  return html`<dl class="facts">${facts.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/** What the server found damaged, the newest first; the rows of the tail say which records exactly.
 * @param {{name: string, told: any[]}} props */
function Damage({ name, told }) {
  if (!told.length) return null;
  return html`<ul class="told" aria-label="damage">${told.slice(-3).reverse().map((one) => html`<li key=${one.$seq}><time>${date(one.$ts)}</time>
    <span class="bad">Records within <a href=${address("topics", name, { from: one.data.gap_from })}>${count(one.data.gap_from)} – ${count(one.data.gap_to)}</a> are ${REASONS[one.data.reason] ?? one.data.reason}.</span></li>`)}</ul>`;
}

function Key() {
  const kinds = [["evicted", "evicted"], ["deleted", "deleted"], ["lost", "lost"], ["live", "in segments"], ["tail", "in the log"]];
  return html`<ul class="legend">${kinds.map(([kind, text]) => html`<li key=${kind}><span class=${`swatch ${kind}`}></span>${text}</li>`)}</ul>`;
}

/** @param {{plan: any, whole: boolean}} props */
function Segments({ plan, whole }) {
  if (!plan) return html`<p class="boot">Reading…</p>`;
  const segments = plan.segments;
  const shown = segments.slice(-LISTED).reverse();
  return html`<section class="panel stack">
    <h2>Segments <span class="muted tab">${count(segments.length)}${plan.next_seq ? "+" : ""}</span></h2>
    ${segments.length === 0
      ? html`<p class="muted">Everything is in the log; a checkpoint writes segments.</p>`
      : html`<${SegmentMap} plan=${plan} whole=${whole} />
        <ul class="legend"><li><span class="swatch live"></span>hot, sealed</li><li><span class="swatch tail"></span>active</li><li><span class="swatch read"></span>cold</li><li><span class="swatch deleted"></span>deleted share</li><li><span class="swatch evicted"></span>evicted</li><li><span class="swatch lost"></span>lost</li></ul>
        <div class="scroll" tabindex="0" role="region" aria-label="segments"><table>
          <thead><tr><th class="num">first</th><th class="num">last</th><th class="num">live</th><th class="num">deleted</th><th class="num">bytes</th><th>tier</th><th>state</th></tr></thead>
          <tbody>${shown.map((/** @type {any} */ one) => html`<tr key=${one.first_seq}>
            <td class="num">${count(one.first_seq)}</td><td class="num">${count(one.last_seq)}</td><td class="num">${count(one.records)}</td>
            <td class="num">${Math.round(deadShare(one, plan) * 100)} %</td><td class="num">${bytes(one.bytes)}</td><td>${one.tier}</td>
            <td>${one.gap ? html`<span class=${`badge ${one.gap === "deleted" ? "" : "bad"}`}>${one.gap}</span>` : one.sealed ? "sealed" : html`<span class="badge accent">active</span>`}</td></tr>`)}
          </tbody></table></div>
        ${segments.length > LISTED && html`<p class="muted">The newest ${LISTED} are listed.</p>`}`}
  </section>`;
}
