// The timelines of runs, which the views of a run and of its calls share.
import { get } from "../core/api.js";
import { path } from "../core/router.js";

/** Steps of one timeline. A longer run is shown in parts. */
export const MOST_STEPS = 2000;

/** The newest ones, so that going from a run to a call and back shows something at once. */
const seen = new Map();
const keyOf = (run, after) => `${after} ${run}`;

export const seenTimeline = (run, after = 0) => seen.get(keyOf(run, after)) || null;

/** The steps of a run after one, as `/v1/runs/{run}/timeline` has them. */
export async function loadTimeline(run, after = 0) {
  const found = await get(path`/v1/runs/${run}/timeline`, { limit: MOST_STEPS, after: after || null });
  seen.delete(keyOf(run, after));
  seen.set(keyOf(run, after), found);
  if (seen.size > 5) seen.delete(seen.keys().next().value);
  return found;
}

/** The step after which the part of the timeline begins that has a step. */
export const partOf = (step) => Math.floor(Math.max(0, step - 1) / MOST_STEPS) * MOST_STEPS;
