// The timelines of runs, which the views of a run and of its calls share.
import { html } from "../core/html.js";
import { get } from "../core/api.js";

const MOST_STEPS = 2000;

/** The newest ones, so that going from a run to a call and back shows something at once. */
const seen = new Map();

export const seenTimeline = (run) => seen.get(run) || null;

export async function loadTimeline(run) {
  const found = await get(`/v1/runs/${encodeURIComponent(run)}/timeline`, { limit: MOST_STEPS });
  seen.delete(run);
  seen.set(run, found);
  if (seen.size > 5) seen.delete(seen.keys().next().value);
  return found;
}

/** A number of the strip at the top, with a word below it. */
export const Stat = ({ label, children, note }) => html`<div class="stat"><dt>${label}</dt><dd>${children}</dd>${note && html`<dd class="stat-note">${note}</dd>`}</div>`;
