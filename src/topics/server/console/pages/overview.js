// @ts-check
/** Overview: what goes through, how fast it is acknowledged, and how the store is doing. */
import { html } from "../lib/dom.js";
import { bytes, count, date, duration, latency, rate, short } from "../lib/format.js";
import { newest } from "../lib/losses.js";
import { metrics } from "../lib/metrics.js";
import { usePoll } from "../lib/poll.js";
import { address } from "../lib/route.js";
import { percentile, total } from "../lib/series.js";
import { useStore } from "../lib/store.js";
import { Bars, Chart } from "../ui/chart.js";
import { ClassBadge, Empty, Failed, curl } from "../ui/parts.js";

/** @type {import("../ui/chart.js").Line[]} */
const RATES = [
  { name: "written", label: "written", color: "--write", unit: rate },
  { name: "read", label: "read", color: "--read", unit: rate },
  { name: "delivered", label: "delivered", color: "--deliver", unit: rate },
];
/** @type {import("../ui/chart.js").Line[]} */
const ACKS = [
  { name: "p50", label: "p50", color: "--write", unit: latency },
  { name: "p99", label: "p99", color: "--deliver", unit: latency },
];
const LADDER = ["coalesce", "wider commits", "defer", "refuse"];

export function OverviewPage() {
  const { now, error, history, recent } = useStore(metrics);
  if (!now) {
    return html`<div class="head"><h1>Overview</h1></div>
      ${error ? html`<${Failed} error=${error} />` : html`<p class="muted">Asking the server…</p>`}`;
  }
  return html`
    <div class="head">
      <h1>Overview</h1>
      <span class="grow"></span>
      <span class="muted tab">up ${duration(now.uptime_ms)}</span>
    </div>
    <div class="grid">
      <${Failed} error=${error} />
      ${!now.ready && html`<div class="notice warn" role="status">The server is not ready: ${now.replay_progress < 1 ? `it replays its log, ${Math.round(now.replay_progress * 100)} %` : "a part of its log takes no writes"}.</div>`}
      ${now.topics === 0 && html`<section class="panel flush"><${First} /></section>`}
      <${Tiles} now=${now} history=${history} />
      <div class="grid two">
        <section class="panel">
          <h2>Records per second</h2>
          <${Chart} lines=${RATES} history=${history} label="records per second" />
          <${Legend} history=${history} lines=${RATES} kinds=${["write", "read", "deliver"]} />
        </section>
        <section class="panel">
          <h2>Time to acknowledge a write</h2>
          <${Chart} lines=${ACKS} history=${history} label="acknowledgement latency" />
          <${Legend} history=${history} lines=${ACKS} kinds=${["write", "deliver"]} />
        </section>
      </div>
      <div class="grid three">
        <${Pressure} now=${now} />
        <${Acks} recent=${recent} />
        <section class="panel">
          <h2>Syncs of the log <span class="muted">last 30 s</span></h2>
          <${Bars} histogram=${recent.syncs} unit=${(/** @type {number} */ us) => latency(us / 1000)} label="syncs by duration" />
          <p class="muted tab">${rate(history.last("syncs"))} per second, ${count(now.wal.fsyncs)} since the start</p>
        </section>
        <${Disk} now=${now} />
        <${Shards} now=${now} />
        <${Losses} now=${now} />
      </div>
      <section class="panel">
        <h2>Warnings</h2>
        ${now.warnings.length === 0
          ? html`<p class="muted">None since the start.</p>`
          : html`<ul class="told">${[...now.warnings].reverse().map((one, at) => html`<li key=${at}><time>${date(one.ts)}</time><span>${one.message}</span></li>`)}</ul>`}
      </section>
    </div>
  `;
}

function First() {
  const body = '{"records":[{"data":{"sku":"B-12","qty":3},"tag":"order:991"}]}';
  return html`<${Empty} title="Nothing is stored yet" text="The first write makes its topic. Try it:" command=${curl("POST", "/v0/topics/orders", body)} />`;
}

/** @param {{now: any, history: import("../lib/series.js").History}} props */
function Tiles({ now, history }) {
  const tiles = [
    ["Written", rate(history.last("written")), "/s", "write"],
    ["Read", rate(history.last("read")), "/s", "read"],
    ["Delivered", rate(history.last("delivered")), "/s", "deliver"],
    ["Jobs claimed", rate(history.last("jobs")), "/s", "jobs"],
    ["Topics", short(now.topics), now.queue_topics ? `${now.queue_topics} queues` : "", ""],
    ["Live records", short(now.records_live), bytes(now.bytes_live), ""],
    ["Streams", short(now.sse_connections), "open", ""],
  ];
  return html`<div class="tiles">
    ${tiles.map(
      ([name, value, unit, kind]) => html`<div class="tile" key=${name}>
        <div class="name">${kind && html`<span class=${`swatch ${kind}`}></span>`}${name}</div>
        <div class="value">${value} <small>${unit}</small></div>
      </div>`,
    )}
  </div>`;
}

