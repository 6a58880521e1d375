// @ts-check
/** The small parts that every page is made of. */
import { ROOT, key, scopes } from "../lib/api.js";
import { classes, html, useEffect, useLayoutEffect, useRef, useState } from "../lib/dom.js";
import { useStore } from "../lib/store.js";

let ids = 0;
/** An id of its own for as long as the view lives.
 * @param {string} prefix */
export function useId(prefix) {
  const id = useRef("");
  if (!id.current) id.current = `${prefix}-${++ids}`;
  return id.current;
}

/** Why the key does not allow something; empty if it does, or nobody knows.
 * @param {import("../lib/api.js").Scope[]} needs */
export function useReason(needs) {
  const has = useStore(scopes);
  const lacking = needs.filter((scope) => has[scope] === false);
  return lacking.length ? `This key lacks the scope ${lacking.join(" and ")}.` : "";
}

/** A button; what the key may not do is shown, cannot be pressed, and says why.
 * @param {{onClick?: (event: Event) => void, needs?: import("../lib/api.js").Scope[], kind?: string, children?: any,
 *   disabled?: boolean, why?: string, type?: string, pressed?: boolean, label?: string, busy?: boolean}} props */
export function Button({ onClick, needs = [], kind = "", children, disabled, why, type = "button", pressed, label, busy }) {
  const reason = useReason(needs) || (disabled ? (why ?? "") : "");
  const off = Boolean(reason) || disabled || busy;
  return html`<button
    type=${type}
    class=${classes("button", kind)}
    aria-disabled=${off ? "true" : undefined}
    aria-pressed=${pressed === undefined ? undefined : String(pressed)}
    aria-label=${label}
    title=${reason || label}
    onClick=${(/** @type {Event} */ event) => {
      if (off) event.preventDefault();
      else onClick?.(event);
    }}
  >${children}${reason && html`<span class="hidden"> (${reason})</span>`}</button>`;
}

/** What the server refused, with its code, where it happened.
 * @param {{error: {code?: string, message: string} | null | undefined, onClose?: () => void}} props */
export function Failed({ error, onClose }) {
  if (!error) return null;
  return html`<div class="notice" role="alert">
    <span class="grow"><code>${error.code ?? "error"}</code> ${error.message}</span>
    ${onClose && html`<button type="button" class="button quiet small" aria-label="dismiss" onClick=${onClose}>✕</button>`}
  </div>`;
}

/** Something that worked.
 * @param {{text: string}} props */
export function Done({ text }) {
  return html`<div class="notice good" role="status"><span class="grow">${text}</span></div>`;
}

/** One input with its label.
 * @param {{label: string, value: string, onInput: (value: string) => void, hint?: string, wrong?: string, type?: string,
 *   options?: (string | [string, string])[], area?: boolean, placeholder?: string, disabled?: boolean, why?: string, rows?: number,
 *   autofocus?: boolean, autocomplete?: string}} props */
export function Field({ label, value, onInput, hint, wrong, type = "text", options, area, placeholder, disabled, why, rows, autofocus, autocomplete }) {
  const id = useId("field");
  const input = useRef(/** @type {any} */ (null));
  useEffect(() => {
    if (autofocus) input.current?.focus();
  }, []);
  const shared = {
    id,
    ref: input,
    value,
    placeholder,
    disabled,
    title: disabled ? why : undefined,
    "aria-invalid": wrong ? "true" : undefined,
    "aria-describedby": `${id}-hint`,
    autocomplete: autocomplete ?? "off",
    spellcheck: false,
    onInput: (/** @type {any} */ event) => onInput(event.currentTarget.value),
  };
  let control;
  if (options) {
    control = html`<select ...${shared}>
      ${options.map((one) => {
        const [option, text] = Array.isArray(one) ? one : [one, one];
        return html`<option key=${option} value=${option}>${text}</option>`;
      })}
    </select>`;
  } else {
    control = area ? html`<textarea ...${shared} rows=${rows ?? 6}></textarea>` : html`<input ...${shared} type=${type} />`;
  }
  return html`<div class="field">
    <label for=${id}>${label}</label>
    ${control}
    <span id="${id}-hint" class=${classes("hint", wrong && "bad")}>${wrong || (disabled && why) || hint || ""}</span>
  </div>`;
}

