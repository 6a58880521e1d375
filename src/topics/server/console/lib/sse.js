// @ts-check
/** Server-sent events out of a body that is read piece by piece (03 §3). Pure, but for the decoder's memory. */

/** @typedef {{event: string, id: string, data: string}} Frame */

/** Takes pieces, gives whole frames. Comments are heartbeats and no frames. */
export class Parser {
  constructor() {
    this.decoder = new TextDecoder();
    this.rest = "";
  }

  /** @param {Uint8Array} piece @returns {Frame[]} */
  feed(piece) {
    const more = this.decoder.decode(piece, { stream: true });
    const text = this.rest + more;
    // Of a long frame that comes in many pieces only its end is looked at.
    if (!more.includes("\n\n") && !(more.startsWith("\n") && this.rest.endsWith("\n"))) {
      this.rest = text;
      return [];
    }
    const blocks = text.split("\n\n");
    this.rest = blocks.pop() ?? "";
    const frames = [];
    for (const block of blocks) {
      const frame = parsed(block);
      if (frame) frames.push(frame);
    }
    return frames;
  }
}

/** @param {string} block @returns {Frame | null} */
function parsed(block) {
  const frame = { event: "", id: "", data: "" };
  for (const line of block.split("\n")) {
    if (line.startsWith("data: ")) frame.data = line.slice(6);
    else if (line.startsWith("event: ")) frame.event = line.slice(7);
    else if (line.startsWith("id: ")) frame.id = line.slice(4);
  }
  return frame.event ? frame : null;
}
