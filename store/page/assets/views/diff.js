// Two runs, aligned from the first call that differs: what differs, why, and what follows from it.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { get } from "../core/api.js";
import { Link, callPath, path as apiPath, runPath, setQuery } from "../core/router.js";
import { useKeys } from "../core/keys.js";
import { count, duration, money, tokens, visible } from "../core/format.js";
import { Badge, Copy, Empty, ErrorNote, JsonLink, Loading, useLoad } from "../core/parts.js";
import { Differences } from "./differences.js";

const CAUSES = {
  same: ["same", ""], volatile: ["volatile only", ""], order: ["order", "info"], model: ["model changed", "warn"],
  tool_answer: ["tool answer changed", "warn"], answer: ["answer changed", "warn"], failure: ["ended differently", "bad"],
  prompt: ["prompt changed", "info"], follows: ["follows", ""], missing: ["only in A", "bad"], extra: ["only in B", "good"], unexamined: ["not examined", ""],
};
const causeOf = (pair) => pair.cause || "unexamined";
const isEqual = (pair) => pair.cause === "same" || pair.cause === "volatile";
const PAGE = 200;

export default function DiffView({ params, query }) {
  const path = apiPath`/v1/runs/${params.a}/diff/${params.b}`;
  const { data, error, reload } = useLoad(() => get(path), [path]);
  if (error) return html`<${ErrorNote} error=${error} retry=${reload} as="h1" />`;
  if (!data) return html`<h1 class="cut">${visible(params.a)} and ${visible(params.b)}</h1><${Loading} />`;
  return html`<${Diff} diff=${data} path=${path} query=${query} />`;
}

function Diff({ diff, path, query }) {
  const places = diff.pairs.map((pair, place) => place).filter((place) => !isEqual(diff.pairs[place]));
  const first = firstPlace(diff, places);
  const asked = query.at === undefined ? first : diff.pairs.findIndex((pair, place) => String(place) === query.at);
  const at = asked >= 0 ? asked : first;
  const isSideBySide = query.view === "side";
  const changeView = () => setQuery({ view: isSideBySide ? null : "side" });
  const select = (place) => setQuery({ at: String(place) });
  const move = (step) => {
    const next = step > 0 ? places.find((place) => place > at) : places.findLast((place) => place < at);
    if (next !== undefined) select(next);
  };
  useKeys({
    n: { label: "next difference", run: () => move(1) },
    p: { label: "previous difference", run: () => move(-1) },
    u: { label: "unified or side by side", run: changeView },
  });
  return html`
    <div class="bar">
      <h1 class="diff-title"><span class="side-mark is-a">A</span><${Link} to=${runPath(diff.a.run)} class="cut">${visible(diff.a.run)}</${Link}>
        <span class="side-mark is-b">B</span><${Link} to=${runPath(diff.b.run)} class="cut">${visible(diff.b.run)}</${Link}></h1>
      <span class="grow"></span><${JsonLink} path=${path} />
    </div>
    <${Verdict} diff=${diff} onOpen=${() => select(first)} />
    <${Totals} diff=${diff} />
    ${diff.pairs.length === 0 || places.length === 0 ? html`<${Empty}
      title="No differences"><p>All ${count(diff.a.calls)} calls are the same${diff.counts.volatile ? ", except for values that change in every run" : ""}.</p></${Empty}>` : html`
    <div class="bar diff-bar">
      ${Object.entries(diff.counts).map(([cause, number]) => html`<${Cause} key=${cause} cause=${cause}> ${count(number)}</${Cause}>`)}
      <span class="grow"></span>
      <span class="count">${places.indexOf(at) + 1 || "–"} of ${count(places.length)}</span>
      <button onClick=${() => move(-1)} disabled=${!(places[0] < at)} title="Previous difference (p)" aria-label="Previous difference">↑</button>
      <button onClick=${() => move(1)} disabled=${!(places[places.length - 1] > at)} title="Next difference (n)" aria-label="Next difference">↓</button>
      <button aria-pressed=${isSideBySide} onClick=${changeView}
        title="Unified or side by side (u)">${isSideBySide ? "Unified" : "Side by side"}</button>
    </div>
    <${Pairs} diff=${diff} at=${at} select=${select} isSideBySide=${isSideBySide} />`}`;
}

