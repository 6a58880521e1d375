// @ts-check
/** Pipelines: runs of jobs as they tell of themselves in `$pipelines` (10 K-40), live. */
import { entry, post, topicPath } from "../lib/api.js";
import { html, useEffect, useState } from "../lib/dom.js";
import { bytes, count, date, duration } from "../lib/format.js";
import { preview } from "../lib/json.js";
import { live } from "../lib/live.js";
import { address } from "../lib/route.js";
import { Empty, Failed, curl } from "../ui/parts.js";

const NAME = "$pipelines";
const READ = 1000;
const SHOWN = 200;
const AGAIN_MS = 5000;

/** @typedef {{job: string, run: string, topics: string[], started: number | null, ended: number | null, ok: boolean | null, rows: number | null,
 *   bytes: number | null, out: string, error: string, seq: number}} Run */

/** Text of whatever a job wrote.
 * @param {unknown} value */
const text = (value) => (value === null || value === undefined ? "" : typeof value === "string" ? value : preview(value));
/** @param {unknown} value */
const number = (value) => (typeof value === "number" ? value : null);

/** A record of a run; the one at its end replaces the one at its start.
 * @param {Map<string, Run>} runs @param {any} record */
function add(runs, record) {
  const told = record.data;
  if (told === null || typeof told !== "object") return;
  const run = text(told.run) || String(record.$seq);
  const topics = Array.isArray(told.topics) ? told.topics.map(text) : [];
  runs.delete(run);
  runs.set(run, {
    job: text(told.job) || text(record.$tag), run, topics, started: number(told.started_ms), ended: number(told.ended_ms),
    ok: typeof told.ok === "boolean" ? told.ok : null, rows: number(told.rows), bytes: number(told.bytes), out: text(told.out),
    error: text(told.error), seq: record.$seq,
  });
}

export function PipelinesPage() {
  const [state, setState] = useState(/** @type {{runs: Run[] | null, error: any}} */ ({ runs: null, error: null }));
  useEffect(() => {
    const calling = new AbortController();
    const runs = /** @type {Map<string, Run>} */ (new Map());
    let leave = /** @type {(() => number) | null} */ (null);
    let timer = 0;
    const show = () => setState({ runs: [...runs.values()].reverse(), error: null });
    const begin = async () => {
      try {
        const found = await entry(NAME, { signal: calling.signal });
        if (!found) {
          setState({ runs: [], error: null });
          timer = setTimeout(() => void begin(), AGAIN_MS);
          return;
        }
        const head = found.head_seq;
        const page = await post(topicPath(NAME, "/diff"), { from_seq: Math.max(head - READ, 0), limit: READ, include_tags: true, max_batch_bytes: 8 << 20 }, { signal: calling.signal });
        for (const record of page.records) add(runs, record);
        show();
        leave = live.follow(NAME, page.next_from_seq, (event) => {
          if (event.kind === "records") for (const record of event.records) add(runs, record);
          if (event.kind === "refused") setState({ runs: [...runs.values()].reverse(), error: event.error });
          else show();
        });
      } catch (error) {
        if (calling.signal.aborted) return;
        setState({ runs: null, error });
        timer = setTimeout(() => void begin(), AGAIN_MS);
      }
    };
    void begin();
    return () => {
      calling.abort();
      clearTimeout(timer);
      leave?.();
    };
  }, []);
  const runs = state.runs ?? [];
  return html`
    <div class="head"><h1>Pipelines</h1><span class="muted tab">${state.runs ? `${count(runs.length)} runs` : ""}</span><span class="grow"></span>
      ${runs.length > 0 && html`<a class="button" href=${address("topics", NAME)}>Records</a>`}</div>
    <div class="grid">
      <${Failed} error=${state.error} />
      <section class="panel flush">
        ${state.runs && runs.length === 0
          ? html`<${Empty} title="No job has run yet" text="Jobs that are given this server's address tell of their runs here. So can yours:" command=${curl("POST", "/v0/topics/$pipelines", '{"records":[{"tag":"archive","data":{"job":"archive","run":"r1","topics":["orders"],"started_ms":0,"ended_ms":null}}]}')} />`
          : html`<div class="scroll" tabindex="0" role="region" aria-label="runs"><table>
              <thead><tr><th>job</th><th>state</th><th>topics</th><th>started</th><th class="num">took</th><th class="num">rows</th><th class="num">bytes</th><th>output</th></tr></thead>
              <tbody>${runs.slice(0, SHOWN).map((one) => html`<tr key=${one.run}>
                <td title=${one.run}>${one.job}</td>
                <td>${one.ended === null ? html`<span class="badge accent">running</span>` : one.ok ? html`<span class="badge good">done</span>` : html`<span class="badge bad">failed</span>`}</td>
                <td>${one.topics.slice(0, 3).join(", ")}${one.topics.length > 3 ? ` +${one.topics.length - 3}` : ""}</td>
                <td class="tab">${date(one.started)}</td><td class="num">${one.ended !== null && one.started !== null ? duration(one.ended - one.started) : "–"}</td>
                <td class="num">${count(one.rows)}</td><td class="num">${bytes(one.bytes)}</td>
                <td class="free">${one.error ? html`<span class="bad">${one.error}</span>` : html`<span class="mono">${one.out}</span>`}</td></tr>`)}</tbody>
            </table></div>`}
      </section>
    </div>`;
}
