// @ts-check
/** Queues: how many jobs are ready, in flight, delayed or dead; who holds which; nack, extend, redrive. */
import { all, entry, get, post, topicPath } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { ago, count, duration, serverNow, short } from "../lib/format.js";
import { preview } from "../lib/json.js";
import { usePoll } from "../lib/poll.js";
import { origin, redriveAll, redriveOne } from "../lib/redrive.js";
import { address, replace } from "../lib/route.js";
import { History } from "../lib/series.js";
import { Chart } from "../ui/chart.js";
import { Button, Done, Empty, Failed, curl } from "../ui/parts.js";

const ASKED = 50;
const LETTERS = 50;
/** @type {Map<string, History>} */
const histories = new Map();
/** @type {import("../ui/chart.js").Line[]} */
const LINES = [
  { name: "ready", label: "ready", color: "--write", unit: short },
  { name: "in_flight", label: "in flight", color: "--read", unit: short },
  { name: "delayed", label: "delayed", color: "--deliver", unit: short },
  { name: "dead_lettered", label: "dead-lettered", color: "--jobs", unit: short },
];

/** @param {string} name @param {any} queue */
function note(name, queue) {
  const history = histories.get(name) ?? new History(150);
  histories.set(name, history);
  history.push(Date.now() / 1000, queue);
  return history;
}

/** @param {string} text @param {AbortSignal} signal */
async function askAll(text, signal) {
  const topics = (await all("/v0/topics", "topics", { signal })).filter((one) => one.type === "queue" && one.topic.toLowerCase().includes(text.toLowerCase()));
  const states = await Promise.all(topics.slice(0, ASKED).map((one) => get(topicPath(one.topic, "?touch=false"), { signal }).catch(() => null)));
  for (const one of states) if (one?.queue) note(one.topic, one.queue);
  return topics.map((one, at) => states[at] ?? one);
}

/** @param {{name: string, query: URLSearchParams}} props */
export function QueuesPage({ name, query }) {
  return name ? html`<${Queue} key=${name} name=${name} />` : html`<${Queues} query=${query} />`;
}

/** @param {{query: URLSearchParams}} props */
function Queues({ query }) {
  const text = query.get("q") ?? "";
  const found = usePoll((signal) => askAll(text, signal), 3000, [text]);
  const body = '{"type":"queue","max_deliveries":5,"dead_letter":"jobs.dead"}';
  return html`
    <div class="head"><h1>Queues</h1><span class="muted tab">${found.value ? count(found.value.length) : ""}</span><span class="grow"></span>
      <div class="filters"><input type="search" aria-label="search queues" placeholder="Search" value=${text} onInput=${(/** @type {any} */ event) => replace(address("queues", "", { q: event.currentTarget.value }))} /></div></div>
    <div class="grid">
      <${Failed} error=${found.error} />
      <section class="panel flush">
        ${found.value && found.value.length === 0 && text
          ? html`<${Empty} title="No queue has this in its name" />`
          : found.value && found.value.length === 0
          ? html`<${Empty} title="There is no queue yet" text="A queue is a topic whose records are leased to workers as jobs:" command=${curl("PUT", "/v0/topics/jobs", body)} />`
          : html`<div class="scroll" tabindex="0" role="region" aria-label="queues"><table>
              <thead><tr><th>queue</th><th class="num">ready</th><th class="num">in flight</th><th class="num">delayed</th><th class="num">dead-lettered</th><th>dead letters</th></tr></thead>
              <tbody>${(found.value ?? []).slice(0, ASKED).map((/** @type {any} */ one) => html`<tr key=${one.topic}>
                <td><a href=${address("queues", one.topic)}>${one.topic}</a></td>
                <td class="num">${count(one.queue?.ready)}</td><td class="num">${count(one.queue?.in_flight)}</td><td class="num">${count(one.queue?.delayed)}</td>
                <td class="num">${one.queue?.dead_lettered ? html`<span class="badge bad">${count(one.queue.dead_lettered)}</span>` : count(one.queue?.dead_lettered)}</td>
                <td>${one.config?.dead_letter ? html`<a href=${address("topics", one.config.dead_letter)}>${one.config.dead_letter}</a>` : html`<span class="muted">–</span>`}</td></tr>`)}</tbody>
            </table></div>`}
        ${(found.value?.length ?? 0) > ASKED && html`<p class="empty">The first ${ASKED} are listed; a search finds the others.</p>`}
      </section>
    </div>`;
}

