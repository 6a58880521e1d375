// @ts-check
/**
 * Dead letters back to their queue (11 §2, 04 §10): publish without the members that say where it came from, with a key that
 * makes a repeated try harmless; only then is the letter removed. Of a queue of dead letters jobs are claimed and acked. The
 * key names the instance of the dead-letter topic, as `topics queue redrive` does: made anew, it has other letters [EPO-1].
 */
import { get, post, topicPath } from "./api.js";
import { Exact, parse, parts } from "./json.js";

const FROM = "$dead_letter_from";
const SAID = new Set([FROM, "$dead_letter_deliveries", "$dead_letter_src_seq"]);
const NODE = "console";
const AT_ONCE = 100;

/** Where a letter came from; empty if it is none.
 * @param {any} letter @returns {string} */
export function origin(letter) {
  const meta = letter.meta instanceof Exact ? parse(letter.meta.source) : letter.meta;
  const name = meta?.[FROM];
  return typeof name === "string" ? name : "";
}

/** Whether a letter came from a queue that sends its letters here: anybody may say that of a record [REC-11].
 * @param {string} dead @param {any} letter @param {Map<string, boolean>} known @returns {Promise<boolean>} */
async function goesBack(dead, letter, known) {
  const name = origin(letter);
  if (!name) return false;
  if (!known.has(name)) known.set(name, await sends(name, dead));
  return known.get(name) ?? false;
}

/** @param {string} name @param {string} dead @returns {Promise<boolean>} */
async function sends(name, dead) {
  try {
    const told = await get(topicPath(name));
    return told.type === "queue" && told.config.dead_letter === dead;
  } catch (error) {
    if ([400, 404].includes(/** @type {any} */ (error).status)) return false;
    throw error;
  }
}

/** Which instance of a topic there is.
 * @param {string} dead @returns {Promise<string>} */
async function instance(dead) {
  const told = await get(topicPath(dead, "/segments?limit=1"));
  return `${told.id}:${told.epoch}`;
}

/** What was read up to now is of that instance, or nothing is done with it.
 * @param {string} dead @param {string} found */
async function check(dead, found) {
  if ((await instance(dead)) !== found) throw new Error(`${dead} was made anew while its letters were read or moved.`);
}

/** @param {string} from the instance that the letter is of @param {any} letter */
async function publish(from, letter) {
  const own = parts(letter.meta.source).filter(({ name }) => !SAID.has(name));
  const meta = own.length ? new Exact(`{${own.map(({ whole }) => whole).join(",")}}`) : undefined;
  const record = { data: letter.data, tag: letter.$tag, node: letter.$node, meta };
  const key = `redrive:${from}:${letter.$seq}`;
  await post(topicPath(origin(letter)), { records: [record], idempotency_key: key, create: false });
}

/** One letter of a log.
 * @param {string} dead @param {string} from @param {any} letter */
async function move(dead, from, letter) {
  await publish(from, letter);
  await check(dead, from); // a seq is all that a delete can say, and a topic made anew has it too
  await post(topicPath(dead, "/delete"), { seqs: [letter.$seq] });
}

/** One letter that was seen some time ago, unless somebody has removed it since; how many went back.
 * @param {string} dead @param {number} seq @returns {Promise<number>} */
export async function redriveOne(dead, seq) {
  const from = await instance(dead);
  const page = await post(topicPath(dead, "/diff"), { from_seq: seq - 1, limit: 1, include_tags: true, max_batch_bytes: 8 << 20 }, { rows: "records" });
  const letter = page.records[0];
  await check(dead, from);
  if (letter?.$seq !== seq || !(await goesBack(dead, letter, new Map()))) return 0;
  await move(dead, from, letter);
  return 1;
}

/** All letters that are there; how many went back.
 * @param {string} dead @param {string} type @param {(done: number) => void} tell @returns {Promise<number>} */
export async function redriveAll(dead, type, tell) {
  let done = 0;
  const went = (/** @type {number} */ more) => tell((done += more));
  const from = await instance(dead);
  if (type === "queue") await fromQueue(dead, from, went);
  else await fromLog(dead, from, went);
  return done;
}

/** @param {string} dead @param {string} from @param {(more: number) => void} went */
async function fromLog(dead, from, went) {
  let behind = 0;
  const known = /** @type {Map<string, boolean>} */ (new Map());
  for (;;) {
    const page = await post(topicPath(dead, "/diff"), { from_seq: behind, limit: AT_ONCE, include_tags: true }, { rows: "records" });
    await check(dead, from);
    for (const letter of page.records) {
      if (!(await goesBack(dead, letter, known))) continue;
      await move(dead, from, letter);
      went(1);
    }
    if (page.caught_up) return;
    behind = page.next_from_seq;
  }
}

/** Whatever happens, what is held in the end and did not go is given back.
 * @param {string} dead @param {string} from @param {(more: number) => void} went */
async function fromQueue(dead, from, went) {
  const held = /** @type {Map<number, string>} */ (new Map());
  const others = /** @type {Set<number>} */ (new Set());
  const known = /** @type {Map<string, boolean>} */ (new Map());
  try {
    for (;;) {
      const { claimed } = await post(topicPath(dead, "/claim"), { node: NODE, max: AT_ONCE }, { rows: "claimed" });
      for (const letter of claimed) held.set(letter.$seq, letter.lease_id);
      await check(dead, from);
      // What is no letter comes again when its lease is over: with nothing new among them there is nothing to do.
      if (claimed.every((/** @type {any} */ letter) => others.has(letter.$seq))) return;
      for (const letter of claimed) {
        if (!(await goesBack(dead, letter, known))) {
          others.add(letter.$seq);
          continue;
        }
        await publish(from, letter);
        await post(topicPath(dead, "/ack"), { node: NODE, seqs: [letter.$seq], lease_ids: [letter.lease_id] });
        held.delete(letter.$seq);
        went(1);
      }
    }
  } finally {
    if (held.size) await post(topicPath(dead, "/nack"), { node: NODE, seqs: [...held.keys()], lease_ids: [...held.values()] });
  }
}
