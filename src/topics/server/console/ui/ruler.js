// @ts-check
/** A topic's seqs on a line: what was evicted, deleted or lost, what is live, and what is not in segments yet. */
import { html } from "../lib/dom.js";
import { bytes, count } from "../lib/format.js";

const WIDTH = 1000;
const MOST_SHOWN = 1500;

/** @typedef {{from: number, to: number, kind: string, text: string}} Span */

/** Spans of a plan, in the order they are painted.
 * @param {any} plan @returns {Span[]} */
export function spans(plan) {
  const { floors, head_seq: head, ckpt_seq: saved } = plan;
  const evicted = Math.max(floors.cap, floors.ttl, 1) - 1;
  const deleted = Math.max(floors.deleted_below, evicted + 1) - 1;
  const found = /** @type {Span[]} */ ([]);
  /** @param {number} from @param {number} to @param {string} kind @param {string} text */
  const add = (from, to, kind, text) => {
    if (to >= from) found.push({ from, to, kind, text: `${text}: ${count(from)} – ${count(to)}` });
  };
  add(deleted + 1, Math.min(saved, head), "live", "live, in segments");
  add(Math.max(saved, deleted) + 1, head, "tail", "live, in the log");
  add(1, evicted, "evicted", floors.cap > floors.ttl ? "evicted by a cap" : "expired or evicted");
  add(evicted + 1, deleted, "deleted", "deleted");
  for (const one of plan.segments) {
    if (one.gap) add(Math.max(one.first_seq, deleted + 1), one.last_seq, one.gap === "deleted" ? "deleted" : "lost", one.gap === "deleted" ? "deleted" : `lost (${one.gap})`);
  }
  return found;
}

/** Where the drawing begins: all of it, or only what is live with a little in front.
 * @param {any} plan @param {boolean} whole */
export function begin(plan, whole) {
  if (whole) return 1;
  const live = Math.max(plan.head_seq - plan.earliest_seq, 1);
  return Math.max(Math.floor(plan.earliest_seq - live * 0.2), 1);
}

/** Segments of which records among others are deleted; which of them only an index knows, so that their share is drawn.
 * @param {any} plan @returns {{from: number, to: number, share: number}[]} */
function thinned(plan) {
  const { cap, ttl, deleted_below: below } = plan.floors;
  const floor = Math.max(cap, ttl, below, 1);
  return plan.segments
    .filter((/** @type {any} */ one) => !one.gap && one.last_seq >= floor)
    .map((/** @type {any} */ one) => {
      const from = Math.max(one.first_seq, floor);
      return { from, to: one.last_seq, share: 1 - one.records / (one.last_seq - from + 1) };
    })
    .filter((/** @type {any} */ one) => one.share > 0)
    .slice(-MOST_SHOWN);
}

/** @param {{plan: any, whole: boolean, onPick: (seq: number) => void}} props */
export function Ruler({ plan, whole, onPick }) {
  const start = begin(plan, whole);
  const size = Math.max(plan.head_seq - start + 1, 1);
  const x = (/** @type {number} */ seq) => ((Math.max(seq, start) - start) / size) * WIDTH;
  const all = spans(plan).filter((one) => one.to >= start);
  const said = all.map((one) => one.text).join("; ");
  const pick = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {Element} */ (event.currentTarget).getBoundingClientRect();
    onPick(start + Math.floor(((event.clientX - box.left) / box.width) * size));
  };
  return html`<div class="ruler">
    <svg viewBox=${`0 0 ${WIDTH} 36`} preserveAspectRatio="none" role="img" aria-label=${`seqs: ${said || "none"}`} onClick=${pick}>
      <rect class="f-sunken" x="0" y="0" width=${WIDTH} height="36" />
      ${all.slice(0, MOST_SHOWN).map((one, at) => html`<rect key=${at} class=${`f-${one.kind}`} x=${x(one.from)} y="0" width=${Math.max(x(one.to + 1) - x(one.from), 1)} height="36"><title>${one.text}</title></rect>`)}
      ${thinned(plan).map((one) => html`<rect key=${`s${one.from}`} class="f-deleted" x=${x(one.from)} y="0" width=${Math.max(x(one.to + 1) - x(one.from), 1)} height=${36 * one.share}><title>${`${Math.round(one.share * 100)} % of ${count(one.from)} – ${count(one.to)} deleted`}</title></rect>`)}
    </svg>
    <div class="ends"><span>${count(start)}</span><span>${count(plan.head_seq)}</span></div>
  </div>`;
}

/** The first seq that neither a cap nor age has taken.
 * @param {any} plan */
const evictedBelow = (plan) => Math.max(plan.floors.cap, plan.floors.ttl, 1);

/** How much of a segment is deleted; what was evicted or lost is something else.
 * @param {any} one @param {any} plan */
export function deadShare(one, plan) {
  if (one.gap) return one.gap === "deleted" ? 1 : 0;
  const from = Math.max(one.first_seq, evictedBelow(plan));
  return from > one.last_seq ? 0 : 1 - one.records / (one.last_seq - from + 1);
}

/** How many segments of which kind there are, for whoever cannot see them.
 * @param {any[]} segments */
function summary(segments) {
  const kinds = /** @type {Map<string, number>} */ (new Map());
  for (const one of segments) kinds.set(kindOf(one), (kinds.get(kindOf(one)) ?? 0) + 1);
  const names = /** @type {Record<string, string>} */ ({ live: "hot", tail: "active" });
  return `${segments.length} segments: ${[...kinds].map(([kind, many]) => `${many} ${names[kind] ?? kind}`).join(", ")}`;
}

/** @param {any} one */
function kindOf(one) {
  if (one.gap) return one.gap === "deleted" ? "deleted" : "lost";
  return one.tier === "cold" ? "cold" : one.sealed ? "live" : "tail";
}

/** @param {any} one */
function said(one) {
  const range = `${count(one.first_seq)} – ${count(one.last_seq)}`;
  if (one.gap) return `${range} ${one.gap === "deleted" ? "deleted" : `lost (${one.gap})`}`;
  return `${range}, ${count(one.records)} live, ${bytes(one.bytes)}, ${one.tier}, ${one.sealed ? "sealed" : "active"}`;
}

/** @param {{plan: any, whole: boolean}} props */
export function SegmentMap({ plan, whole }) {
  const start = begin(plan, whole);
  const size = Math.max(plan.head_seq - start + 1, 1);
  const x = (/** @type {number} */ seq) => ((Math.max(seq, start) - start) / size) * WIDTH;
  const shown = plan.segments.filter((/** @type {any} */ one) => one.last_seq >= start).slice(-MOST_SHOWN);
  return html`<div class="segments">
    <svg viewBox=${`0 0 ${WIDTH} 28`} preserveAspectRatio="none" role="img" aria-label=${summary(shown)}>
      <rect class="f-sunken" x="0" y="0" width=${WIDTH} height="28" />
      ${shown.map((/** @type {any} */ one) => {
        const [left, right] = [x(one.first_seq), x(one.last_seq + 1)];
        const wide = Math.max(right - left - 1, 0.75);
        const gone = Math.min(Math.max(x(evictedBelow(plan)) - left, 0), wide);
        return html`<g key=${one.first_seq}><title>${said(one)}</title><rect class=${`f-${kindOf(one)}`} x=${left} y="0" width=${wide} height="28" />
          <rect class="f-deleted" x=${left} y="0" width=${wide} height=${28 * deadShare(one, plan)} /><rect class="f-evicted" x=${left} y="0" width=${gone} height="28" /></g>`;
      })}
    </svg>
  </div>`;
}
