// The conversation of a run: of each prompt only what is new in it, tool calls next to the steps and prompts they led to.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { get } from "../core/api.js";
import { count, duration, money, outcomeWord, tokens, visible } from "../core/format.js";
import { Link, callPath, path } from "../core/router.js";
import { Badge, CallStatus, ErrorNote, Loading, MoreInSight } from "../core/parts.js";
import { Effects, useEffects } from "./effects.js";
import { Answer, Plain, Prompt, StepLink } from "./said.js";
import { stepEnd } from "./waterfall.js";

const PAGE = 40;

/** The calls around a step, loaded as they come into sight. `steps` are all step numbers of the timeline. */
export function useConversation(run, steps, around) {
  const [{ items, error, span }, setState] = useState({ items: new Map(), error: null, span: null });
  const busy = useRef(false);
  const current = useRef(null);
  const load = async (after, limit) => {
    if (busy.current) return;
    busy.current = true;
    try {
      const page = await get(path`/v1/runs/${run}/conversation`, { after, limit });
      if (current.current !== run) return;
      const last = page.items.length ? page.items[page.items.length - 1].step : after;
      setState((before) => {
        const isNext = before.span && after <= before.span[1] && last >= before.span[0];
        return {
          items: new Map([...before.items, ...page.items.map((item) => [item.step, item])]),
          error: null,
          span: isNext ? [Math.min(before.span[0], after), Math.max(before.span[1], last)] : [after, last],
        };
      });
    } catch (problem) {
      if (current.current === run) setState((before) => ({ ...before, error: problem }));
    } finally {
      busy.current = false;
    }
  };
  useEffect(() => {
    current.current = run;
    return () => { current.current = null; };
  }, [run]);
  // The first step of a part is not the first of the run.
  const beforeStep = (place) => (place > 0 ? steps[place - 1] : steps[0] - 1);
  useEffect(() => {
    if (!steps.length) return;
    const isThere = around === null ? span && steps[0] > span[0] && steps[0] <= span[1] : items.has(around);
    if (!isThere) load(around === null ? steps[0] - 1 : beforeStep(steps.indexOf(around) - 3), PAGE);
  }, [run, around, steps.length, steps[0], span === null]);
  const shown = span === null ? [] : steps.filter((step) => step > span[0] && step <= span[1]);
  const first = steps.indexOf(shown[0]);
  return {
    items, shown, error,
    hasEarlier: first > 0,
    hasLater: steps.length > 0 && (span === null || span[1] < steps[steps.length - 1]),
    loadEarlier: () => load(beforeStep(first - PAGE), Math.min(first, PAGE)),
    loadLater: () => span !== null && load(span[1], PAGE),
  };
}

/** How a step ended if that was not well, or which answers a fork's step had. */
export function StatusBadge({ step }) {
  if (step.failed || outcomeWord(step)) return html`<${CallStatus} call=${step} />`;
  if (step.origin && step.origin !== "live") return html`<${Badge} tone=${step.origin === "edited" ? "warn" : "info"}>${step.origin}</${Badge}>`;
  return null;
}

function TurnHead({ step, run, isSelected, onSelect, onFork }) {
  const fork = (event) => { event.stopPropagation(); onFork(step.step); };
  return html`<header class="turn-head" onClick=${() => onSelect(step.step)}>
    <${Link} class="turn-number" to=${callPath(run, step.call)} title="Open the call (Enter)">${step.step}</${Link}>
    <strong class="cut">${visible(step.label)}</strong>
    ${step.actor && html`<span class="chip">${visible(step.actor)}</span>`}
    <${StatusBadge} step=${step} />
    ${step.tries > 1 && html`<${Badge} tone="warn">${step.tries} attempts</${Badge}>`}
    <span class="grow"></span>
    ${isSelected && onFork && html`<button class="quiet" onClick=${fork}>Fork from here</button>`}
    <span class="turn-sums num">${duration(stepEnd(step) - step.start_ms)}
      ${step.kind === "model" && html`<span title="input and output tokens">${tokens(step.usage.input_tokens)} → ${tokens(step.usage.output_tokens)}</span>
      <span title="cost of the step, and the sum up to it">${step.unpriced ? "price unknown" : money(step.cost_usd)}${
        step.cost_so_far_usd > 0 && html` <small>Σ ${money(step.cost_so_far_usd)}</small>`}</span>`}</span>
  </header>`;
}

function Turn({ step, item, run, isSelected, moment, onSelect, onFork }) {
  const open = html`<${Link} to=${callPath(run, step.call)}>open the call</${Link}>`;
  const end = stepEnd(step);
  const isWaiting = moment !== null && end > moment;
  const asker = item?.executes?.step;
  return html`<article class="turn is-${step.kind} ${isSelected ? "is-selected" : ""} ${step.failed ? "is-bad" : ""}" id=${`turn-${step.step}`}
    aria-current=${isSelected ? "step" : undefined}>
    <${TurnHead} step=${step} run=${run} isSelected=${isSelected} onSelect=${onSelect} onFork=${onFork} />
    ${step.failed && step.error && html`<p class="turn-error">${visible(step.error)}</p>`}
    ${!item && html`<p class="muted">…</p>`}
    ${item?.too_large && html`<p class="muted">too large to be shown here: ${open}</p>`}
    ${item?.prompt && html`<${Prompt} prompt=${item.prompt} onSelect=${onSelect} open=${open} />`}
    ${asker && html`<p class="executes">runs the tool call of <${StepLink} step=${asker} onSelect=${onSelect}>step ${asker}</${StepLink}></p>`}
    <${Plain} value=${item?.request} tone="request" open=${open} />
    ${isWaiting && item && html`<p class="waiting">waiting for the answer: ${duration(moment - step.start_ms)} of ${duration(end - step.start_ms)}</p>`}
    <${Plain} value=${!isWaiting && item?.response} tone="result" open=${open} />
    ${!isWaiting && item?.answer && html`<${Answer} answer=${item.answer} onSelect=${onSelect} open=${open} />`}
  </article>`;
}

