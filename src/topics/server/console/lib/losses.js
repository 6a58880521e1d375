// @ts-check
/** What the server says was lost without having been asked for: the newest records of `$loss`. */
import { entry, post, topicPath } from "./api.js";

const NAME = "$loss";
/** Reasons that no configuration asked for; caps and ages show as floors. */
const DAMAGE = new Set(["corrupt", "crash", "source_trim"]);

/** The newest, oldest first; none where there is nothing, or the key may not see it.
 * @param {number} most @param {AbortSignal} signal @returns {Promise<any[]>} */
export async function newest(most, signal) {
  const found = await entry(NAME, { signal });
  if (!found?.head_seq) return [];
  const page = await post(topicPath(NAME, "/diff"), { from_seq: Math.max(found.head_seq - most, 0), limit: most }, { signal });
  return page.records;
}

/** Damage of the topic that a plan is about. A range is where it lies: what was lost close together is told as one.
 * @param {any[]} told @param {any} plan @returns {any[]} */
export function damage(told, plan) {
  const { cap, ttl, deleted_below: below } = plan.floors;
  const floor = Math.max(cap, ttl, below);
  return told.filter(({ data }) => DAMAGE.has(data.reason) && data.id === plan.id && data.epoch === plan.epoch && data.gap_to >= floor);
}
