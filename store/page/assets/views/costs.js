// What calls cost over time, by model, tool, label and so on: bars, and a table with the same numbers.
import { html } from "../core/html.js";
import { get } from "../core/api.js";
import { listOf, navigate, pick, setQuery } from "../core/router.js";
import { count, duration, exactTime, money, percent, time, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { AddressInput, Choice, Empty, ErrorNote, JsonLink, Loading, Money, Table, Tokens, useLoad } from "../core/parts.js";
import { COLOURS, Legend, StackedBars } from "./charts.js";

const GROUPS = {
  model: "Model", tool: "Tool", provider: "Provider", label: "Label", actor: "Agent", host: "Host", operation: "Operation", status: "HTTP status",
};
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
  const group = query.by === "label" ? `label:${query.name || "env"}` : query.by in GROUPS ? query.by : "model";
  const [title, value, format] = MEASURES[query.measure] || MEASURES.cost;
  const filters = pick(query, FILTERS);
  const width = query.since ? (query.until ? Date.parse(query.until) : Date.now()) - Date.parse(query.since) : Infinity;
  const by = width <= 4 * DAY ? "hour" : "day";
  const { data, error, isLoading, reload } = useLoad(async () => {
    const [overTime, whole] = await Promise.all([
      get("/v1/stats", { ...filters, group_by: [by, group] }),
      get("/v1/stats", { ...filters, group_by: group, sort: query.measure || "cost", limit: 200 }),
    ]);
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
  const total = data?.whole.total;
  const filterOf = (name) => (groupName.startsWith("label:") ? { label: [...listOf(filters.label), `${groupName.slice(6)}=${name}`] } : { [groupName]: name });
  const runsOf = (name) => navigate("/", { ...filters, ...filterOf(name) });
  const partial = (sums) => html`<${Money} value=${sums.known_cost_usd} isPartial=${sums.calls_without_price > 0} />`;
  // Of a call that was tried again, each status is of one of its tries.
  const callsOf = (item) => (groupName === "status" && item.exchanges !== item.calls
    ? `${count(item.calls)} (${count(item.exchanges)} ${item.exchanges === 1 ? "try" : "tries"})` : count(item.calls));
  const row = (item) => {
    const name = nameOf(item.group[groupName]);
    const { usage, duration_ms: took } = item;
    return [
      name === NONE ? html`<span class="muted">${NONE}</span>`
        : html`<button class="link" title="Show its runs" onClick=${() => runsOf(name)}>${visible(name)}</button>`, callsOf(item), count(item.errors),
      ...["input_tokens", "cached_tokens", "output_tokens"].map((one) => html`<${Tokens} value=${usage[one]} />`),
      duration(took?.p50), duration(took?.p99), partial(item), whole ? percent(value(item) / whole) : "–",
    ];
  };
  const figure = (name, shown) => html`<div><dt>${name}</dt><dd>${shown}</dd></div>`;
  const chartLabel = `${title} by ${data?.by} and ${groupName}; the table below has the numbers`;
  return html`<div class="costs">
    <div class="bar"><h1>Costs</h1>
      <${Choice} label="Measure" value=${query.measure || "cost"} options=${Object.entries(MEASURES).map(([name, [label]]) => [name, label])}
        onChange=${(name) => setQuery({ measure: name === "cost" ? null : name })} />
      <label>by <select value=${query.by || "model"} onChange=${({ target }) => setQuery({ by: target.value === "model" ? null : target.value })}>
        ${Object.entries(GROUPS).map(([name, label]) => html`<option key=${name} value=${name}>${label}</option>`)}</select></label>
      ${query.by === "label" && html`<${AddressInput} type="text" aria-label="Name of the label" value=${query.name || "env"}
        onCommit=${(name) => setQuery({ name })} />`}
      <span class="grow"></span>
      <${Choice} label="Time" value=${query.since ? null : "all"} options=${SPANS} onChange=${span} />
      <${JsonLink} path="/v1/stats" params=${{ ...filters, group_by: [by, group] }} />
    </div>
    <${ErrorNote} error=${error} retry=${reload} />
    ${!data && !error && html`<${Loading} height="340px" />`}
    ${data && !buckets.length && html`<${Empty} title="No calls in this time"><p><button
      onClick=${() => setQuery({ since: null, until: null })}>Show the whole time</button></p></${Empty}>`}
    ${buckets.length > 0 && html`
      <dl class="figures" aria-busy=${isLoading}>
        ${figure("Cost", partial(total))}
        ${figure("Calls", count(total.calls))}
        ${figure("Errors", count(total.errors))}
        ${figure("Tokens in", html`<${Tokens} value=${total.usage.input_tokens} />`)}
        ${figure("Cached", html`<${Tokens} value=${total.usage.cached_tokens} />`)}
        ${figure("Tokens out", html`<${Tokens} value=${total.usage.output_tokens} />`)}
        ${figure("Median duration", duration(total.duration_ms?.p50))}
      </dl>
      <${StackedBars} buckets=${buckets} series=${shownSeries} format=${format} isHourly=${data.by === "hour"} onZoom=${zoom} label=${chartLabel} />
      <p class="muted hint">${query.since && html`<time title=${exactTime(query.since)}>${time(query.since)}</time> to ${query.until ? time(query.until) : "now"}. `}
        Drag over the bars to zoom; <kbd>+</kbd> <kbd>-</kbd> and <kbd>Esc</kbd> do the same.</p>
      <${Legend} series=${shownSeries} totals=${totals} format=${format} />
      <${Table} label="Sums" className="cost-table" rows=${data.whole.items.map(row)}
        heads=${[GROUPS[query.by] || "Model", "#Calls", "#Errors", "#Tokens in", "#Cached", "#Tokens out", "#p50", "#p99", "#Cost", `#Share of ${title.toLowerCase()}`]} />`}
  </div>`;
}