/** Scroll a turn below what stays on top, unless it is in sight. */
function showTurn(step) {
  const turn = document.getElementById(`turn-${step}`);
  if (!turn) return;
  const top = Math.max(46, document.querySelector(".run-stick")?.getBoundingClientRect().bottom ?? 0) + 8;
  const box = turn.getBoundingClientRect();
  if (box.top >= top - 1 && box.bottom <= innerHeight) return;
  scrollBy(0, box.top - top);
}

const RAIL = 30;

/** Arrows from the answers of tools to the prompts that used them, on a rail beside the turns. `pairs` are of steps. */
function Arrows({ root, pairs, selected }) {
  const [lines, setLines] = useState([]);
  useLayoutEffect(() => {
    const draw = () => {
      const zero = root.current.getBoundingClientRect();
      const placeOf = (element) => {
        const box = element.getBoundingClientRect();
        return [box.left - zero.left, box.top - zero.top + Math.min(27, box.height / 2)];
      };
      setLines(pairs.flatMap(([from, to], number) => {
        const start = document.querySelector(`#turn-${from} .is-result, #turn-${from} .is-answer`);
        const end = document.querySelector(`#turn-${to} [data-result="${from}"]`);
        if (!start || !end) return [];
        const x = RAIL - 8 - (number % 4) * 6;
        const [[x1, y1], [x2, y2]] = [placeOf(start), placeOf(end)];
        return [{ from, to, d: `M${x1} ${y1}H${x + 5}q-5 0 -5 5V${y2 - 5}q0 5 5 5H${x2 - 2}` }];
      }));
    };
    // Turns that were never drawn have an estimated height: the whole changes its height when they are.
    const observer = new ResizeObserver(draw);
    observer.observe(root.current);
    return () => observer.disconnect();
  }, [pairs]);
  return html`<svg class="rail" aria-hidden="true">
    <defs><marker id="tip-of-rail" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="6" markerHeight="6"><path class="arrow-tip" d="M0 0l6 3l-6 3z" /></marker></defs>
    ${lines.map(({ from, to, d }) => html`<path key=${`${from}-${to}`}
      class="arrow ${selected === from || selected === to ? "is-selected" : ""}" marker-end="url(#tip-of-rail)" d=${d} />`)}
  </svg>`;
}

/** `[step that ran a tool, step whose prompt used its result]` of what is shown. */
function usedResults(items, shown) {
  const isShown = new Set(shown);
  const of = (step) => (items.get(step)?.prompt?.messages || []).flatMap((message) => message.parts)
    .flatMap(({ executed_by: ran }) => (ran && isShown.has(ran) ? [[ran, step]] : []));
  return shown.flatMap(of);
}

export function Conversation({ run, timeline, conversation, selected, scrolls, moment, onSelect, onFork }) {
  const root = useRef(null);
  const byStep = useMemo(() => new Map(timeline.steps.map((step) => [step.step, step])), [timeline]);
  const { items, shown, hasEarlier, hasLater, loadEarlier, loadLater, error } = conversation;
  const turns = shown.map((step) => byStep.get(step)).filter((step) => step && (moment === null || step.start_ms <= moment));
  const later = moment === null ? 0 : timeline.steps.filter((step) => step.start_ms > moment).length;
  const pairs = useMemo(() => usedResults(items, turns.map((step) => step.step)), [items, shown.length, moment]);
  const effects = useEffects(run, timeline);
  const effectsBefore = (step) => html`<${Effects} run=${run} groups=${effects.get(step)} exchanges=${timeline.run.exchanges} />`;
  const isThere = selected !== null && items.has(selected);
  useLayoutEffect(() => {
    if (!scrolls || !isThere) return;
    showTurn(selected);
    // Turns that were never drawn have an estimated height: look again when they are.
    const timer = setTimeout(showTurn, 60, selected);
    return () => clearTimeout(timer);
  }, [selected, isThere, scrolls]);
  const hasMore = hasLater && shown.length > 0 && !(later > 0 && turns.length < shown.length);
  return html`<section class="conversation ${pairs.length ? "has-rail" : ""}" aria-label="Conversation" ref=${root}>
    <${ErrorNote} error=${error} />
    ${hasEarlier && html`<div class="more-rows"><button onClick=${loadEarlier}>Show earlier steps</button></div>`}
    ${turns.map((step) => html`${effectsBefore(step.step)}<${Turn} key=${step.step} step=${step} item=${items.get(step.step)} run=${run}
      isSelected=${step.step === selected} moment=${moment} onSelect=${onSelect} onFork=${onFork} />`)}
    ${!shown.length && hasLater && !error && html`<${Loading} height="200px" />`}
    ${hasMore && html`<${MoreInSight} onMore=${loadLater}>Show more steps</${MoreInSight}>`}
    ${!hasLater && later === 0 && effectsBefore(null)}
    ${later > 0 && html`<p class="later">${count(later)} ${later === 1 ? "step begins" : "steps begin"} after this moment.</p>`}
    ${pairs.length > 0 && html`<${Arrows} root=${root} pairs=${pairs} selected=${selected} />`}
  </section>`;
}
