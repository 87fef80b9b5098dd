// Changes of the models behind their names, on a time line, with what says so.
import { html, useRef } from "../core/html.js";
import { get } from "../core/api.js";
import { Link, callPath, pick, setQuery } from "../core/router.js";
import { count, duration, exactTime, percent, shortDay, shortTime, visible } from "../core/format.js";
import { AddressInput, Badge, Empty, JsonLink, Loaded, Table, Time, useLoad, useWidth } from "../core/parts.js";

const LANE = 22;
const LEFT = 290;

const variantName = (one) => `${one.model_returned}${one.system_fingerprint ? ` · ${one.system_fingerprint}` : ""}`;

/** A change is marked from the name of its model to the variant that began to answer, across no other model. */
function TimeLine({ variants }) {
  const root = useRef(null);
  const width = useWidth(root, 800);
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
  return html`<figure class="chart" ref=${root}><svg width=${width} height=${height} role="img"
    aria-label="When each variant of each model answered; the tables below have the numbers">
    ${marksOf(start, end).map((at) => html`<g key=${at}><line class="grid" x1=${x(at)} x2=${x(at)} y1="0" y2=${height - 22} /><text
      class="tick-x" x=${Math.min(x(at), width - 30)} y=${height - 6} text-anchor="middle">${end - start < 100 * HOUR ? shortTime(at) : shortDay(at)}</text></g>`)}
    ${rows.map((row, place) => (row.name
      ? html`<text key=${place} class="lane-name" x="0" y=${place * LANE + 16}>${visible(row.name)}</text>`
      : html`<g key=${place}><title>${`${variantName(row.one)}: ${count(row.one.calls)} calls, ${exactTime(row.one.first_at)} to ${exactTime(row.one.last_at)}`}</title>
          <text class="lane-label" x="10" y=${place * LANE + 15}>${visible(variantName(row.one)).slice(0, Math.floor((left - 18) / 6.7))}</text>
          <rect class="s${(row.colour % 8) + 1}" rx="3" x=${x(row.one.first_at)} width=${Math.max(4, x(row.one.last_at) - x(row.one.first_at))} y=${place * LANE + 5}
            height=${LANE - 10} />
          ${row.colour > 0 && html`<line class="change" x1=${x(row.one.first_at)} x2=${x(row.one.first_at)} y1=${(place - row.colour) * LANE}
            y2=${(place + 1) * LANE} />`}</g>`))}
  </svg></figure>`;
}

const HOUR = 3_600_000;
const SIZES = [1, 3, 6, 12, 24, 48, 168, 336, 720, 2160, 8760];

/** Round times of the reader's zone between two, six at most. */
function marksOf(start, end) {
  const size = (SIZES.find((hours) => (end - start) / (hours * HOUR) <= 5) ?? 87_600) * HOUR;
  const zone = new Date(start).getTimezoneOffset() * 60_000;
  const marks = [];
  for (let at = Math.ceil((start - zone) / size) * size + zone; at <= end; at += size) marks.push(new Date(at).toISOString());
  return marks;
}

/** Calls by their ids alone: the page of a call finds its run. */
const examples = (ids) => ids.slice(0, 3).map((id, place) => html`<${Link} key=${id} to=${callPath("-", id)} title=${id}>call ${place + 1}</${Link}> `);

const CHANGE_HEADS = ["When", "Model", "Was", "Is", "Same requests, other answers", "Examples"];
const VARIANT_HEADS = ["Asked for", "Provider", "Answered", "Fingerprint", "#Calls", "#First", "#Last"];
const mono = (text) => html`<span class="mono">${visible(text)}</span>`;
const at = (moment) => html`<${Time} at=${moment} />`;

function changeRow({ first_at: first, model_requested: model, provider, from, to, replaced, rolled_out: rolledOut, same_requests: same, examples: { before, after } }) {
  return [
    at(first), html`${visible(model || "–")} <small>${visible(provider)}</small>`, mono(variantName(from)),
    html`${mono(variantName(to))} ${replaced || rolledOut
      ? html`<${Badge} tone="warn" title="the old one has stopped">replaced</${Badge}>` : html`<${Badge} title="both answer">alternates</${Badge}>`}`,
    same?.asked_again ? `${count(same.answered_otherwise)} of ${count(same.asked_again)} (${percent(same.answered_otherwise / same.asked_again)})` : "–",
    html`${examples(before)} → ${examples(after)}`,
  ];
}

const variantRow = (one) => [
  visible(one.model_requested || "–"), visible(one.provider), mono(one.model_returned), mono(one.system_fingerprint || "–"),
  count(one.calls), at(one.first_at), at(one.last_at),
];

const LATENCY_HEADS = ["Model", "Until", "Since", "Verdict", "#Median before", "#Median since", "#Calls before", "#Calls since"];
const MEASURES = { first_byte: "first byte", duration: "end" };
const TONES = { slower: "warn", faster: "good" };

/** What became slower or faster, or cannot be judged although its latency changed. */
const latencyRows = (latencies) => latencies.flatMap(({ provider, model_requested: model, ...judged }) =>
  Object.entries(MEASURES).filter(([name]) => judged[name].since).map(([name, label]) => {
    const { verdict, why, since, ratio, before, after } = judged[name];
    return [
      html`${visible(model)} <small>${visible(provider)}</small>`, label, at(since),
      html`<${Badge} tone=${TONES[verdict]} title=${why}>${verdict}${verdict === "unknown" ? "" : ` (${ratio.toFixed(1)} times)`}</${Badge}>${why && html` <small>${why}</small>`}`,
      duration(before.median_ms), duration(after.median_ms), count(before.calls), count(after.calls),
    ];
  }));

export default function Drift({ query }) {
  const filters = pick(query, ["since", "until", "model", "provider"]);
  const found = useLoad(() => get("/v1/drift", filters), [JSON.stringify(filters)]);
  return html`<div class="drift">
    <div class="bar"><h1>Drift</h1><span class="muted">when another model, or another version of it, began to answer to the same name</span><span class="grow"></span>
      <form onSubmit=${(event) => event.preventDefault()}>
        <${AddressInput} type="search" aria-label="Model" placeholder="Model" value=${query.model || ""} onCommit=${(model) => setQuery({ model })} /></form>
      <${JsonLink} path="/v1/drift" params=${filters} /></div>
    <${Loaded} of=${found} height="300px">${({ variants, items, latencies }) => (variants.length === 0
      ? html`<${Empty} title="No model has answered yet"><p>Changes show here as soon as runs are recorded.</p></${Empty}>`
      : html`<h2>${items.length === 0 ? "No change was seen" : items.length === 1 ? "1 change" : `${count(items.length)} changes`}</h2>
        ${items.length > 0 && html`<${Table} label="Changes" heads=${CHANGE_HEADS} rows=${items.map(changeRow)} />`}
        ${latencyRows(latencies)[0] && html`<h2>Slower or faster</h2>
          <${Table} label="Latency" heads=${LATENCY_HEADS} rows=${latencyRows(latencies)} />`}
        <h2>What answered</h2>
        <${TimeLine} variants=${variants} />
        <${Table} label="What answered" heads=${VARIANT_HEADS} rows=${variants.map(variantRow)} />`)}</${Loaded}>
  </div>`;
}
