// What calls cost over time, by model, tool, label and so on: bars, and a table with the same numbers.
import { html } from "../core/html.js";
import { get } from "../core/api.js";
import { listOf, navigate, setQuery } from "../core/router.js";
import { count, duration, exactTime, money, percent, time, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { AddressInput, Empty, ErrorNote, JsonLink, Loading, Money, Tokens, useLoad } from "../core/parts.js";
import { COLOURS, Legend, StackedBars } from "./charts.js";

const GROUPS = [["model", "Model"], ["tool", "Tool"], ["provider", "Provider"], ["label", "Label"], ["actor", "Agent"], ["host", "Host"], ["operation", "Operation"], ["status", "HTTP status"]];
const MEASURES = {
  cost: ["Cost", (group) => group.known_cost_usd || 0, money],
  calls: ["Calls", (group) => group.calls, count],
  tokens: ["Tokens", (group) => (group.usage.input_tokens || 0) + (group.usage.output_tokens || 0), tokens],
  errors: ["Errors", (group) => group.errors, count],
};
const FILTERS = ["since", "until", "label", "model", "provider", "tool", "host", "status", "kind", "dialect", "operation", "actor"];
const SPANS = [["1", "24 h"], ["7", "7 d"], ["30", "30 d"], ["90", "90 d"], ["all", "All"]];
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const OTHERS = "all others";
const NONE = "without one";
const iso = (ms) => new Date(ms).toISOString().replace(/\.\d+Z/, "Z");

/** All buckets between the first and the last, so that a day without calls is an empty place. */
function bucketsOf(items, by, name, series, value, since, until) {
  const step = by === "hour" ? HOUR : DAY;
  const times = items.map((item) => Date.parse(item.group[by]));
  const first = since ? Math.floor(Date.parse(since) / step) * step : Math.min(...times);
  const last = until ? Math.ceil(Date.parse(until) / step) * step - step : Math.max(...times);
  const buckets = new Map();
  for (let at = first, left = 800; at <= last && left > 0; at += step, left -= 1) buckets.set(at, { at: iso(at), values: new Map() });
  for (const item of items) {
    const bucket = buckets.get(Date.parse(item.group[by]));
    if (!bucket) continue;
    const own = nameOf(item.group[name]);
    const shown = series.includes(own) ? own : OTHERS;
    bucket.values.set(shown, (bucket.values.get(shown) || 0) + value(item));
  }
  return [...buckets.values()];
}

const nameOf = (value) => (value === null || value === undefined ? NONE : String(value));

export default function Costs({ query }) {
  const group = query.by === "label" ? `label:${query.name || "env"}` : GROUPS.some(([name]) => name === query.by) ? query.by : "model";
  const [title, value, format] = MEASURES[query.measure] || MEASURES.cost;
  const filters = Object.fromEntries(FILTERS.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
  const width = query.since ? (query.until ? Date.parse(query.until) : Date.now()) - Date.parse(query.since) : Infinity;
  const by = width <= 4 * DAY ? "hour" : "day";
  const { data, error, isLoading, reload } = useLoad(async () => {
    const [overTime, whole] = await Promise.all([get("/v1/stats", { ...filters, group_by: [by, group] }), get("/v1/stats", { ...filters, group_by: group, sort: query.measure || "cost", limit: 200 })]);
    return { overTime, whole, by, group };
  }, [JSON.stringify(filters), by, group, query.measure]);
  const span = (days) => setQuery({ until: null, since: days === "all" ? null : iso(Math.floor((Date.now() - Number(days) * DAY) / HOUR) * HOUR) });
  const zoom = (first, last) => setQuery({ since: first, until: iso(Date.parse(last) + (by === "hour" ? HOUR : DAY)) }, { replace: false });
  const zoomBy = (factor) => {
    const end = query.until ? Date.parse(query.until) : Date.now();
    const start = query.since ? Date.parse(query.since) : end - 30 * DAY;
    const middle = (start + end) / 2;
    const half = Math.max(HOUR, ((end - start) / 2) * factor);
    setQuery({ since: iso(Math.floor((middle - half) / HOUR) * HOUR), until: iso(Math.ceil((middle + half) / HOUR) * HOUR) });
  };
  useKeys({
    "+": { label: "zoom in", run: () => zoomBy(0.5) }, "-": { label: "zoom out", run: () => zoomBy(2) },
    Escape: { label: "back: the whole time", run: () => setQuery({ since: null, until: null }) },
  });
  const groupName = data?.group || group;
  const series = data ? data.whole.items.slice(0, COLOURS).map((item) => nameOf(item.group[groupName])) : [];
  const hasOthers = data && data.whole.items.length > COLOURS;
  const shownSeries = hasOthers ? [...series, OTHERS] : series;
  const buckets = data?.overTime.items.length ? bucketsOf(data.overTime.items, data.by, groupName, series, value, query.since, query.until) : [];
  const totals = new Map();
  for (const bucket of buckets) for (const [name, amount] of bucket.values) totals.set(name, (totals.get(name) || 0) + amount);
  const whole = data ? value(data.whole.total) : 0;
  const runsOf = (name) => name !== NONE && navigate("/", { ...filters, ...(groupName.startsWith("label:") ? { label: [...listOf(filters.label), `${groupName.slice(6)}=${name}`] } : ["model", "tool", "provider", "actor", "host", "operation", "status"].includes(groupName) ? { [groupName]: name } : {}) });
  return html`<div class="costs">
    <div class="bar"><h1>Costs</h1>
      <div class="segments" role="group" aria-label="Measure">${Object.entries(MEASURES).map(([name, [label]]) => html`<button key=${name} aria-pressed=${(query.measure || "cost") === name ? "true" : "false"} onClick=${() => setQuery({ measure: name === "cost" ? null : name })}>${label}</button>`)}</div>
      <label>by <select value=${query.by || "model"} onChange=${(event) => setQuery({ by: event.target.value === "model" ? null : event.target.value })}>${GROUPS.map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>
      ${query.by === "label" && html`<${AddressInput} type="text" aria-label="Name of the label" value=${query.name || "env"} onCommit=${(name) => setQuery({ name })} />`}
      <span class="grow"></span>
      <div class="segments" role="group" aria-label="Time">${SPANS.map(([days, label]) => html`<button key=${days} aria-pressed=${days === "all" && !query.since ? "true" : "false"} onClick=${() => span(days)}>${label}</button>`)}</div>
      <${JsonLink} path="/v1/stats" params=${{ ...filters, group_by: [by, group] }} />
    </div>
    ${error && html`<${ErrorNote} error=${error} retry=${reload} />`}
    ${!data && !error && html`<${Loading} height="340px" />`}
    ${data && data.overTime.items.length === 0 && html`<${Empty} title="No calls in this time"><p><button onClick=${() => setQuery({ since: null, until: null })}>Show the whole time</button></p></${Empty}>`}
    ${data && buckets.length > 0 && html`
      <dl class="figures" aria-busy=${isLoading ? "true" : "false"}>
        <div><dt>Cost</dt><dd><${Money} value=${data.whole.total.known_cost_usd} isPartial=${data.whole.total.calls_without_price > 0} /></dd></div>
        <div><dt>Calls</dt><dd>${count(data.whole.total.calls)}</dd></div>
        <div><dt>Errors</dt><dd>${count(data.whole.total.errors)}</dd></div>
        <div><dt>Tokens in</dt><dd><${Tokens} value=${data.whole.total.usage.input_tokens} /></dd></div>
        <div><dt>of these cached</dt><dd>${data.whole.total.usage.input_tokens ? percent((data.whole.total.usage.cached_tokens || 0) / data.whole.total.usage.input_tokens) : "–"}</dd></div>
        <div><dt>Tokens out</dt><dd><${Tokens} value=${data.whole.total.usage.output_tokens} /></dd></div>
        <div><dt>Median duration</dt><dd>${duration(data.whole.total.duration_ms?.p50)}</dd></div>
      </dl>
      <${StackedBars} buckets=${buckets} series=${shownSeries} format=${format} isHourly=${data.by === "hour"} onZoom=${zoom} label=${`${title} by ${data.by} and ${groupName}; the table below has the numbers`} />
      <p class="muted hint">${query.since ? html`<time title=${exactTime(query.since)}>${time(query.since)}</time> to ${query.until ? time(query.until) : "now"}. ` : ""}Drag over the bars to zoom; <kbd>+</kbd> <kbd>-</kbd> and <kbd>Esc</kbd> do the same.</p>
      <${Legend} series=${shownSeries} totals=${totals} format=${format} />
      <div class="scroll" tabindex="0" role="region" aria-label="Sums"><table class="cost-table">
        <thead><tr><th>${GROUPS.find(([name]) => name === (query.by || "model"))?.[1] || "Model"}</th><th class="num">Calls</th><th class="num">Errors</th><th class="num">Tokens in</th><th class="num">Cached</th><th class="num">Tokens out</th><th class="num">p50</th><th class="num">p99</th><th class="num">Cost</th><th class="num">Share of ${title.toLowerCase()}</th></tr></thead>
        <tbody>${data.whole.items.map((item) => {
          const name = nameOf(item.group[groupName]);
          return html`<tr key=${name}><td><button class="link" title="Show its runs" onClick=${() => runsOf(name)}>${visible(name)}</button></td><td class="num">${count(item.calls)}</td><td class="num">${count(item.errors)}</td><td class="num"><${Tokens} value=${item.usage.input_tokens} /></td><td class="num"><${Tokens} value=${item.usage.cached_tokens} /></td><td class="num"><${Tokens} value=${item.usage.output_tokens} /></td><td class="num">${duration(item.duration_ms?.p50)}</td><td class="num">${duration(item.duration_ms?.p99)}</td><td class="num"><${Money} value=${item.known_cost_usd} isPartial=${item.calls_without_price > 0} /></td><td class="num">${whole ? percent(value(item) / whole) : "–"}</td></tr>`;
        })}</tbody>
      </table></div>`}
  </div>`;
}