/** @param {{name: string}} props */
function Queue({ name }) {
  const state = usePoll(async (signal) => {
    const told = await get(topicPath(name, "?touch=false"), { signal });
    if (told.queue) note(name, told.queue);
    return told;
  }, 2000, [name]);
  const leases = usePoll((signal) => get(topicPath(name, "/leases?page_size=100"), { signal }), 2000, [name]);
  const now = state.value;
  if (now && !now.queue) return html`<div class="head"><h1>${name}</h1></div><section class="panel flush"><${Empty} title="This is a log, not a queue" text="Only topics of type queue have jobs."><a href=${address("topics", name)}>Look at the topic</a><//></section>`;
  const queue = now?.queue ?? {};
  const again = () => {
    state.again();
    leases.again();
  };
  return html`
    <div class="head"><h1>${name}</h1><span class="badge">queue</span><span class="grow"></span><a class="button" href=${address("topics", name)}>Topic</a></div>
    <div class="grid">
      <${Failed} error=${state.error ?? leases.error} />
      <div class="tiles">${LINES.map((line, at) => html`<div class="tile" key=${line.name}><div class="name"><span class=${`swatch ${["write", "read", "deliver", "jobs"][at]}`}></span>${line.label}</div><div class="value">${count(queue[line.name])}</div></div>`)}</div>
      <section class="panel"><h2>Jobs over time</h2><${Chart} lines=${LINES} history=${histories.get(name) ?? new History(1)} label="jobs" height=${150} /></section>
      <${InFlight} name=${name} leases=${leases.value} lease_ms=${now?.config.lease_ms ?? 30000} again=${again} />
      ${now?.config.dead_letter && html`<${DeadLetters} dead=${now.config.dead_letter} queue=${name} again=${again} />`}
    </div>`;
}

/** @param {{name: string, leases: any, lease_ms: number, again: () => void}} props */
function InFlight({ name, leases, lease_ms, again }) {
  const [error, setError] = useState(/** @type {any} */ (null));
  const act = async (/** @type {string} */ verb, /** @type {any} */ one, /** @type {any} */ more) => {
    setError(null);
    try {
      const told = await post(topicPath(name, `/${verb}`), { node: one.node, seqs: [one.$seq], lease_ids: [one.lease_id], ...more });
      if (told.skipped.length) setError({ code: "skipped", message: `Job ${one.$seq} is not held under this lease any more.` });
      again();
    } catch (failed) {
      setError(failed);
    }
  };
  const held = leases?.leases ?? [];
  const delayed = leases?.delayed ?? [];
  const at = serverNow();
  return html`<section class="panel flush">
    <h2>In flight <span class="muted tab">${leases ? `${count(held.length)}${leases.next_cursor ? "+" : ""}` : ""}</span></h2>
    <${Failed} error=${error} onClose=${() => setError(null)} />
    ${leases && held.length === 0
      ? html`<p class="empty">Nobody holds a job now.</p>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="jobs in flight"><table>
          <thead><tr><th class="num">job</th><th>holder</th><th class="num">delivery</th><th class="num">deadline in</th><th>lease</th><th><span class="hidden">actions</span></th></tr></thead>
          <tbody>${held.map((/** @type {any} */ one) => html`<tr key=${one.lease_id}>
            <td class="num"><a href=${address("topics", name, { from: one.$seq })}>${one.$seq}</a></td><td>${one.node}</td><td class="num">${one.deliveries}</td>
            <td class="num">${one.deadline > at ? duration(one.deadline - at) : "over"}</td><td><code>${one.lease_id}</code></td>
            <td><div class="row end"><${Button} kind="small" needs=${["write"]} label=${`extend the lease of job ${one.$seq}`} onClick=${() => void act("extend", one, { lease_ms })}>Extend<//>
              <${Button} kind="small" needs=${["write"]} label=${`nack job ${one.$seq}: give it back`} onClick=${() => void act("nack", one, {})}>Nack<//></div></td></tr>`)}</tbody>
        </table></div>`}
    ${delayed.length > 0 && html`<h2>Delayed <span class="muted tab">${count(delayed.length)}</span></h2>
      <div class="scroll" tabindex="0" role="region" aria-label="delayed jobs"><table class="fit"><thead><tr><th class="num">job</th><th class="num">ready in</th></tr></thead>
      <tbody>${delayed.map((/** @type {any} */ one) => html`<tr key=${one.$seq}><td class="num">${one.$seq}</td><td class="num">${duration(Math.max(one.ready_at - at, 0))}</td></tr>`)}</tbody></table></div>`}
  </section>`;
}

