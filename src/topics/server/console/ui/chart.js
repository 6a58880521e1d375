// @ts-check
/** Charts: lines over time by uPlot, small ones as a path. */
import { html, useEffect, useRef, useState } from "../lib/dom.js";

/** @typedef {{name: string, label: string, color: string, unit: (value: number | null) => string}} Line */

const dark = matchMedia("(prefers-color-scheme: dark)");

/** @param {string} name */
const token = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Lines over time, the newest at the right.
 * @param {{lines: Line[], history: import("../lib/series.js").History, height?: number, label: string, span?: number}} props */
export function Chart({ lines, history, height = 180, label, span = 300 }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const plot = useRef(/** @type {any} */ (null));
  const [scheme, setScheme] = useState(dark.matches);
  const data = () => [history.times, ...lines.map((line) => history.of(line.name))];
  const range = () => {
    const end = history.times[history.times.length - 1] ?? Date.now() / 1000;
    // At first it grows into its width; then it moves.
    const first = history.times[0] ?? end;
    return { min: Math.max(end - span, Math.min(first, end - 60)), max: end };
  };

  useEffect(() => {
    const changed = () => setScheme(dark.matches);
    dark.addEventListener("change", changed);
    return () => dark.removeEventListener("change", changed);
  }, []);

  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const grid = { stroke: token("--line"), width: 1 };
    const axis = { stroke: token("--muted"), grid, ticks: grid, font: `11px ${token("--sans")}` };
    const first = lines[0];
    const options = {
      width: element.clientWidth || 300,
      height,
      legend: { show: false },
      cursor: { show: false },
      scales: { x: { time: true }, y: { range: (/** @type {any} */ _u, /** @type {number} */ _min, /** @type {number} */ max) => [0, max > 0 ? max * 1.1 : 1] } },
      padding: [8, 28, 0, 0],
      axes: [
        { ...axis, size: 28, space: 70, values: (/** @type {any} */ _u, /** @type {number[]} */ at) => at.map(clock) },
        { ...axis, size: 56, values: (/** @type {any} */ _u, /** @type {number[]} */ at) => at.map((value) => first?.unit(value) ?? "") },
      ],
      series: [{}, ...lines.map((line) => ({ label: line.label, stroke: token(line.color), width: 1.5, points: { show: false }, spanGaps: false }))],
    };
    plot.current = new /** @type {any} */ (window).uPlot(options, data(), element);
    plot.current.setScale("x", range());
    const watching = new ResizeObserver(() => plot.current?.setSize({ width: element.clientWidth, height }));
    watching.observe(element);
    return () => {
      watching.disconnect();
      plot.current?.destroy();
      plot.current = null;
    };
  }, [scheme, lines, height]);

  const newest = history.times[history.times.length - 1];
  useEffect(() => {
    if (!plot.current) return;
    plot.current.batch(() => {
      plot.current.setData(data(), false);
      plot.current.setScale("x", range());
      plot.current.redraw(false, true);
    });
  }, [newest]);

  const said = lines.map((line) => `${line.label} ${line.unit(history.last(line.name))}`).join(", ");
  return html`<div class="chart" ref=${box} role="img" aria-label=${`${label}: ${said}`} style=${{ height: `${height}px` }}></div>`;
}

/** @param {number} at */
function clock(at) {
  const when = new Date(at * 1000);
  return `${when.getHours()}:${String(when.getMinutes()).padStart(2, "0")}:${String(when.getSeconds()).padStart(2, "0")}`;
}

/** @param {{values: number[]}} props */
export function Spark({ values }) {
  if (values.length < 2) return html`<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"></svg>`;
  const most = Math.max(...values, 1);
  const step = 100 / Math.max(values.length - 1, 1);
  const path = values.map((value, at) => `${at ? "L" : "M"}${(at * step).toFixed(1)} ${(19 - (value / most) * 17).toFixed(1)}`).join("");
  return html`<svg class="spark" viewBox="0 0 100 20" preserveAspectRatio="none" aria-hidden="true"><path d=${path} /></svg>`;
}

/** How often something took how long.
 * @param {{histogram: import("../lib/series.js").Histogram, unit: (value: number) => string, label: string}} props */
export function Bars({ histogram, unit, label }) {
  const most = Math.max(...histogram.counts, 1);
  const names = [...histogram.bounds.map(unit), `> ${unit(histogram.bounds[histogram.bounds.length - 1] ?? 0)}`];
  return html`<ul class="bars" aria-label=${label}>
    ${histogram.counts.map(
      (count, at) => html`<li key=${at} title=${`${names[at]}: ${count}`}>
        <span class="bar-fill" style=${{ height: count ? `max(${((count / most) * 100).toFixed(1)}%, 2px)` : "1px" }}></span>
        <span>${at % 2 ? "" : names[at]?.replace(/ |\.0/g, "")}<span class="hidden">: ${count}</span></span>
      </li>`,
    )}
  </ul>`;
}
