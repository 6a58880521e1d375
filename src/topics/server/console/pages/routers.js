// @ts-check
/** Routers: which topic is copied into which, how far behind, how fast; add and remove. */
import { all, del, put, routerPath } from "../lib/api.js";
import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { count, rate } from "../lib/format.js";
import { NODE, layout } from "../lib/graph.js";
import { usePoll } from "../lib/poll.js";
import { address, replace } from "../lib/route.js";
import { perSecond } from "../lib/series.js";
import { Button, Check, Dialog, Empty, Failed, Field, Typed, curl } from "../ui/parts.js";

/** @typedef {import("../lib/graph.js").Edge} Edge */
const DRAWN = 200;
/** @type {Map<string, {total: number, at: number}>} */
const seen = new Map();

/** @param {AbortSignal} signal @returns {Promise<Edge[]>} */
async function ask(signal) {
  const found = await all("/v0/routers", "routers", { signal });
  const at = performance.now();
  for (const one of found) {
    const before = seen.get(one.router);
    one.rate = before ? perSecond(one.forwarded_total, before.total, at - before.at) : null;
    seen.set(one.router, { total: one.forwarded_total, at });
  }
  return found;
}

/** @param {{query: URLSearchParams}} props */
export function RoutersPage({ query }) {
  const found = usePoll(ask, 3000, []);
  const [dialog, setDialog] = useState(/** @type {any} */ (null));
  useEffect(() => {
    if (query.get("new")) setDialog({ kind: "add" });
  }, [query]);
  const text = query.get("q") ?? "";
  const rows = (found.value ?? []).filter((one) => `${one.router} ${one.source} ${one.dest}`.toLowerCase().includes(text.toLowerCase()));
  const closed = () => {
    setDialog(null);
    if (query.get("new")) replace(address("routers", "", { q: text }));
  };
  const body = '{"source":"orders","dest":"orders.eu","filter":"eu:*"}';
  return html`
    <div class="head"><h1>Routers</h1><span class="muted tab">${found.value ? count(rows.length) : ""}</span><span class="grow"></span>
      <div class="filters"><input type="search" aria-label="search routers" placeholder="Search" value=${text} onInput=${(/** @type {any} */ event) => replace(address("routers", "", { q: event.currentTarget.value }))} />
      <${Button} kind="main" needs=${["admin"]} onClick=${() => setDialog({ kind: "add" })}>New router<//></div></div>
    <div class="grid">
      <${Failed} error=${found.error} />
      ${found.value && found.value.length > 0 && rows.length === 0
        ? html`<section class="panel flush"><${Empty} title="No router has this in a name" /></section>`
        : found.value && rows.length === 0
        ? html`<section class="panel flush"><${Empty} title="No topic is copied into another" text="A router copies what is written from now on, all of it or by tag:" command=${curl("PUT", "/v0/routers/orders-eu", body)} /></section>`
        : html`
          <section class="panel"><h2>Graph</h2><${Graph} edges=${rows.slice(0, DRAWN)} />${rows.length > DRAWN && html`<p class="muted">The first ${DRAWN} are drawn and listed; a search finds the others.</p>`}</section>
          <section class="panel flush"><div class="scroll" tabindex="0" role="region" aria-label="routers"><table>
            <thead><tr><th>router</th><th>from</th><th>to</th><th>guarantee</th><th class="num">copied</th><th class="num">per s</th><th class="num">lag</th><th><span class="hidden">actions</span></th></tr></thead>
            <tbody>${rows.slice(0, DRAWN).map((one) => html`<tr key=${one.router}><td>${one.router}</td><td><a href=${address("topics", one.source)}>${one.source}</a></td><td><a href=${address("topics", one.dest)}>${one.dest}</a></td>
              <td>${one.guarantee.replaceAll("_", " ")}</td><td class="num">${count(one.forwarded_total)}</td><td class="num">${rate(one.rate)}</td>
              <td class="num">${one.lag ? html`<span class="badge warn">${count(one.lag)}</span>` : "0"}</td>
              <td><div class="row end"><${Button} kind="small danger" needs=${["delete"]} label=${`remove ${one.router}`} onClick=${() => setDialog({ kind: "remove", one })}>Remove<//></div></td></tr>`)}</tbody>
          </table></div></section>`}
    </div>
    ${dialog?.kind === "add" && html`<${Add} taken=${(found.value ?? []).map((one) => one.router)} onClose=${closed} onDone=${() => {
      closed();
      found.again();
    }} />`}
    ${dialog?.kind === "remove" && html`<${Typed} title="Remove this router" name=${dialog.one.router} action="Remove" onClose=${closed} onDone=${async () => {
      await del(routerPath(dialog.one.router));
      closed();
      found.again();
    }}><p>Nothing more is copied from <strong>${dialog.one.source}</strong> to <strong>${dialog.one.dest}</strong>. Copies that were made stay.</p><//>`}`;
}

