// @ts-check
/** Asking for a key, and what the one in use may do. It stays in this tab's session storage and nowhere else [U-30]. */
import { access, enter, keepKey, scopes } from "../lib/api.js";
import { html, useState } from "../lib/dom.js";
import { useStore } from "../lib/store.js";
import { Button, Dialog, Failed, Field } from "./parts.js";

/** @param {{wrong: boolean}} props */
export function KeyPrompt({ wrong }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(/** @type {any} */ (wrong ? { code: "unauthorized", message: "The server does not know this key." } : null));
  const [busy, setBusy] = useState(false);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (!text || busy) return;
    if (!/^[\x21-\x7e]+$/.test(text.trim())) {
      setError({ code: "unauthorized", message: "No key has such characters in it." });
      return;
    }
    setBusy(true);
    setError(null);
    keepKey(text.trim());
    try {
      await enter();
      if (access.value === "wrong" || access.value === "asked") setError({ code: "unauthorized", message: "The server does not know this key." });
    } catch (failed) {
      setError(failed);
    }
    setBusy(false);
  };
  return html`<main class="gate" id="main" tabindex="-1"><section class="panel">
    <form class="stack" onSubmit=${submit}>
      <h1>This server needs a key</h1>
      <p class="muted">It is kept for this tab only, until it is closed.</p>
      <${Field} label="Key" type="password" value=${text} onInput=${setText} autofocus autocomplete="current-password" />
      <${Failed} error=${error} />
      <div class="row end"><${Button} kind="main" type="submit" disabled=${!text} why="Type the key." busy=${busy}>Enter<//></div>
    </form>
  </section></main>`;
}

const ABOUT = /** @type {[import("../lib/api.js").Scope, string][]} */ ([
  ["read", "see topics, records and metrics"],
  ["write", "publish, and work on jobs"],
  ["delete", "delete records, topics and routers"],
  ["admin", "create and configure topics and routers, see settings"],
]);

/** @param {{onClose: () => void}} props */
export function KeyDialog({ onClose }) {
  const has = useStore(scopes);
  const leave = () => {
    keepKey("");
    location.reload();
  };
  return html`<${Dialog} title="Your key" onClose=${onClose}>
    <table><tbody>${ABOUT.map(([scope, text]) => html`<tr key=${scope}><td><span class=${`badge ${has[scope] === false ? "bad" : has[scope] ? "good" : ""}`}>${scope}</span></td><td>${text}</td>
      <td>${has[scope] === false ? "no" : has[scope] ? "yes" : "not known yet"}</td></tr>`)}</tbody></table>
    <p class="muted">What the key may not do is shown, and cannot be pressed.</p>
    <div class="row end"><${Button} onClick=${leave}>Forget the key<//></div>
  <//>`;
}
