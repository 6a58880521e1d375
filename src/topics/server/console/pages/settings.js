// @ts-check
/** Settings in force, where each came from, what keys may do, and what runs. */
import { get } from "../lib/api.js";
import { html } from "../lib/dom.js";
import { usePoll } from "../lib/poll.js";
import { address, replace } from "../lib/route.js";
import { Check, Failed, useReason } from "../ui/parts.js";

/** @param {{query: URLSearchParams}} props */
export function SettingsPage({ query }) {
  const reason = useReason(["admin"]);
  const told = usePoll((signal) => (reason ? Promise.resolve(null) : get("/v0/settings", { signal })), 30_000, [reason]);
  const text = query.get("q") ?? "";
  const changed = query.get("changed") === "1";
  const show = (/** @type {Record<string, string | null>} */ more) => replace(address("settings", "", { q: text, changed: changed ? "1" : null, ...more }));
  const now = told.value;
  const rows = (now?.settings ?? []).filter((/** @type {any} */ one) => one.name.toLowerCase().includes(text.toLowerCase()) && (!changed || one.source !== "default"));
  return html`
    <div class="head">
      <h1>Settings</h1><span class="grow"></span>
      <div class="filters"><input type="search" aria-label="search settings" placeholder="Search" value=${text} onInput=${(/** @type {any} */ event) => show({ q: event.currentTarget.value })} />
      <${Check} label="changed only" value=${changed} onInput=${(/** @type {boolean} */ on) => show({ changed: on ? "1" : null })} /></div>
    </div>
    <div class="grid">
      ${reason && html`<div class="notice warn" role="status">${reason} Settings are shown to administrators only.</div>`}
      <${Failed} error=${told.error} />
      ${now && html`
        <section class="panel">
          <h2>What runs</h2>
          <dl class="facts"><div><dt>Version</dt><dd>${now.build.version}</dd></div><div><dt>Kernel</dt><dd>${now.build.kernel}</dd></div><div><dt>Python</dt><dd>${now.build.python}</dd></div></dl>
        </section>
        <section class="panel">
          <h2>Keys <span class="muted tab">${now.keys.length}</span></h2>
          ${now.keys.length === 0
            ? html`<p class="muted">No key is configured: everybody who reaches the server may do everything.</p>`
            : html`<table><thead><tr><th>scopes</th><th>names</th></tr></thead><tbody>${now.keys.map((/** @type {any} */ one, /** @type {number} */ at) => html`<tr key=${at}><td>${one.scopes.map((/** @type {string} */ scope) => html`<span key=${scope} class="badge">${scope}</span> `)}</td><td>${one.prefixes.length ? one.prefixes.join(", ") : html`<span class="muted">all</span>`}</td></tr>`)}</tbody></table>`}
        </section>
        <section class="panel flush">
          <div class="scroll" tabindex="0" role="region" aria-label="settings"><table>
            <thead><tr><th>variable</th><th>value</th><th>from</th></tr></thead>
            <tbody>${rows.map((/** @type {any} */ one) => html`<tr key=${one.name}><td><code>${one.name}</code></td><td class="mono free">${one.value === null ? html`<span class="muted">unset</span>` : String(Array.isArray(one.value) ? one.value.join(", ") || "–" : one.value)}</td><td><span class=${`badge ${one.source === "default" ? "" : "accent"}`}>${one.source}</span></td></tr>`)}</tbody>
          </table></div>
        </section>`}
    </div>`;
}