/** @param {{label: string, value: boolean, onInput: (value: boolean) => void, hint?: string, disabled?: boolean}} props */
export function Check({ label, value, onInput, hint, disabled }) {
  return html`<label class="check" title=${hint}>
    <input type="checkbox" checked=${value} disabled=${disabled} onChange=${(/** @type {any} */ event) => onInput(event.currentTarget.checked)} />
    <span>${label}</span>
  </label>`;
}

/** A dialog over the page; Escape closes it, and the focus returns to where it was.
 * @param {{title: string, onClose: () => void, children?: any, kind?: string, plain?: boolean}} props */
export function Dialog({ title, onClose, children, kind = "", plain }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const id = useId("dialog");
  // At once: what is typed next is meant for it.
  useLayoutEffect(() => {
    const from = /** @type {HTMLElement | null} */ (document.activeElement);
    const element = dialog.current;
    element?.showModal();
    element?.querySelector(/** @type {any} */ ("input, select, textarea"))?.focus();
    return () => {
      element?.close();
      from?.focus?.();
    };
  }, []);
  return html`<dialog
    ref=${dialog}
    class=${kind}
    aria-labelledby=${id}
    onCancel=${(/** @type {Event} */ event) => {
      event.preventDefault();
      onClose();
    }}
    onClick=${(/** @type {Event} */ event) => event.target === dialog.current && onClose()}
  >
    <div class="inside">
      ${plain
        ? html`<h2 class="hidden" id=${id}>${title}</h2>`
        : html`<div class="spread"><h2 id=${id}>${title}</h2><${Button} kind="quiet small" label="close" onClick=${onClose}>✕<//></div>`}
      ${children}
    </div>
  </dialog>`;
}

/** Ask for a name to be typed before something is gone for good.
 * @param {{title: string, name: string, action: string, children?: any, onClose: () => void, onDone: () => Promise<void>}} props */
export function Typed({ title, name, action, children, onClose, onDone }) {
  const [text, setText] = useState("");
  const [error, setError] = useState(/** @type {any} */ (null));
  const [busy, setBusy] = useState(false);
  const submit = async (/** @type {Event} */ event) => {
    event.preventDefault();
    if (text !== name || busy) return;
    setBusy(true);
    try {
      await onDone();
    } catch (failed) {
      setError(failed);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${title} onClose=${onClose}>
    <form class="stack" onSubmit=${submit}>
      ${children}
      <${Field} label=${`Type ${name} to confirm`} value=${text} onInput=${setText} autofocus />
      <${Failed} error=${error} />
      <div class="row end">
        <${Button} onClick=${onClose}>Cancel<//>
        <${Button} kind="danger main" type="submit" disabled=${text !== name} why="The name is not typed yet." busy=${busy}>${action}<//>
      </div>
    </form>
  <//>`;
}

/** A button that takes a text along.
 * @param {{text: string, label: string}} props */
export function Copy({ text, label }) {
  const [copied, setCopied] = useState(false);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return html`<${Button} kind="small" label=${label} onClick=${copy}>${copied ? "Copied" : "Copy"}<//>`;
}

/** A command to take along.
 * @param {{text: string}} props */
export function Copyable({ text }) {
  return html`<div class="curl"><pre tabindex="0" aria-label="command">${text}</pre><${Copy} text=${text} label="copy the command" /></div>`;
}

/** A request as a command line.
 * @param {string} method @param {string} path @param {string} [body] */
export function curl(method, path, body) {
  const verb = method === "GET" || (method === "POST" && body) ? "" : ` -X ${method}`;
  const auth = key() ? ` \\\n  -H "Authorization: Bearer $TOPICS_API_KEY"` : "";
  const data = body ? ` \\\n  -H 'Content-Type: application/json' \\\n  -d '${body.replaceAll("'", "'\\''")}'` : "";
  return `curl -s${verb} '${location.origin}${ROOT}${path.slice(1).replaceAll("'", "%27")}'${auth}${data}`;
}

/** Nothing to see, and what to do about it.
 * @param {{title: string, text?: string, command?: string, children?: any}} props */
export function Empty({ title, text, command, children }) {
  return html`<div class="empty">
    <strong>${title}</strong>
    ${text && html`<p>${text}</p>`}
    ${command && html`<${Copyable} text=${command} />`}
    ${children}
  </div>`;
}

const CLASS_KINDS = /** @type {Record<string, string>} */ ({ fsync: "good", disk: "accent", memory: "", ephemeral: "warn" });
/** @param {{name: string}} props */
export function ClassBadge({ name }) {
  return html`<span class=${classes("badge", CLASS_KINDS[name])}>${name}</span>`;
}