function firstPlace(diff, places) {
  const { first } = diff;
  const found = first ? diff.pairs.findIndex((pair) => (pair.a?.step ?? null) === first.a_step && (pair.b?.step ?? null) === first.b_step) : -1;
  return found >= 0 ? found : places[0] ?? 0;
}

const Cause = ({ cause, children }) => html`<${Badge} tone=${CAUSES[cause]?.[1] ?? ""}>${CAUSES[cause]?.[0] ?? cause}${children}</${Badge}>`;

function Verdict({ diff, onOpen }) {
  if (diff.same) return html`<div class="note good"><strong>The runs are the same</strong></div>`;
  const { first, cause } = diff;
  if (!first) return null;
  return html`<div class="note ${CAUSES[first.cause]?.[1] || "info"} diff-verdict">
    <strong>First difference: <button class="link" onClick=${onOpen}>${visible(first.words)}</button></strong>
    ${first.leads_to > 0 && html`<p>Later differences that follow from it: ${count(first.leads_to)}.</p>`}
    ${cause && cause.words !== first.words && html`<p>Most follows from: ${visible(cause.words)} (later differences: ${count(cause.leads_to)}).</p>`}
  </div>`;
}

/** Name, label, how it is written.
 * @type {[string, string, (value: number) => string][]} */
const ROWS = [
  ["calls", "Calls", count], ["retries", "Further attempts", count], ["input_tokens", "Input tokens", tokens], ["output_tokens", "Output tokens", tokens],
  ["cost_usd", "Cost", money], ["duration_ms", "Time in calls", duration], ["wall_ms", "From start to end", duration],
];

function Totals({ diff }) {
  const delta = (name, format) => {
    const [one, other] = [diff.a[name], diff.b[name]];
    if (one === null || other === null) return "–";
    const change = other - one;
    return change === 0 ? "=" : `${change > 0 ? "+" : "−"}${format(Math.abs(change))}`;
  };
  return html`<div class="diff-totals" role="group" aria-label="Totals">${ROWS.map(([name, label, format]) => html`<dl key=${name}>
    <dt>${label}</dt><dd><span class="is-a">${format(diff.a[name])}</span><span class="arrow" aria-label="to">→</span><span
      class="is-b">${format(diff.b[name])}</span> <small>${delta(name, format)}</small></dd></dl>`)}</div>`;
}

function Pairs({ diff, at, select, isSideBySide }) {
  const [end, setEnd] = useState(PAGE);
  useEffect(() => { if (at >= end) setEnd(at + PAGE); }, [at]);
  const blocks = [];
  for (let place = 0; place < Math.min(end, diff.pairs.length); place++) {
    const last = blocks[blocks.length - 1];
    if (!isEqual(diff.pairs[place])) blocks.push({ place });
    else if (last?.equal) last.equal += 1;
    else blocks.push({ place, equal: 1 });
  }
  return html`<div class="diff-pairs">
    ${diff.equal_prefix > 0 && html`<p class="equal">${count(diff.equal_prefix)} equal ${diff.equal_prefix === 1 ? "call" : "calls"} before the first difference</p>`}
    ${blocks.map(({ place, equal }) => equal
      ? html`<p class="equal" key=${place}>${count(equal)} equal ${equal === 1 ? "call" : "calls"}</p>`
      : html`<${Pair} key=${place} pair=${diff.pairs[place]} isOpen=${place === at} onOpen=${() => select(place)} isSideBySide=${isSideBySide} />`)}
    ${end < diff.pairs.length && html`<button onClick=${() => setEnd(end + PAGE)}>Show ${count(Math.min(PAGE, diff.pairs.length - end))} more calls</button>`}
  </div>`;
}

