// @ts-check
/** Where the topics of routers stand: sources at the left, each topic one column behind what feeds it. Pure. */

export const NODE = { width: 168, height: 40, gapX: 132, gapY: 22, edge: 14 };

/** @typedef {{router: string, source: string, dest: string, lag: number, forwarded_total: number, guarantee: string, rate?: number | null}} Edge */
/** @typedef {{name: string, x: number, y: number}} Node */

/** @param {Edge[]} edges @returns {{nodes: Map<string, Node>, width: number, height: number}} */
export function layout(edges) {
  const feeds = /** @type {Map<string, string[]>} */ (new Map());
  const names = new Set(edges.flatMap((one) => [one.source, one.dest]));
  for (const one of edges) feeds.set(one.dest, [...(feeds.get(one.dest) ?? []), one.source]);
  const columns = /** @type {Map<string, number>} */ (new Map());
  /** @param {string} name @param {Set<string>} path @returns {number} */
  const column = (name, path) => {
    const known = columns.get(name);
    if (known !== undefined) return known;
    if (path.has(name)) return 0; // a cycle ends where it began
    const behind = new Set([...path, name]);
    const at = Math.max(-1, ...(feeds.get(name) ?? []).map((source) => column(source, behind))) + 1;
    columns.set(name, at);
    return at;
  };
  for (const name of [...names].sort()) column(name, new Set());
  // In a cycle a column may be left empty.
  const used = [...new Set(columns.values())].sort((a, b) => a - b);
  const filled = /** @type {number[]} */ ([]);
  const nodes = /** @type {Map<string, Node>} */ (new Map());
  const bySource = (/** @type {string} */ name) => feeds.get(name)?.[0] ?? "";
  const ordered = [...names].sort((a, b) => (bySource(a) < bySource(b) ? -1 : bySource(a) > bySource(b) ? 1 : a < b ? -1 : 1));
  for (const name of ordered) {
    const at = used.indexOf(columns.get(name) ?? 0);
    const row = (filled[at] = (filled[at] ?? 0) + 1) - 1;
    nodes.set(name, { name, x: NODE.edge + at * (NODE.width + NODE.gapX), y: NODE.edge + row * (NODE.height + NODE.gapY) });
  }
  const most = Math.max(0, ...filled);
  return {
    nodes,
    width: filled.length * (NODE.width + NODE.gapX) - NODE.gapX + 2 * NODE.edge,
    height: most * (NODE.height + NODE.gapY) - NODE.gapY + 2 * NODE.edge,
  };
}
