// A run: what it did, what it cost, what failed. The state of the view (`step`, `t`, `zoom`, `view`) is in the address.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { events, isOffline } from "../core/api.js";
import { count, duration, money, percent, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { Badge, Copy, Duration, Empty, ErrorNote, JsonLink, Loading, Money, Tabs, Time, Tokens, allows, useSession } from "../core/parts.js";
import { Link, navigate, setQuery } from "../core/router.js";
import { Conversation, StatusBadge, useConversation } from "./conversation.js";
import { Fork, RunActions } from "./actions.js";
import { Stat, loadTimeline, seenTimeline } from "./timelines.js";
import { Scrubber, Waterfall, stepEnd } from "./waterfall.js";

const number = (text) => (text === undefined || text === "" || Number.isNaN(Number(text)) ? null : Number(text));

function useTimeline(run) {
  const [state, setState] = useState({ data: seenTimeline(run), error: null });
  const [link, setLink] = useState("");
  const timer = useRef(0);
  useEffect(() => {
    let isCurrent = true;
    let isLoading = false;
    let isStale = false;
    const load = async () => {
      if (isLoading) { isStale = true; return; }
      isLoading = true;
      isStale = false;
      try {
        const data = await loadTimeline(run);
        if (isCurrent) setState({ data, error: null });
      } catch (error) {
        if (isCurrent) setState((before) => ({ ...before, error }));
      }
      isLoading = false;
      if (isStale && isCurrent) timer.current = setTimeout(load, 1000);
    };
    load();
    const stop = events({ run }, () => {
      clearTimeout(timer.current);
      timer.current = setTimeout(load, 400);
    }, (name) => isCurrent && setLink(name));
    return () => { isCurrent = false; clearTimeout(timer.current); stop(); };
  }, [run]);
  return { ...state, link, reload: () => loadTimeline(run).then((data) => setState({ data, error: null }), (error) => setState((before) => ({ ...before, error }))) };
}

const ISOLATION = { captive: ["good", "all its traffic went through Playhead"], watched: ["", "proxy variables; what ignores them is not seen"], none: ["", "only what was sent to the proxy is recorded"] };
const ATTRIBUTION = { given: null, derived: ["", "derived from ids in the traffic"], guessed: ["warn", "some calls may belong to another run"] };

function Header({ timeline, link, onSelect, onChange }) {
  const { run } = timeline;
  const isRunning = run.ended_at === null;
  const attribution = ATTRIBUTION[run.attribution];
  const first = timeline.failed.first;
  const isPartial = run.unpriced > 0;
  return html`<header class="run-head">
    <div class="run-title">
      <h1>${visible(run.name || run.id)}</h1>
      ${run.name && html`<span class="chip mono" title="id">${run.id}</span>`}<${Copy} text=${run.id} label="Copy id" />
      <span class="grow"></span><${RunActions} run=${run} onChange=${onChange} /><${JsonLink} path=${`/v1/runs/${encodeURIComponent(run.id)}/timeline`} />
    </div>
    <p class="badges">
      ${isRunning ? html`<${Badge} tone="info">${link === "waiting" ? "running, reconnecting" : "running"}</${Badge}>` : html`<${Badge}>ended</${Badge}>`}
      ${timeline.failed.count ? html`<${Badge} tone="bad">${count(timeline.failed.count)} failed</${Badge}>` : html`<${Badge} tone="good">no failures</${Badge}>`}
      ${run.gaps ? html`<${Badge} tone="bad">${count(run.gaps)} not recorded</${Badge}>` : run.complete ? html`<${Badge} tone="good">complete</${Badge}>` : html`<${Badge} tone="warn" title="an exchange was cut, or an answer broke off">incomplete</${Badge}>`}
      <${Badge} tone=${ISOLATION[run.isolation]?.[0]} title=${ISOLATION[run.isolation]?.[1]}>${run.isolation === "none" ? "not isolated" : run.isolation}</${Badge}>
      ${attribution && html`<${Badge} tone=${attribution[0]} title=${attribution[1]}>attribution ${run.attribution}</${Badge}>`}
      ${run.pinned && html`<${Badge}>pinned</${Badge}>`}
      ${run.parent && html`<span>fork of <${Link} to=${`/runs/${encodeURIComponent(run.parent)}`} params=${run.forked_at ? { step: run.forked_at } : {}}>${visible(run.parent)}</${Link}>${run.forked_at !== null && ` after step ${run.forked_at}`}</span>`}
      ${Object.entries(run.labels).slice(0, 12).map(([name, value]) => html`<span class="chip" key=${name}>${visible(name)}=${visible(String(value))}</span>`)}
    </p>
    <dl class="stats">
      <${Stat} label="Began"><${Time} at=${run.started_at} /></${Stat}>
      <${Stat} label="Took" note=${timeline.thinking_ms > 0 && timeline.duration_ms > 0 ? `${percent(timeline.thinking_ms / timeline.duration_ms)} thinking` : null}><${Duration} ms=${timeline.duration_ms} /></${Stat}>
      <${Stat} label="Calls" note=${run.exchanges > run.calls ? `${count(run.exchanges)} exchanges` : null}>${count(run.calls)}</${Stat}>
      <${Stat} label="Tokens in" note=${run.tokens.cached_tokens ? `${tokens(run.tokens.cached_tokens)} cached` : null}><${Tokens} value=${run.tokens.input_tokens} /></${Stat}>
      <${Stat} label="Tokens out" note=${run.tokens.reasoning_tokens ? `${tokens(run.tokens.reasoning_tokens)} reasoning` : null}><${Tokens} value=${run.tokens.output_tokens} /></${Stat}>
      <${Stat} label="Cost" note=${isPartial ? `${count(run.unpriced)} without a price` : null}><${Money} value=${run.known_cost_usd} isPartial=${isPartial} /></${Stat}>
      <${Stat} label=${run.models.length === 1 ? "Model" : "Models"}><span class="models">${run.models.length ? run.models.slice(0, 6).map((model) => html`<span class="chip" key=${model}>${visible(model)}</span>`) : "–"}${run.models.length > 6 && html`<small>+${run.models.length - 6}</small>`}</span></${Stat}>
    </dl>
    ${first && html`<p class="note bad"><strong>First failure:</strong> <button class="step-link" onClick=${() => onSelect(first.step)}>step ${first.step}, ${visible(first.label)}</button>${" "}${first.status === null ? "got no response" : `got ${first.status}`}${first.error ? html`: ${visible(first.error)}` : ""}
      ${timeline.failed.count > 1 && html` <small>and ${count(timeline.failed.count - 1)} more</small>`}</p>`}
    ${timeline.gaps.length > 0 && html`<p class="note bad"><strong>Not everything was recorded:</strong> ${gapReasons(timeline.gaps).map(([reason, times], place) => html`<span key=${reason}>${place > 0 && "; "}${count(times)} × ${visible(reason)}</span>`)}${timeline.gaps_left_out > 0 && html` and ${count(timeline.gaps_left_out)} more`}. A replay cannot answer what is missing.</p>`}
    ${timeline.steps_left_out > 0 && html`<p class="note warn">The first ${count(timeline.steps.length)} steps are shown; ${count(timeline.steps_left_out)} later ones are not.</p>`}
  </header>`;
}

function gapReasons(gaps) {
  const sums = new Map();
  for (const gap of gaps) sums.set(gap.reason, (sums.get(gap.reason) || 0) + gap.count);
  return [...sums].slice(0, 5);
}

/** All steps as a table, with the running sums. */
function Steps({ timeline, selected, onSelect, run }) {
  const [most, setMost] = useState(200);
  const place = timeline.steps.findIndex((step) => step.step === selected);
  useEffect(() => { if (place >= most) setMost(place + 100); }, [place]);
  return html`<div class="table-scroll" tabindex="0" role="region" aria-label="Steps"><table class="steps"><thead><tr><th class="num">Step</th><th>What</th><th>Ended</th><th class="num">Begins</th><th class="num">Takes</th><th class="num">First byte</th><th class="num">In</th><th class="num">Out</th><th class="num">Cost</th><th class="num">Sum</th></tr></thead>
    <tbody>${timeline.steps.slice(0, most).map((step) => {
      const last = step.attempts[step.attempts.length - 1];
      return html`<tr key=${step.step} class=${step.step === selected ? "is-selected" : ""} onClick=${() => onSelect(step.step)}>
        <td class="num"><${Link} to=${`/runs/${encodeURIComponent(run)}/calls/${step.call}`}>${step.step}</${Link}></td>
        <td class="cut step-what">${visible(step.label)} ${step.tools.length > 0 && html`<small>→ ${step.tools.map((name) => visible(name)).join(", ")}</small>`}${step.excerpt && html` <small>${visible(step.excerpt)}</small>`}</td>
        <td>${step.failed ? html`<${StatusBadge} step=${step} />` : html`<span>${step.status ?? "–"}</span>`}${step.tries > 1 && html` <small>×${step.tries}</small>`}</td>
        <td class="num">${step.start_ms < 0.01 ? "0" : duration(step.start_ms)}</td><td class="num">${duration(stepEnd(step) - step.start_ms)}</td>
        <td class="num">${duration(step.first_byte_ms === null || !last ? null : step.first_byte_ms - last.start_ms)}</td>
        <td class="num">${tokens(step.usage.input_tokens)}</td><td class="num">${tokens(step.usage.output_tokens)}</td>
        <td class="num">${step.kind !== "model" ? "" : step.unpriced ? "unknown" : money(step.cost_usd)}</td><td class="num">${money(step.cost_so_far_usd)}</td></tr>`;
    })}</tbody></table>
    ${timeline.steps.length > most && html`<button onClick=${() => setMost(most + 500)}>Show ${count(Math.min(500, timeline.steps.length - most))} more of ${count(timeline.steps.length - most)}</button>`}</div>`;
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

export default function Run({ params, query }) {
  const run = params.run;
  const { data: timeline, error, link, reload } = useTimeline(run);
  const session = useSession();
  const [forkAt, setForkAt] = useState(null);
  const selected = number(query.step);
  const moment = number(query.t);
  const view = query.view === "steps" ? "steps" : "conversation";
  const zoom = useMemo(() => {
    const found = /^([\d.]+)-([\d.]+)$/.exec(query.zoom || "");
    return found && Number(found[2]) > Number(found[1]) ? [Number(found[1]), Number(found[2])] : null;
  }, [query.zoom]);
  const numbers = useMemo(() => (timeline ? timeline.steps.map((step) => step.step) : []), [timeline]);
  const conversation = useConversation(run, numbers, selected);
  const [scrolls, setScrolls] = useState(selected !== null);
  const select = (step) => { setScrolls(true); setQuery({ step }); };
  const place = numbers.indexOf(selected);
  const go = (by) => numbers.length && select(numbers[place < 0 ? (by > 0 ? 0 : numbers.length - 1) : Math.min(numbers.length - 1, Math.max(0, place + by))]);
  const open = (step) => navigate(`/runs/${encodeURIComponent(run)}/calls/${step.call}`);
  const step = place < 0 ? null : timeline.steps[place];
  useKeys({
    "]": { label: "next step", run: () => go(1) },
    "[": { label: "step before", run: () => go(-1) },
    j: () => go(1),
    k: () => go(-1),
    ...(step ? { Enter: { label: "open the call of the step", run: () => open(step) } } : {}),
    ...(timeline?.failed.first ? { e: { label: "first failure", run: () => select(timeline.failed.first.step) } } : {}),
    v: { label: "conversation or table", run: () => setQuery({ view: view === "steps" ? null : "steps" }) },
    Escape: moment !== null
      ? { label: "to the end of the run", run: () => setQuery({ t: null }) }
      : selected !== null ? { label: "no step", run: () => setQuery({ step: null }) } : { label: "all runs", run: () => navigate("/") },
  });
  const links = useMemo(() => (timeline ? linksOf(step, timeline, conversation.items) : []), [timeline, selected, conversation.items]);
  if (!timeline && error) return html`<${ErrorNote} error=${error} />`;
  if (!timeline) return html`<${Loading} />`;
  const total = Math.max(1, timeline.duration_ms);
  const setZoom = (range) => {
    const from = range && Math.max(0, Math.round(range[0] * 10) / 10);
    const to = range && Math.min(total, Math.round(range[1] * 10) / 10);
    setQuery({ zoom: range && (from > 0 || to < total) ? `${from}-${to}` : null });
  };
  return html`<div class="run-view">
    <${Header} timeline=${timeline} link=${link} onSelect=${select} onChange=${reload} />
    ${forkAt !== null && html`<${Fork} run=${timeline.run} from=${forkAt} onClose=${() => setForkAt(null)} />`}
    ${error && html`<${ErrorNote} error=${error} />`}
    ${timeline.steps.length === 0 ? html`<${Empty} title="No calls yet"><p>${timeline.run.ended_at ? "The run ended without one." : "They appear here as they are recorded."}</p></${Empty}>` : html`
      <div class="run-stick">
      <${Waterfall} timeline=${timeline} total=${total} selected=${selected} moment=${moment} zoom=${zoom} links=${links} onSelect=${select} onOpen=${open} onZoom=${setZoom} />
      <${Scrubber} total=${total} moment=${moment} steps=${timeline.steps} onMoment=${(t) => setQuery({ t: t === null ? null : Math.round(t * 10) / 10 })} />
      <div class="run-tabs"><${Tabs} label="View" panel="run-panel" active=${view} onSelect=${(id) => setQuery({ view: id === "steps" ? id : null })}
        tabs=${[{ id: "conversation", label: "Conversation" }, { id: "steps", label: "Steps", badge: count(timeline.steps.length) }]} />
        <span class="grow"></span><small class="wide"><kbd>[</kbd> <kbd>]</kbd> steps · <kbd>Enter</kbd> opens</small></div>
      </div>
      <div id="run-panel" role="tabpanel" aria-label=${view}>
        ${view === "steps"
          ? html`<${Steps} timeline=${timeline} selected=${selected} onSelect=${select} run=${run} />`
          : html`<${Conversation} run=${run} timeline=${timeline} conversation=${conversation} selected=${selected} scrolls=${scrolls} moment=${moment} onSelect=${select} onFork=${isOffline || !allows(session, "replay") ? null : setForkAt} />`}
      </div>`}
  </div>`;
}