const stepName = (step) => (step ? `step ${step.step}` : "–");
const what = (step) => `${step.method} ${step.host}${step.path ?? ""}`;

function Pair({ pair, isOpen, onOpen, isSideBySide }) {
  const root = useRef(null);
  useEffect(() => {
    if (isOpen) root.current.scrollIntoView({ block: "nearest" });
  }, [isOpen]);
  const step = pair.a || pair.b;
  const cause = causeOf(pair);
  return html`<section class="diff-pair cause-${cause in CAUSES ? cause : "unexamined"} ${isOpen ? "is-open" : ""}" ref=${root}
    aria-current=${isOpen ? "true" : undefined}>
    <button class="pair-head" onClick=${onOpen} aria-expanded=${isOpen}>
      <span class="pair-steps"><span class="is-a">${stepName(pair.a)}</span><span class="arrow">→</span><span class="is-b">${stepName(pair.b)}</span></span>
      <${Cause} cause=${cause} />
      <span class="cut grow">${step.kind === "model" && step.model_requested ? html`<strong>${visible(step.model_requested)}</strong> ` : ""}<span
        class="muted">${visible(what(step))}</span></span>
      ${pair.follows && html`<small>after ${stepName({ step: pair.follows.a_step ?? pair.follows.b_step })}</small>`}
    </button>
    ${isOpen && html`<${PairBody} pair=${pair} isSideBySide=${isSideBySide} />`}
  </section>`;
}

/** Name, unit, how it is written.
 * @type {[string, string, (value: number) => string][]} */
const DELTAS = [
  ["input_tokens", "input tokens", count], ["output_tokens", "output tokens", count], ["cost_usd", "", money], ["duration_ms", "", duration],
];

const describeDelta = (delta) => DELTAS.filter(([name]) => delta[name])
  .map(([name, unit, format]) => `${delta[name] > 0 ? "+" : "−"}${format(Math.abs(delta[name]))} ${unit}`).join(" · ");

function PairBody({ pair, isSideBySide }) {
  const [showsVolatile, setShowsVolatile] = useState(false);
  const part = (title, list) => list.length > 0 && html`<h2>${title}</h2><${Differences} differences=${list} isSideBySide=${isSideBySide} />`;
  const call = (step) => step && html`<${Link} to=${callPath(step.run, step.call)}>${step.name}</${Link}>`;
  const changed = ["model_returned", "system_fingerprint", "status", "outcome"].filter((name) => pair.a && pair.b && pair.a[name] !== pair.b[name]);
  return html`<div class="pair-body">
    <p>${visible(pair.words)}${pair.moved ? " (moved)" : ""}</p>
    ${changed.length > 0 && html`<dl
      class="pair-facts">${changed.map((name) => html`<div key=${name}><dt>${name.replace("_", " ")}</dt>
      <dd><del>${visible(String(pair.a[name] ?? "none"))}</del> <ins>${visible(String(pair.b[name] ?? "none"))}</ins></dd></div>`)}</dl>`}
    ${part("Request", pair.request)}
    ${part("Answer", pair.answer)}
    ${pair.volatile.length > 0 && html`<button class="quiet" aria-expanded=${showsVolatile}
      onClick=${() => setShowsVolatile(!showsVolatile)}>${showsVolatile ? "Hide" : "Show"} ${count(pair.volatile.length)} volatile ${pair.volatile.length === 1 ? "value" : "values"}</button>`}
    ${showsVolatile && html`<${Differences} differences=${pair.volatile} isSideBySide=${isSideBySide} />`}
    ${pair.more > 0 && html`<p class="count">and ${count(pair.more)} more places</p>`}
    <footer class="count">${[pair.a && call({ ...pair.a, name: "Call in A" }), pair.b && call({ ...pair.b, name: "Call in B" })]}
      ${pair.delta && html`<span>${describeDelta(pair.delta)}</span>`}
      <${Copy} text=${() => location.href} label="Copy link" /></footer>
  </div>`;
}
