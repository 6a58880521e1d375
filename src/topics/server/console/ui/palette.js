// @ts-check
/** Ctrl-K: go to a topic or do something, by typing a part of its name. */
import { all } from "../lib/api.js";
import { html, useEffect, useMemo, useState } from "../lib/dom.js";
import { address, go } from "../lib/route.js";
import { known } from "../lib/topics.js";
import { Dialog } from "./parts.js";

const SHOWN = 50;

/** @typedef {{text: string, about: string, to: string}} Choice */

/** @param {{onClose: () => void, actions: Choice[]}} props */
export function Palette({ onClose, actions }) {
  const [text, setText] = useState("");
  const [at, setAt] = useState(0);
  const [names, setNames] = useState(known.names);
  useEffect(() => {
    const calling = new AbortController();
    all("/v0/topics?system=true", "topics", { signal: calling.signal }).then(
      (found) => setNames((known.names = found.map((one) => one.topic))),
      () => undefined,
    );
    return () => calling.abort();
  }, []);
  const choices = useMemo(() => {
    const wanted = text.toLowerCase();
    const topics = names.map((name) => ({ text: name, about: "topic", to: address("topics", name) }));
    const fitting = [...actions, ...topics].filter((one) => one.text.toLowerCase().includes(wanted));
    const rank = (/** @type {Choice} */ one) => (one.text.toLowerCase().startsWith(wanted) ? 0 : 1);
    return (wanted ? fitting.sort((a, b) => rank(a) - rank(b)) : fitting).slice(0, SHOWN);
  }, [text, names]);
  const chosen = Math.min(at, choices.length - 1);
  const take = (/** @type {Choice | undefined} */ one) => {
    if (!one) return;
    onClose();
    go(one.to);
  };
  const pressed = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "ArrowDown") setAt(Math.min(chosen + 1, choices.length - 1));
    else if (event.key === "ArrowUp") setAt(Math.max(chosen - 1, 0));
    else if (event.key === "Enter") take(choices[chosen]);
    else return;
    event.preventDefault();
  };
  useEffect(() => document.getElementById(`choice-${chosen}`)?.scrollIntoView({ block: "nearest" }), [chosen]);
  return html`<${Dialog} title="Go to" kind="palette" plain onClose=${onClose}>
    <input role="combobox" aria-expanded="true" aria-controls="choices" aria-activedescendant=${choices.length ? `choice-${chosen}` : undefined} aria-label="go to a topic or an action" placeholder="Topic or action" value=${text}
      autocomplete="off" spellcheck=${false} onKeyDown=${pressed} onInput=${(/** @type {any} */ event) => {
        setText(event.currentTarget.value);
        setAt(0);
      }} />
    <ul id="choices" class="choices" role="listbox" aria-label="choices">
      ${choices.map((one, index) => html`<li key=${one.to + one.text} id=${`choice-${index}`} role="option" aria-selected=${String(index === chosen)} onClick=${() => take(one)}><span class="cut">${one.text}</span><span class="muted">${one.about}</span></li>`)}
      ${choices.length === 0 && html`<li role="option" aria-disabled="true" aria-selected="false" class="muted">Nothing of that name.</li>`}
    </ul>
  <//>`;
}
