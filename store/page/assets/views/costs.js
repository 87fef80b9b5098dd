// What calls cost over time, by model, tool, label and so on: bars, and a table with the same numbers.
import { html } from "../core/html.js";
import { get } from "../core/api.js";
import { listOf, navigate, pick, setQuery } from "../core/router.js";
import { count, duration, money, percent, time, tokens, visible } from "../core/format.js";
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
const COUNTS = { input_tokens: "Tokens in", cached_tokens: "Cached", output_tokens: "Tokens out" };
const FILTERS = ["since", "until", "label", "model", "provider", "tool", "host", "status", "kind", "dialect", "operation", "actor"];
const SPANS = [["1", "24 h"], ["7", "7 d"], ["30", "30 d"], ["90", "90 d"], ["all", "All"]];
const HOUR = 3_600_000;
const DAY = 24 * HOUR;
const lengthOf = (by) => (by === "hour" ? HOUR : DAY);
const MOST_GROUPS = 1000; // in an answer of the API
const MOST_BARS = 800;
const TABLE_ROWS = 200;
const OTHERS = "all others";
const NONE = "without one";
const iso = (ms) => new Date(ms).toISOString().replace(/\.\d+Z/, "Z");
const atHour = (ms, round = Math.floor) => iso(round(ms / HOUR) * HOUR);

/** The sums of all groups of each bucket: an answer has those of the newest buckets, and may end within its last one. */
async function loadOverTime(filters, by, group, until = filters.until, left = 20) {
  const { items } = await get("/v1/stats", { ...filters, until, group_by: [by, group] });
  const oldest = items.at(-1)?.group[by];
  const ended = items.filter((item) => item.group[by] !== oldest);
  if (items.length < MOST_GROUPS || !ended.length || !left) return items;
  return [...ended, ...await loadOverTime(filters, by, group, iso(Date.parse(oldest) + lengthOf(by)), left - 1)];
}

/** All buckets between the first and the last, so that a day without calls is an empty place; of too many, the newest that have calls. */
function bucketsOf(items, by, name, series, value, { since, until }) {
  const step = lengthOf(by);
  const times = items.map((item) => Date.parse(item.group[by]));
  const [oldest, newest] = [Math.min(...times), Math.max(...times)];
  let first = since ? Math.floor(Date.parse(since) / step) * step : oldest;
  let last = until ? Math.ceil(Date.parse(until) / step - 1) * step : newest;
  if (last - first > MOST_BARS * step) [first, last] = [Math.max(oldest, newest - MOST_BARS * step), newest];
  const buckets = new Map();
  for (let at = first; at <= last; at += step) buckets.set(at, { at: iso(at), values: new Map() });
  for (const item of items) {
    const values = buckets.get(Date.parse(item.group[by]))?.values;
    const own = nameOf(item.group[name]);
    const shown = series.includes(own) ? own : OTHERS;
    values?.set(shown, (values.get(shown) || 0) + value(item));
  }
  return [...buckets.values()];
}

const nameOf = (value) => String(value ?? NONE);

export default function Costs({ query }) {
  const group = query.by === "label" ? `label:${query.name || "env"}` : query.by in GROUPS ? query.by : "model";
  const [title, value, format] = MEASURES[query.measure] || MEASURES.cost;
  const filters = pick(query, FILTERS);
  const width = query.since ? (query.until ? Date.parse(query.until) : Date.now()) - Date.parse(query.since) : Infinity;
  const by = width <= 4 * DAY ? "hour" : "day";
  const { data, error, isLoading, reload } = useLoad(async () => {
    const [overTime, whole] = await Promise.all([
      loadOverTime(filters, by, group),
      get("/v1/stats", { ...filters, group_by: group, sort: query.measure || "cost", limit: TABLE_ROWS }),
    ]);
    return { overTime, whole, by, group, filters };
  }, [JSON.stringify(filters), by, group, query.measure]);
  const span = (days) => setQuery({ until: null, since: days === "all" ? null : atHour(Date.now() - days * DAY) });
  const showAll = () => setQuery({ since: null, until: null });
  const zoom = (first, last) => setQuery({ since: first, until: iso(Date.parse(last) + lengthOf(by)) }, { replace: false });
  const zoomBy = (factor) => {
    const end = query.until ? Date.parse(query.until) : Date.now();
    const length = query.since ? end - Date.parse(query.since) : 30 * DAY;
    const middle = end - length / 2;
    const half = Math.max(HOUR, (length / 2) * factor);
    setQuery({ since: atHour(middle - half), until: atHour(middle + half, Math.ceil) });
  };
  useKeys({
    "+": { label: "zoom in", run: () => zoomBy(0.5) }, "-": { label: "zoom out", run: () => zoomBy(2) },
    Escape: { label: "back: the whole time", run: showAll },
  });
  const groupName = data?.group || group;
  const series = data ? data.whole.items.slice(0, COLOURS).map((item) => nameOf(item.group[groupName])) : [];
  const shownSeries = data?.whole.items.length > COLOURS ? [...series, OTHERS] : series;
  const buckets = data?.overTime.length ? bucketsOf(data.overTime, data.by, groupName, series, value, data.filters) : [];
  const totals = new Map();
  let drawn = 0;
  for (const bucket of buckets) {
    for (const [name, amount] of bucket.values) {
      totals.set(name, (totals.get(name) || 0) + amount);
      drawn += amount;
    }
  }
  const total = data?.whole.total;
  const whole = total ? value(total) : 0;
  const runsOf = (name) => navigate("/", { ...filters,
    ...(groupName.startsWith("label:") ? { label: [...listOf(filters.label), `${groupName.slice(6)}=${name}`] } : { [groupName]: name }) });
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
      ...Object.keys(COUNTS).map((one) => html`<${Tokens} value=${usage[one]} />`),
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
      onClick=${showAll}>Show the whole time</button></p></${Empty}>`}
    ${buckets.length > 0 && html`
      <dl class="figures" aria-busy=${isLoading}>
        ${figure("Cost", partial(total))}
        ${figure("Calls", count(total.calls))}
        ${figure("Errors", count(total.errors))}
        ${Object.entries(COUNTS).map(([name, label]) => figure(label, html`<${Tokens} value=${total.usage[name]} />`))}
        ${figure("Median duration", duration(total.duration_ms?.p50))}
      </dl>
      <${StackedBars} buckets=${buckets} series=${shownSeries} format=${format} isHourly=${data.by === "hour"} onZoom=${zoom} label=${chartLabel} />
      <p class="muted hint">${query.since && `${time(query.since)} to ${query.until ? time(query.until) : "now"}. `}
        ${data.by === "day" && "Days are of UTC. "}Drag over the bars to zoom, or press <kbd>+</kbd> <kbd>-</kbd> <kbd>Esc</kbd>.${
          drawn < whole * 0.999 && ` The bars lack ${percent(1 - drawn / whole)}: too many groups.`}${
          data.whole.items.length === TABLE_ROWS && ` The table has the first ${TABLE_ROWS}.`}</p>
      <${Legend} series=${shownSeries} totals=${totals} format=${format} />
      <${Table} label="Sums" className="cost-table" rows=${data.whole.items.map(row)}
        heads=${[GROUPS[query.by] || "Model", "#Calls", "#Errors", ...Object.values(COUNTS).map((one) => `#${one}`), "#p50", "#p99", "#Cost", `#Share of ${title.toLowerCase()}`]} />`}
  </div>`;
}
