// Changes of the models behind their names, on a time line, with what says so.
import { html, useRef } from "../core/html.js";
import { get } from "../core/api.js";
import { Link, setQuery } from "../core/router.js";
import { count, exactTime, percent, shortDay, time, visible } from "../core/format.js";
import { AddressInput, Badge, Empty, ErrorNote, JsonLink, Loading, Time, useLoad } from "../core/parts.js";
import { useWidth } from "./charts.js";

const LANE = 22;
const LEFT = 290;

const variantName = (one) => `${one.model_returned}${one.system_fingerprint ? ` · ${one.system_fingerprint}` : ""}`;

function TimeLine({ variants, changes }) {
  const root = useRef(null);
  const width = useWidth(root);
  const start = Math.min(...variants.map((one) => Date.parse(one.first_at)));
  const end = Math.max(...variants.map((one) => Date.parse(one.last_at)), start + 1);
  const left = Math.min(LEFT, width * 0.4);
  const x = (text) => left + ((Date.parse(text) - start) / (end - start)) * (width - left - 14);
  const groups = new Map();
  for (const one of variants) {
    const name = `${one.model_requested ?? "no name"} (${one.provider})`;
    groups.set(name, [...(groups.get(name) || []), one]);
  }
  const rows = [...groups].flatMap(([name, own]) => [{ name }, ...own.map((one, colour) => ({ one, colour }))]);
  const height = rows.length * LANE + 30;
  return html`<figure class="chart" ref=${root}><svg width=${width} height=${height} role="img" aria-label="When each variant of each model answered; the tables below have the numbers">
    ${[0, 0.25, 0.5, 0.75, 1].map((part) => {
      const at = new Date(start + part * (end - start)).toISOString();
      return html`<g key=${part}><line class="grid" x1=${x(at)} x2=${x(at)} y1="0" y2=${height - 22} /><text class="tick-x" x=${x(at)} y=${height - 6} text-anchor=${part === 0 ? "start" : part === 1 ? "end" : "middle"}>${end - start < 36 * 3_600_000 ? time(at) : shortDay(at)}</text></g>`;
    })}
    ${rows.map((row, place) => (row.name
      ? html`<text key=${place} class="lane-name" x="0" y=${place * LANE + 16}>${visible(row.name)}</text>`
      : html`<g key=${place}><title>${`${variantName(row.one)}: ${count(row.one.calls)} calls, ${exactTime(row.one.first_at)} to ${exactTime(row.one.last_at)}`}</title>
          <text class="lane-label" x="10" y=${place * LANE + 15}>${visible(variantName(row.one)).slice(0, Math.floor(left / 7))}</text>
          <rect class="s${(row.colour % 8) + 1}" rx="3" x=${x(row.one.first_at)} width=${Math.max(4, x(row.one.last_at) - x(row.one.first_at))} y=${place * LANE + 5} height=${LANE - 10} /></g>`))}
    ${changes.map((change, place) => html`<g key=${place}><title>${`changed ${exactTime(change.first_at)}`}</title><line class="change" x1=${x(change.first_at)} x2=${x(change.first_at)} y1="0" y2=${height - 22} /></g>`)}
  </svg></figure>`;
}

const Examples = ({ ids }) => html`${ids.slice(0, 3).map((id, place) => html`<${CallLink} key=${id} id=${id} label=${place + 1} />`)}`;
/** A call by its id alone: the page of the call finds its run. */
const CallLink = ({ id, label }) => html`<${Link} to=${`/runs/-/calls/${id}`} title=${id}>call ${label}</${Link}> `;

export default function Drift({ query }) {
  const filters = Object.fromEntries(["since", "until", "model", "provider"].filter((name) => query[name]).map((name) => [name, query[name]]));
  const { data, error, reload } = useLoad(() => get("/v1/drift", filters), [JSON.stringify(filters)]);
  return html`<div class="drift">
    <div class="bar"><h1>Drift</h1><span class="muted">when another model, or another version of it, began to answer to the same name</span><span class="grow"></span>
      <form onSubmit=${(event) => event.preventDefault()}><${AddressInput} type="search" aria-label="Model" placeholder="Model" value=${query.model || ""} onCommit=${(model) => setQuery({ model })} /></form>
      <${JsonLink} path="/v1/drift" params=${filters} /></div>
    ${error && html`<${ErrorNote} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} height="300px" />`}
    ${data && data.variants.length === 0 && html`<${Empty} title="No model has answered yet"><p>Changes show here as soon as runs are recorded.</p></${Empty}>`}
    ${data && data.variants.length > 0 && html`
      <${TimeLine} variants=${data.variants} changes=${data.items} />
      <h2>${data.items.length === 0 ? "No change was seen" : data.items.length === 1 ? "1 change" : `${count(data.items.length)} changes`}</h2>
      ${data.items.length > 0 && html`<div class="scroll" tabindex="0" role="region" aria-label="Changes"><table><thead><tr><th>When</th><th>Model</th><th>Was</th><th>Is</th><th>Same requests, other answers</th><th>Examples</th></tr></thead>
        <tbody>${data.items.map((one, place) => html`<tr key=${place}><td><${Time} at=${one.first_at} /></td><td>${visible(one.model_requested || "–")} <small>${visible(one.provider)}</small></td>
          <td class="mono">${visible(variantName(one.from))}</td><td class="mono">${visible(variantName(one.to))} ${one.replaced ? html`<${Badge} tone="warn" title="the old one has not answered since">replaced</${Badge}>` : html`<${Badge} title="both answer">alternates</${Badge}>`}</td>
          <td>${one.same_requests?.asked_again ? `${count(one.same_requests.answered_otherwise)} of ${count(one.same_requests.asked_again)} (${percent(one.same_requests.answered_otherwise / one.same_requests.asked_again)})` : "–"}</td>
          <td><${Examples} ids=${one.examples.before} /> → <${Examples} ids=${one.examples.after} /></td></tr>`)}</tbody></table></div>`}
      <h2>What answered</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="What answered"><table><thead><tr><th>Asked for</th><th>Provider</th><th>Answered</th><th>Fingerprint</th><th class="num">Calls</th><th class="num">First</th><th class="num">Last</th></tr></thead>
        <tbody>${data.variants.map((one, place) => html`<tr key=${place}><td>${visible(one.model_requested || "–")}</td><td>${visible(one.provider)}</td><td class="mono">${visible(one.model_returned)}</td><td class="mono">${visible(one.system_fingerprint || "–")}</td><td class="num">${count(one.calls)}</td><td class="num"><${Time} at=${one.first_at} /></td><td class="num"><${Time} at=${one.last_at} /></td></tr>`)}</tbody></table></div>`}
  </div>`;
}
