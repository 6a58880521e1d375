// @ts-check
/** The console: a frame around pages, each of which has an address. */
import { access, enter, key } from "./lib/api.js";
import { Component, html, render, useEffect, useRef, useState } from "./lib/dom.js";
import { connection } from "./lib/live.js";
import { metrics, start, stop } from "./lib/metrics.js";
import { address, place } from "./lib/route.js";
import { useStore } from "./lib/store.js";
import { OverviewPage } from "./pages/overview.js";
import { PipelinesPage } from "./pages/pipelines.js";
import { QueuesPage } from "./pages/queues.js";
import { RoutersPage } from "./pages/routers.js";
import { SettingsPage } from "./pages/settings.js";
import { TopicPage } from "./pages/topic.js";
import { TopicsPage } from "./pages/topics.js";
import { KeyDialog, KeyPrompt } from "./ui/key.js";
import { Palette } from "./ui/palette.js";
import { Button, Empty, Failed } from "./ui/parts.js";

const PLACES = [["overview", "Overview"], ["topics", "Topics"], ["queues", "Queues"], ["routers", "Routers"], ["pipelines", "Pipelines"], ["settings", "Settings"]];
const RETRY_MS = 2000;

function App() {
  const standing = useStore(access);
  const here = useStore(place);
  const [palette, setPalette] = useState(false);
  const [keys, setKeys] = useState(false);
  const main = useRef(/** @type {HTMLElement | null} */ (null));
  const inside = standing === "open" || standing === "given";

  useEffect(() => {
    const pressed = (/** @type {KeyboardEvent} */ event) => {
      if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
        event.preventDefault();
        setPalette((open) => !open);
      }
    };
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  useEffect(() => {
    if (!inside) return undefined;
    start();
    return stop;
  }, [inside]);
  useEffect(() => {
    document.querySelectorAll(".places [aria-current], .tabs [aria-current]").forEach(reveal);
    document.title = `${here.name || titled(here.page)} · topics`;
  }, [here, inside]);

  if (standing === "unknown") return html`<${Waiting} />`;
  if (!inside) return html`<${KeyPrompt} wrong=${standing === "wrong"} />`;
  const actions = [
    { text: "New topic", about: "action", to: address("topics", "", { new: 1 }) },
    { text: "New router", about: "action", to: address("routers", "", { new: 1 }) },
    ...PLACES.map(([id, label]) => ({ text: String(label), about: "page", to: address(String(id)) })),
    ...(here.page === "topics" && here.name
      ? [["publish", "Publish a record"], ["segments", "Segments"], ["delete", "Delete records"], ["config", "Configuration"]].map(([view, label]) => ({ text: `${label}`, about: here.name, to: address("topics", here.name, { view }) }))
      : []),
  ];
  return html`
    <a class="skip" href="#main" onClick=${(/** @type {Event} */ event) => {
      event.preventDefault();
      main.current?.focus();
    }}>Skip to the content</a>
    <div class="frame">
      <header class="bar">
        <a class="brand" href=${address("overview")}><img src="icon.svg" alt="" width="24" height="24" />topics</a>
        <span class="grow"></span>
        <button type="button" class="seek" aria-keyshortcuts="Control+K" onClick=${() => setPalette(true)}><span aria-hidden="true">⌕</span> <span class="long">Go to…</span> <kbd aria-hidden="true">Ctrl K</kbd></button>
        <${Reach} />
        ${key() && html`<${Button} kind="quiet small" label="your key" onClick=${() => setKeys(true)}>Key<//>`}
      </header>
      <nav class="places" aria-label="pages"><ul>
        ${PLACES.map(([id, label]) => html`<li key=${id}><a href=${address(String(id))} aria-current=${here.page === id ? "page" : undefined}>${label}</a></li>`)}
      </ul></nav>
      <main id="main" tabindex="-1" ref=${main}><${Guard} key=${here.page + here.name}><${Page} here=${here} /><//></main>
    </div>
    ${palette && html`<${Palette} actions=${actions} onClose=${() => setPalette(false)} />`}
    ${keys && html`<${KeyDialog} onClose=${() => setKeys(false)} />`}
  `;
}

/** Where one is, in a strip that may be longer than the window; the page itself stays where it is.
 * @param {Element} one */
function reveal(one) {
  const strip = one.closest("nav");
  if (!strip) return;
  const [inner, outer] = [one.getBoundingClientRect(), strip.getBoundingClientRect()];
  if (inner.right > outer.right) strip.scrollLeft += inner.right - outer.right;
  else if (inner.left < outer.left) strip.scrollLeft -= outer.left - inner.left;
}

/** @param {string} page */
const titled = (page) => PLACES.find(([id]) => id === page)?.[1] ?? page;

/** @param {{here: import("./lib/route.js").Place}} props */
function Page({ here }) {
  if (here.page === "overview") return html`<${OverviewPage} />`;
  if (here.page === "topics") return here.name ? html`<${TopicPage} key=${here.name} name=${here.name} query=${here.query} />` : html`<${TopicsPage} query=${here.query} />`;
  if (here.page === "queues") return html`<${QueuesPage} name=${here.name} query=${here.query} />`;
  if (here.page === "routers") return html`<${RoutersPage} query=${here.query} />`;
  if (here.page === "pipelines") return html`<${PipelinesPage} />`;
  if (here.page === "settings") return html`<${SettingsPage} query=${here.query} />`;
  return html`<section class="panel flush"><${Empty} title="There is no such page"><a href=${address("overview")}>To the overview</a><//></section>`;
}

/** Whether the server answers, for every page. */
function Reach() {
  const { now, error } = useStore(metrics);
  const streaming = useStore(connection);
  const lost = error?.code === "unreachable" || streaming === "lost";
  const [kind, text] = lost ? ["bad", "no answer"] : now && !now.ready ? ["warn", "not ready"] : now ? ["good", "connected"] : error ? ["warn", "limited"] : ["warn", "connecting"];
  return html`<span class="state" role="status" title=${error && !lost ? `${error.code}: ${error.message}` : text}><span class=${`dot ${kind}`}></span><span class="long">${text}</span></span>`;
}

/** A page that fails does not take the others along. */
class Guard extends Component {
  constructor() {
    super();
    this.state = { error: /** @type {any} */ (null) };
  }
  /** @param {Error} error */
  componentDidCatch(error) {
    this.setState({ error });
  }
  render() {
    const { error } = this.state;
    return error ? html`<${Failed} error=${{ code: "console", message: String(error.message ?? error) }} />` : this.props.children;
  }
}

/** Until it is known whether a key is needed. */
function Waiting() {
  const [error, setError] = useState(/** @type {any} */ (null));
  useEffect(() => {
    let timer = 0;
    const attempt = () => {
      enter().catch((failed) => {
        setError(failed);
        timer = setTimeout(attempt, RETRY_MS);
      });
    };
    attempt();
    return () => clearTimeout(timer);
  }, []);
  return html`<main class="gate" id="main" tabindex="-1">${error ? html`<${Failed} error=${error} />` : html`<p class="boot">Asking the server…</p>`}</main>`;
}

const root = document.getElementById("app");
if (root) {
  root.textContent = "";
  render(html`<${App} />`, root);
}