/** @param {{dead: string, queue: string, again: () => void}} props */
function DeadLetters({ dead, queue, again }) {
  const found = usePoll(async (signal) => {
    const state = await entry(dead, { signal });
    if (!state) return { type: "log", count: 0, letters: [] };
    const page = await post(topicPath(dead, "/diff"), { from_seq: Math.max(state.earliest_seq - 1, 0), limit: LETTERS, include_tags: true }, { signal });
    return { type: state.type, count: state.count, letters: page.records };
  }, 3000, [dead]);
  const [error, setError] = useState(/** @type {any} */ (null));
  const [told, setTold] = useState("");
  const [busy, setBusy] = useState(false);
  const run = async (/** @type {() => Promise<number>} */ work) => {
    setError(null);
    setTold("");
    setBusy(true);
    try {
      const done = await work();
      setTold(done ? `${count(done)} dead letter${done === 1 ? " is" : "s are"} back in the queue.` : "Nothing went back: no dead letter was there any more.");
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
    found.again();
    again();
  };
  const now = found.value;
  const needs = now?.type === "queue" ? ["read", "write"] : ["write", "delete"];
  return html`<section class="panel flush">
    <h2>Dead letters in <a href=${address("topics", dead)}>${dead}</a> <span class="muted tab">${count(now?.count)}</span>
      <span class="grow"></span>
      <${Button} kind="small" needs=${needs} busy=${busy} disabled=${!now?.count} why="There is no dead letter." onClick=${() => void run(() => redriveAll(dead, now?.type ?? "log", (done) => setTold(`${count(done)} so far…`)))}>Redrive all<//></h2>
    <${Failed} error=${error ?? found.error} />
    ${told && html`<${Done} text=${told} />`}
    ${now && now.letters.length === 0
      ? html`<p class="empty">No job failed too often.</p>`
      : html`<div class="scroll" tabindex="0" role="region" aria-label="dead letters"><table>
          <thead><tr><th class="num">seq</th><th>from</th><th class="num">deliveries</th><th>moved</th><th>data</th><th><span class="hidden">actions</span></th></tr></thead>
          <tbody>${(now?.letters ?? []).map((/** @type {any} */ one) => html`<tr key=${one.$seq}>
            <td class="num"><a href=${address("topics", dead, { from: one.$seq })}>${one.$seq}</a></td><td>${origin(one) || html`<span class="muted">${queue}?</span>`}</td><td class="num">${String(one.meta?.$dead_letter_deliveries ?? "–")}</td>
            <td>${ago(one.$ts)}</td><td class="mono free">${preview(one.data, 80)}</td>
            <td><div class="row end">${now?.type === "log" && origin(one) && html`<${Button} kind="small" needs=${needs} busy=${busy} label=${`redrive ${one.$seq}`} onClick=${() => void run(() => redriveOne(dead, one.$seq))}>Redrive<//>`}</div></td></tr>`)}</tbody>
        </table></div>`}
  </section>`;
}