/** @param {{edges: Edge[]}} props */
function Graph({ edges }) {
  const shape = edges.map((one) => `${one.source}>${one.dest}`).join("|");
  const { nodes, width, height } = useMemo(() => layout(edges), [shape]);
  if (!edges.length) return null;
  return html`<div class="graph scroll" tabindex="0" role="region" aria-label="graph of routers">
    <svg width=${width} height=${height} viewBox=${`0 0 ${width} ${height}`} preserveAspectRatio="xMinYMin" role="group" aria-label=${`${nodes.size} topics, ${edges.length} routers`}>
      <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path class="arrow" d="M0 0L8 4L0 8z" /></marker></defs>
      ${edges.map((one) => html`<${Arrow} key=${one.router} one=${one} from=${nodes.get(one.source)} to=${nodes.get(one.dest)} />`)}
      ${[...nodes.values()].map((node) => html`<a key=${node.name} class="node" href=${address("topics", node.name)} aria-label=${node.name}>
        <title>${node.name}</title>
        <rect x=${node.x} y=${node.y} width=${NODE.width} height=${NODE.height} rx="6" />
        <text x=${node.x + 12} y=${node.y + NODE.height / 2 + 5}>${node.name.length > 20 ? `${node.name.slice(0, 19)}…` : node.name}</text></a>`)}
    </svg>
  </div>`;
}

/** @param {{one: Edge, from: import("../lib/graph.js").Node | undefined, to: import("../lib/graph.js").Node | undefined}} props */
function Arrow({ one, from, to }) {
  if (!from || !to) return null;
  const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  const bend = x2 > x1 ? (x2 - x1) / 2 : 60;
  const path = `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2 - 2} ${y2}`;
  const said = one.lag ? `${rate(one.rate)}/s, lag ${count(one.lag)}` : `${rate(one.rate)}/s`;
  return html`<g><path class=${`edge ${one.lag ? "late" : ""}`} d=${path} marker-end="url(#arrow)"><title>${one.router}</title></path>
    <text class="edge-text" x=${(x1 + x2) / 2} y=${(y1 + y2) / 2 - 6} text-anchor="middle">${said}</text></g>`;
}

const TOPIC = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$/;
const ROUTER = /^[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}$/;

/** @param {{taken: string[], onClose: () => void, onDone: () => void}} props */
function Add({ taken, onClose, onDone }) {
  const [source, setSource] = useState("");
  const [dest, setDest] = useState("");
  const [name, setName] = useState("");
  const [filter, setFilter] = useState("");
  const [guarantee, setGuarantee] = useState("at_least_once");
  const [keepNode, setKeepNode] = useState(true);
  const [keepTag, setKeepTag] = useState(true);
  const [cycle, setCycle] = useState(false);
  const [error, setError] = useState(/** @type {any} */ (null));
  const named = name || (source && dest ? `${source}->${dest}` : "");
  const bad = (/** @type {string} */ text, /** @type {RegExp} */ pattern) => (text && !pattern.test(text) ? "Not a valid name." : "");
  const ready = TOPIC.test(source) && TOPIC.test(dest) && source !== dest && ROUTER.test(named);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!ready) return;
    if (taken.includes(named)) {
      setError({ code: "exists", message: "There is a router of this name." });
      return;
    }
    setError(null);
    try {
      await put(routerPath(named), { source, dest, filter: filter || null, guarantee, preserve_node: keepNode, preserve_tag: keepTag, allow_cycle: cycle });
      onDone();
    } catch (failed) {
      setError(failed);
    }
  };
  return html`<${Dialog} title="New router" onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      <div class="form-grid">
        <${Field} label="From topic" value=${source} onInput=${setSource} wrong=${bad(source, TOPIC)} autofocus />
        <${Field} label="To topic" value=${dest} onInput=${setDest} wrong=${bad(dest, TOPIC) || (dest && dest === source ? "Another one than the source." : "")} />
        <${Field} label="Name" value=${name} onInput=${setName} wrong=${bad(named, ROUTER)} placeholder=${named} hint="Empty: from->to." />
        <${Field} label="Only tags" value=${filter} onInput=${setFilter} placeholder="eu:*" hint="Empty: everything." />
        <${Field} label="Guarantee" value=${guarantee} onInput=${setGuarantee} options=${[["at_least_once", "at least once"], ["exactly_once", "exactly once"]]} />
      </div>
      <div class="row"><${Check} label="keep node" value=${keepNode} onInput=${setKeepNode} /><${Check} label="keep tag" value=${keepTag} onInput=${setKeepTag} /><${Check} label="may close a cycle" value=${cycle} onInput=${setCycle} /></div>
      <${Failed} error=${error} />
      <div class="row end"><${Button} onClick=${onClose}>Cancel<//><${Button} kind="main" type="submit" disabled=${!ready} why="Two topics are needed.">Add<//></div>
    </form>
  <//>`;
}