/** @param {{history: import("../lib/series.js").History, lines: import("../ui/chart.js").Line[], kinds: string[]}} props */
function Legend({ history, lines, kinds }) {
  return html`<ul class="legend">
    ${lines.map((line, at) => html`<li key=${line.name}><span class=${`swatch ${kinds[at]}`}></span>${line.label} <span class="muted tab">${line.unit(history.last(line.name))}</span></li>`)}
  </ul>`;
}

/** @param {{now: any}} props */
function Pressure({ now }) {
  const share = Math.round(now.pressure * 100);
  const kind = now.pressure > 0.8 ? "bad" : now.pressure > 0.4 ? "warn" : "good";
  return html`<section class="panel">
    <h2>Pressure <span class=${`badge ${kind}`}>${share} %</span></h2>
    <div class="meter" role="meter" aria-label="pressure" aria-valuemin="0" aria-valuemax="100" aria-valuenow=${share}>
      <span class=${kind} style=${{ width: `${share}%` }}></span>
    </div>
    <ol class="steps" aria-label="load-shedding ladder">
      ${LADDER.map((name, at) => html`<li key=${name} class=${now.throttle_level > at ? "on" : ""} aria-current=${now.throttle_level === at + 1 ? "step" : undefined}>${at + 1} ${name}</li>`)}
    </ol>
    <p class="muted">${now.throttle_level ? `Step ${now.throttle_level} of the ladder is in force.` : "Nobody is slowed down."}</p>
  </section>`;
}

/** @param {{recent: any}} props */
function Acks({ recent }) {
  return html`<section class="panel">
    <h2>Acknowledgements by class <span class="muted">last 30 s</span></h2>
    <table>
      <thead><tr><th>class</th><th class="num">writes</th><th class="num">p50</th><th class="num">p99</th></tr></thead>
      <tbody>
        ${Object.keys(recent.acks).map((name) => {
          const one = recent.acks[name];
          return html`<tr key=${name}><td><${ClassBadge} name=${name} /></td><td class="num">${short(total(one))}</td><td class="num">${latency(percentile(one, 0.5))}</td><td class="num">${latency(percentile(one, 0.99))}</td></tr>`;
        })}
      </tbody>
    </table>
  </section>`;
}

/** @param {{now: any}} props */
function Disk({ now }) {
  const { hot, cold } = now.bytes_by_tier;
  const all = Math.max(hot + cold, 1);
  return html`<section class="panel">
    <h2>Segment data by tier</h2>
    <div class="meter" role="img" aria-label=${`hot ${bytes(hot)}, cold ${bytes(cold)}`}>
      <span class="live" style=${{ width: `${(hot / all) * 100}%` }}></span><span class="cold" style=${{ width: `${(cold / all) * 100}%` }}></span>
    </div>
    <ul class="legend"><li><span class="swatch live"></span>hot ${bytes(hot)}</li><li><span class="swatch read"></span>cold ${bytes(cold)}</li></ul>
    <p class="muted tab">Log: ${bytes(now.wal.bytes_written)} written since the start, ${count(now.wal.rotations)} rotations</p>
  </section>`;
}

const STATES = /** @type {Record<string, string>} */ ({ ok: "good", full: "warn", read_only: "bad" });
/** @param {{now: any}} props */
function Shards({ now }) {
  return html`<section class="panel">
    <h2>Log shards</h2>
    <table>
      <thead><tr><th>shard</th><th>state</th><th class="num">waiting</th></tr></thead>
      <tbody>
        ${now.shards.map((/** @type {any} */ one) => html`<tr key=${one.name}><td>${one.name}</td><td><span class=${`badge ${STATES[one.state] ?? ""}`}>${one.state}</span></td><td class="num">${count(one.queue_depth)}</td></tr>`)}
      </tbody>
    </table>
    <p class="muted">${now.shards.length ? "" : "Everything is kept in memory."}</p>
  </section>`;
}

/** What was lost without having been asked for: the newest of `$loss` [X-1].
 * @param {{now: any}} props */
function Losses({ now }) {
  const reasons = Object.entries(now.lost_records).filter(([, lost]) => /** @type {number} */ (lost) > 0);
  const all = reasons.reduce((sum, [, lost]) => sum + /** @type {number} */ (lost), 0);
  const told = usePoll(async (signal) => (await newest(4, signal)).reverse(), 5000, []);
  return html`<section class="panel">
    <h2>Losses <span class="muted">since the start</span></h2>
    ${all === 0
      ? html`<p class="muted">No record was lost to a cap, age or damage.</p>`
      : html`<div class="row">${reasons.map(([reason, lost]) => html`<span key=${reason} class="badge warn">${reason} ${count(/** @type {number} */ (lost))}</span>`)}</div>`}
    <ul class="told">
      ${(told.value ?? []).map((/** @type {any} */ one) => html`<li key=${one.$seq}><time>${date(one.$ts)}</time>
        <span><a href=${address("topics", one.data.topic)}>${one.data.topic}</a> ${count(one.data.gap_from)} – ${count(one.data.gap_to)} <span class="muted">${one.data.reason}</span></span></li>`)}
    </ul>
  </section>`;
}
