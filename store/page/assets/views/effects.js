// What the programs of a run got from elsewhere than the network, and the steps of their frameworks: between the calls.
import { html, useEffect, useState } from "../core/html.js";
import { get } from "../core/api.js";
import { count, visible } from "../core/format.js";
import { ErrorNote, MoreInSight, Table, useLoad } from "../core/parts.js";
import { path } from "../core/router.js";

/** The groups of effects by the step that they came before; those after the last step by null. */
export function useEffects(run, { run: { exchanges, ended_at: end }, steps }) {
  const { data } = useLoad(() => get(path`/v1/runs/${run}/effects/sums`), [run, exchanges, end]);
  const found = new Map();
  for (const group of data?.items || []) {
    // A call that was tried again has several exchanges.
    const step = group.before_step && (steps.find((one) => one.step >= group.before_step)?.step ?? null);
    found.set(step, [...(found.get(step) || []), group]);
  }
  return found;
}

const nameOf = ({ kind, count: times, names }) => `${kind}${names?.length ? ` ${names.join(", ")}` : times > 1 ? ` ×${count(times)}` : ""}`;

/** Groups of effects, each opened by a click. */
export const Effects = ({ run, groups, exchanges }) => (groups || []).map((group) => html`
  <${Group} key=${group.before_step} run=${run} group=${group} step=${group.before_step ?? exchanges + 1} />`);

function Group({ run, group, step }) {
  const [isOpen, setOpen] = useState(false);
  return html`<details class="effects" onToggle=${(event) => setOpen(event.currentTarget.open)}>
    <summary class="cut">${count(group.count)} ${group.count === 1 ? "effect" : "effects"}: ${visible(group.kinds.map(nameOf).join(" · ").slice(0, 400))}</summary>
    ${isOpen && html`<${Rows} run=${run} step=${step} />`}</details>`;
}

function Rows({ run, step }) {
  const [{ items, next }, setPage] = useState({ items: [], next: "" });
  const [error, setError] = useState(null);
  const load = () => get(path`/v1/runs/${run}/effects`, { step, limit: 100, cursor: next })
    .then((page) => setPage({ items: [...items, ...page.items], next: page.next }), setError);
  useEffect(() => { load(); }, []);
  const short = (value) => html`<div>${visible(String(value ?? "–").slice(0, 2000))}</div>`;
  const cells = (one) => [
    `${visible(one.kind)}${one.count > 1 ? ` ×${count(one.count)}` : ""}`, short(one.args && JSON.stringify(one.args)),
    short(one.text), short(one.at), short(one.task),
  ];
  return html`<${ErrorNote} error=${error} />
    <${Table} label="Effects" heads=${["Kind", "Asked for", "Got", "At", "Task"]} rows=${items.map(cells)} />
    ${next && html`<${MoreInSight} onMore=${load}>Show more</${MoreInSight}>`}`;
}
