// @ts-check
/** Long lists of equal rows: only those in sight exist. */
import { html, useEffect, useLayoutEffect, useRef, useState } from "../lib/dom.js";

const MORE = 6;

/** `stick`: stay at the end when rows are added; `onStick` tells when the visitor scrolls away from it, or back. `dropped`
 * counts rows that ever left at the front, so that what is in sight stays where it is.
 * @param {{count: number, height: number, row: (at: number) => any, attrs?: Record<string, any>, kind?: string, stick?: boolean,
 *   onStick?: (at: boolean) => void, dropped?: number, onEnd?: () => void, show?: number}} props */
export function VirtualList({ count, height, row, attrs = {}, kind = "", stick = false, onStick, dropped = 0, onEnd, show }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [top, setTop] = useState(0);
  const [room, setRoom] = useState(600);
  const before = useRef(dropped);
  const stuck = useRef(stick);
  stuck.current = stick;

  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const watching = new ResizeObserver(() => setRoom(element.clientHeight));
    watching.observe(element);
    setRoom(element.clientHeight);
    return () => watching.disconnect();
  }, []);

  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    const gone = dropped - before.current;
    before.current = dropped;
    // Looking where it is makes the browser lay the page out: only when it was moved.
    if (stick) element.scrollTop = count * height;
    else if (gone) element.scrollTop = Math.max(element.scrollTop - gone * height, 0);
    else return;
    if (element.scrollTop !== top) setTop(element.scrollTop);
  });

  useLayoutEffect(() => {
    const element = box.current;
    if (!element || show === undefined || show < 0) return;
    if (show * height < element.scrollTop) element.scrollTop = show * height;
    else if ((show + 1) * height > element.scrollTop + element.clientHeight) element.scrollTop = (show + 1) * height - element.clientHeight;
  }, [show]);

  const scrolled = () => {
    const element = box.current;
    if (!element) return;
    setTop(element.scrollTop);
    const left = element.scrollHeight - element.scrollTop - element.clientHeight;
    if (onStick && left < height / 2 !== stuck.current) onStick(left < height / 2);
    if (onEnd && left < element.clientHeight) onEnd();
  };
  const first = Math.max(Math.floor(top / height) - MORE, 0);
  const last = Math.min(Math.ceil((top + room) / height) + MORE, count);
  const rows = [];
  for (let at = first; at < last; at++) {
    // Each at its own place: what stays in sight need not be painted again.
    const one = row(at);
    rows.push(html`<div class="slot" role="presentation" key=${one?.key ?? at} style=${{ top: `${at * height}px` }}>${one}</div>`);
  }
  return html`<div class=${`vlist ${kind}`} ref=${box} onScroll=${scrolled} ...${attrs}>
    <div class="all" role="presentation" style=${{ height: `${count * height}px` }}>${rows}</div>
  </div>`;
}
