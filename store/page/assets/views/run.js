// A run: what it did, what it cost, what failed. The state of the view (`step`, `t`, `zoom`, `view`, `from`) is in the address.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { events, get, isOffline } from "../core/api.js";
import { count, duration, money, outcomeWord, percent, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import {
  Badge, Chip, Copy, Duration, Empty, ErrorNote, JsonLink, Loading, Money, Stat, Tabs, Time, Tokens, allows, useLoad, useMost, useSession,
} from "../core/parts.js";
import { Link, callPath, navigate, path, runPath, setQuery } from "../core/router.js";
import { Conversation, StatusBadge, useConversation } from "./conversation.js";
import { Fork, ProofBadge, RunActions, setPinned } from "./actions.js";
import { loadTimeline, partOf, seenTimeline } from "./timelines.js";
import { Scrubber, Waterfall, stepEnd } from "./waterfall.js";

const number = (text) => (text === undefined || text === "" || Number.isNaN(Number(text)) ? null : Number(text));

/** The steps of a run after one, loaded again when something of the run is recorded. */
function useTimeline(run, after) {
  const [state, setState] = useState({ data: seenTimeline(run, after), error: null });
  const [link, setLink] = useState("");
  const reload = useRef(() => {});
  useEffect(() => {
    let isCurrent = true;
    let isLoading = false;
    let isStale = false;
    let timer = 0;
    const load = async () => {
      if (isLoading) { isStale = true; return; }
      isLoading = true;
      isStale = false;
      try {
        const data = await loadTimeline(run, after);
        if (isCurrent) setState({ data, error: null });
      } catch (error) {
        if (isCurrent) setState((before) => ({ ...before, error }));
      }
      isLoading = false;
      if (isStale && isCurrent) timer = setTimeout(load, 1000);
    };
    reload.current = load;
    load();
    const stop = events({ run }, () => {
      clearTimeout(timer);
      timer = setTimeout(load, 400);
    }, (name) => isCurrent && setLink(name));
    return () => { isCurrent = false; clearTimeout(timer); stop(); };
  }, [run, after]);
  return { ...state, link, reload: () => reload.current() };
}

const ISOLATION = {
  captive: ["good", "all its traffic went through Playhead"],
  watched: ["", "proxy variables; what ignores them is not seen"],
  none: ["", "only what was sent to the proxy is recorded"],
};
const ATTRIBUTION = { given: null, derived: ["", "derived from ids in the traffic"], guessed: ["warn", "some calls may belong to another run"] };

function Badges({ run, timeline, link }) {
  const attribution = ATTRIBUTION[run.attribution];
  const isolation = ISOLATION[run.isolation];
  const { data } = useLoad(async () => (isOffline ? null : (await get("/v1/marks", { run: run.id })).items[0]), [run.id, timeline]);
  return html`<p class="badges">
    ${run.ended_at === null
      ? html`<${Badge} tone="info">${link === "waiting" ? "running, reconnecting" : "running"}</${Badge}>` : html`<${Badge}>ended</${Badge}>`}
    ${timeline.failed.count ? html`<${Badge} tone="bad">${count(timeline.failed.count)} failed</${Badge}>` : html`<${Badge} tone="good">no failures</${Badge}>`}
    ${run.gaps ? html`<${Badge} tone="bad">${count(run.gaps)} not recorded</${Badge}>`
      : run.complete ? html`<${Badge} tone="good">complete</${Badge}>`
        : html`<${Badge} tone="warn" title="an exchange was cut, or an answer broke off">incomplete</${Badge}>`}
    <${Badge} tone=${isolation?.[0]} title=${isolation?.[1]}>${run.isolation === "none" ? "not isolated" : run.isolation}</${Badge}>
    ${attribution && html`<${Badge} tone=${attribution[0]} title=${attribution[1]}>attribution ${run.attribution}</${Badge}>`}
    <${ProofBadge} proof=${data?.proof} />
    ${run.pinned && html`<${Badge}>pinned</${Badge}>`}
    ${run.parent && html`<span>fork of <${Link} to=${runPath(run.parent)} params=${run.forked_at ? { step: run.forked_at } : {}}>${visible(run.parent)}</${Link}>
      ${run.forked_at !== null && ` after step ${run.forked_at}`}</span>`}
    ${Object.entries(run.labels).slice(0, 12).map(([name, value]) => html`<${Chip} key=${name}>${`${name}=${value}`}</${Chip}>`)}
  </p>`;
}

function Header({ timeline, link, onSelect, onChange, isMenuOpen, onMenuClose }) {
  const { run, failed, gaps } = timeline;
  const { first } = failed;
  const isPartial = run.unpriced > 0;
  const unpriced = isPartial ? `${count(run.unpriced)} ${run.unpriced === 1 ? "request" : "requests"} without a price` : null;
  const amount = (value, name) => (value ? `${tokens(value)} ${name}` : null);
  return html`<header class="run-head">
    <div class="run-title">
      <h1>${visible(run.name || run.id)}</h1>
      ${run.name && html`<span class="chip mono" title="id">${run.id}</span>`}<${Copy} text=${run.id} label="Copy id" />
      <span class="grow"></span><${RunActions} run=${run} onChange=${onChange} isOpen=${isMenuOpen} onClose=${onMenuClose} /><${JsonLink} path=${path`/v1/runs/${run.id}/timeline`} />
    </div>
    <${Badges} run=${run} timeline=${timeline} link=${link} />
    <dl class="stats">
      <${Stat} label="Began"><${Time} at=${run.started_at} /></${Stat}>
      <${Stat} label="Took" note=${timeline.thinking_ms > 0 && timeline.duration_ms > 0 ? `${percent(timeline.thinking_ms / timeline.duration_ms)} thinking` : null}>
        <${Duration} ms=${timeline.duration_ms} /></${Stat}>
      <${Stat} label="Calls" note=${run.exchanges > run.calls ? `${count(run.exchanges)} exchanges` : null}>${count(run.calls)}</${Stat}>
      <${Stat} label="Tokens in" note=${amount(run.tokens.cached_tokens, "cached")}><${Tokens} value=${run.tokens.input_tokens} /></${Stat}>
      <${Stat} label="Tokens out" note=${amount(run.tokens.reasoning_tokens, "reasoning")}><${Tokens} value=${run.tokens.output_tokens} /></${Stat}>
      <${Stat} label="Cost" note=${unpriced}><${Money} value=${run.known_cost_usd} isPartial=${isPartial} /></${Stat}>
      <${Stat} label=${run.models.length === 1 ? "Model" : "Models"}><span class="models">
        ${run.models.length ? run.models.slice(0, 6).map((model) => html`<${Chip} key=${model}>${model}</${Chip}>`) : "–"}
        ${run.models.length > 6 && html`<small>+${run.models.length - 6}</small>`}</span></${Stat}>
    </dl>
    ${first && html`<p class="note bad"><strong>First failure:</strong> <button class="step-link"
      onClick=${() => onSelect(first.step)}>step ${first.step}, ${visible(first.label)}</button>
      ${first.status === null ? " got no response" : ` got ${first.status}`}${first.error && `: ${visible(first.error)}`}
      ${failed.count > 1 && html` <small>and ${count(failed.count - 1)} more</small>`}</p>`}
    ${gaps.length > 0 && html`<p class="note bad"><strong>Not everything was recorded:</strong> ${gapReasons(gaps)}
      ${timeline.gaps_left_out > 0 && ` and ${count(timeline.gaps_left_out)} more`}. A replay cannot answer what is missing.</p>`}
    <${Parts} timeline=${timeline} />
  </header>`;
}

/** Which part of a long run is shown, and the way to the others. */
function Parts({ timeline: { steps, steps_before: before, steps_left_out: later, next } }) {
  if (!before && !later) return null;
  const go = (from) => () => setQuery({ from: from || null, step: null, t: null, zoom: null }, { replace: false });
  const [first, last] = [steps[0]?.step ?? 0, steps[steps.length - 1]?.step ?? 0];
  const calls = before === 1 ? "call is" : "calls are";
  return html`<p class="note" role="status">Steps ${count(first)} to ${count(last)} of a long run: ${count(before)} ${calls} before, ${count(later)} after them.
    Times, failures and thinking are of this part; the other numbers are of the whole run. <button
      disabled=${!before} onClick=${go(partOf(first - 1))}>Earlier steps</button> <button disabled=${!later} onClick=${go(next)}>Later steps</button></p>`;
}

function gapReasons(gaps) {
  const sums = new Map();
  for (const gap of gaps) sums.set(gap.reason, (sums.get(gap.reason) || 0) + gap.count);
  return [...sums].slice(0, 5).map(([reason, times]) => `${count(times)} × ${visible(reason)}`).join("; ");
}

const STEP_HEADS = ["#Step", "What", "Ended", "#Begins", "#Takes", "#First byte", "#In", "#Out", "#Cost", "#Sum"];

/** All steps as a table, with the running sums. */
function Steps({ timeline, selected, onSelect, run }) {
  const [shown, more, setMost] = useMost(timeline.steps, 200, 500);
  const place = timeline.steps.findIndex((step) => step.step === selected);
  useEffect(() => { if (place >= shown.length) setMost(place + 100); }, [place]);
  const row = (step) => {
    const last = step.attempts[step.attempts.length - 1];
    const cells = [
      html`<${Link} to=${callPath(run, step.call)}>${step.step}</${Link}>`,
      html`<div class="cut step-what">${visible(step.label)} ${step.tools.length > 0 && html`<small>→ ${step.tools.map(visible).join(", ")}</small>`}
        ${step.excerpt && html` <small>${visible(step.excerpt)}</small>`}</div>`,
      html`${step.failed || outcomeWord(step) ? html`<${StatusBadge} step=${step} />` : step.status ?? "–"}${step.tries > 1 && html` <small>×${step.tries}</small>`}`,
      step.start_ms < 0.01 ? "0" : duration(step.start_ms), duration(stepEnd(step) - step.start_ms),
      duration(step.first_byte_ms === null || !last ? null : step.first_byte_ms - last.start_ms),
      tokens(step.usage.input_tokens), tokens(step.usage.output_tokens),
      step.kind !== "model" ? "" : step.unpriced ? "unknown" : money(step.cost_usd), money(step.cost_so_far_usd || null),
    ];
    return html`<tr key=${step.step} class=${step.step === selected ? "is-selected" : ""} onClick=${() => onSelect(step.step)}>
      ${cells.map((cell, at) => html`<td key=${at} class=${STEP_HEADS[at].startsWith("#") ? "num" : ""}>${cell}</td>`)}</tr>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Steps"><table class="steps">
    <thead><tr>${STEP_HEADS.map((head) => html`<th key=${head} class=${head.startsWith("#") ? "num" : ""}>${head.replace("#", "")}</th>`)}</tr></thead>
    <tbody>${shown.map(row)}</tbody></table>${more}</div>`;
}

/** Arrows from and to the selected step: what it continues, and the tools between an answer and the prompt that used them. */
function linksOf(step, timeline, items) {
  if (!step) return [];
  const found = new Map();
  const add = (from, to) => from && to && from !== to && found.set(`${from}-${to}`, [from, to]);
  for (const before of step.follows) add(before, step.step);
  for (const other of timeline.steps) if (other.follows.includes(step.step)) add(step.step, other.step);
  const item = items.get(step.step);
  for (const tool of item?.answer?.tool_calls || []) { add(step.step, tool.executed_by); add(tool.executed_by, tool.answered_by); }
  for (const message of item?.prompt?.messages || []) for (const part of message.parts) { add(part.asked_by, part.executed_by); add(part.executed_by, step.step); }
  if (item?.executes) {
    add(item.executes.step, step.step);
    for (const tool of items.get(item.executes.step)?.answer?.tool_calls || []) if (tool.executed_by === step.step) add(step.step, tool.answered_by);
  }
  return [...found.values()].slice(0, 60);
}

export default function Run({ params: { run }, query }) {
  const selected = number(query.step);
  const after = number(query.from) ?? (selected === null ? 0 : partOf(selected));
  const { data: timeline, error, link, reload } = useTimeline(run, after);
  const mayFork = allows(useSession(), "replay") && !isOffline;
  const [forkAt, setForkAt] = useState(null);
  const [isMenuOpen, setMenuOpen] = useState(false);
  const moment = number(query.t);
  const view = query.view === "steps" ? "steps" : "conversation";
  const zoom = useMemo(() => {
    const [from, to] = (query.zoom || "").split("-").map(Number);
    return to > from ? [from, to] : null;
  }, [query.zoom]);
  const steps = timeline?.steps || [];
  const numbers = useMemo(() => steps.map((step) => step.step), [timeline]);
  const conversation = useConversation(run, numbers, selected);
  const [scrolls, setScrolls] = useState(selected !== null);
  const select = (step) => { setScrolls(true); setQuery({ step }); };
  const place = numbers.indexOf(selected);
  const go = (by) => numbers.length && select(numbers[place < 0 ? (by > 0 ? 0 : numbers.length - 1) : Math.min(numbers.length - 1, Math.max(0, place + by))]);
  const open = (step) => navigate(callPath(run, step.call));
  const step = steps[place] || null;
  const first = timeline?.failed.first;
  const showView = (id) => setQuery({ view: id === "steps" ? id : null });
  const back = moment !== null ? { label: "to the end of the run", run: () => setQuery({ t: null }) }
    : selected !== null ? { label: "no step", run: () => setQuery({ step: null }) } : { label: "all runs", run: () => navigate("/") };
  useKeys({
    "]": { label: "next step", run: () => go(1) },
    "[": { label: "step before", run: () => go(-1) },
    j: () => go(1),
    k: () => go(-1),
    ...(step ? { Enter: { label: "open the call of the step", run: () => open(step) } } : {}),
    ...(first ? { e: { label: "first failure", run: () => select(first.step) } } : {}),
    ...(timeline && !isOffline ? {
      c: { label: "actions of the run", run: () => setMenuOpen(true) },
      p: { label: "pin or unpin", run: () => setPinned(timeline.run, !timeline.run.pinned).then(reload, () => {}) },
    } : {}),
    ...(timeline?.run.parent ? { d: { label: "compare with the run it is a fork of", run: () => navigate(path`/diff/${timeline.run.parent}/${run}`) } } : {}),
    v: { label: "conversation or table", run: () => showView(view === "steps" ? "" : "steps") },
    Escape: back,
  });
  const links = useMemo(() => (timeline ? linksOf(step, timeline, conversation.items) : []), [timeline, selected, conversation.items]);
  if (!timeline) return error ? html`<${ErrorNote} error=${error} retry=${reload} as="h1" />` : html`<${Loading} />`;
  const range = rangeOf(timeline);
  const setZoom = (wanted) => {
    const [from, to] = (wanted || range).map((ms) => Math.round(Math.min(range[1], Math.max(range[0], ms)) * 10) / 10);
    setQuery({ zoom: wanted && (from > range[0] || to < range[1]) ? `${from}-${to}` : null });
  };
  const talk = html`<${Conversation} run=${run} timeline=${timeline} conversation=${conversation} selected=${selected} scrolls=${scrolls} moment=${moment}
    onSelect=${select} onFork=${mayFork ? setForkAt : null} />`;
  const tabs = [{ id: "conversation", label: "Conversation" }, { id: "steps", label: "Steps", badge: count(steps.length) }];
  return html`<div class="run-view">
    <${Header} timeline=${timeline} link=${link} onSelect=${select} onChange=${reload} isMenuOpen=${isMenuOpen} onMenuClose=${() => setMenuOpen(false)} />
    ${forkAt !== null && html`<${Fork} run=${timeline.run} from=${forkAt} onClose=${() => setForkAt(null)} />`}
    <${ErrorNote} error=${error} retry=${reload} />
    ${steps.length === 0 ? html`<${Empty}
      title="No calls yet"><p>${timeline.run.ended_at ? "The run ended without one." : "They appear here as they are recorded."}</p></${Empty}>${talk}` : html`
      <div class="run-stick">
        <${Waterfall} timeline=${timeline} range=${range} selected=${selected} moment=${moment} zoom=${zoom} links=${links}
          onSelect=${select} onOpen=${open} onZoom=${setZoom} />
        <${Scrubber} range=${range} moment=${moment} steps=${steps} onMoment=${(t) => setQuery({ t: t === null ? null : Math.round(t * 10) / 10 })} />
        <div class="run-tabs"><${Tabs} label="View" panel="run-panel" active=${view} onSelect=${showView} tabs=${tabs} />
          <span class="grow"></span><small class="wide"><kbd>[</kbd> <kbd>]</kbd> steps · <kbd>Enter</kbd> opens</small></div>
      </div>
      <div id="run-panel" role="tabpanel" aria-label=${view}>
        ${view === "steps"
          ? html`<${Steps} timeline=${timeline} selected=${selected} onSelect=${select} run=${run} />`
          : talk}
      </div>`}
  </div>`;
}

/** From when to when the part of a run goes that a timeline has, in milliseconds. */
function rangeOf({ steps, steps_before: before, steps_left_out: later, duration_ms: all }) {
  const from = before && steps.length ? steps[0].start_ms - steps[0].thinking_ms : 0;
  const to = later && steps.length ? Math.max(...steps.map(stepEnd)) : all;
  return [from, Math.max(from + 1, to)];
}
