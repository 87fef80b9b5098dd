// The conversation of a run: of each prompt only what is new in it, tool calls next to the steps and prompts they led to.
import { html, useEffect, useLayoutEffect, useRef, useState } from "../core/html.js";
import { get } from "../core/api.js";
import { count, duration, money, tokens, visible } from "../core/format.js";
import { Link } from "../core/router.js";
import { Badge, ErrorNote, Loading, Text } from "../core/parts.js";
import { stepEnd } from "./waterfall.js";

const PAGE = 40;

/** The calls around a step, loaded as they come into sight. `steps` are all step numbers of the timeline. */
export function useConversation(run, steps, around) {
  const [state, setState] = useState({ items: new Map(), error: null });
  const [span, setSpan] = useState(null);
  const busy = useRef(false);
  const current = useRef(null);
  const items = state.items;
  const load = async (after, limit) => {
    if (busy.current) return;
    busy.current = true;
    const asked = run;
    try {
      const page = await get(`/v1/runs/${encodeURIComponent(run)}/conversation`, { after, limit });
      if (current.current !== asked) return;
      setState((before) => {
        const merged = new Map(before.items);
        for (const item of page.items) merged.set(item.step, item);
        return { items: merged, error: null };
      });
      const last = page.items.length ? page.items[page.items.length - 1].step : after;
      setSpan((before) => before && after <= before[1] && last >= before[0]
        ? [Math.min(before[0], after), Math.max(before[1], last)] : [after, last]);
    } catch (error) {
      if (current.current === asked) setState((before) => ({ ...before, error }));
    } finally {
      busy.current = false;
    }
  };
  useEffect(() => {
    current.current = run;
    return () => { current.current = null; };
  }, [run]);
  const place = Math.max(0, steps.indexOf(around));
  useEffect(() => {
    if (!steps.length) return;
    const isThere = around === null ? span !== null : items.has(around);
    if (!isThere) load(place > 3 ? steps[place - 4] : 0, PAGE);
  }, [run, around, steps.length, span === null]);
  const shown = span === null ? [] : steps.filter((step) => step > span[0] && step <= span[1]);
  const newest = steps[steps.length - 1] ?? 0;
  return {
    items, shown, error: state.error,
    hasEarlier: span !== null && steps.length > 0 && shown.length > 0 && shown[0] !== steps[0],
    hasLater: span === null ? steps.length > 0 : span[1] < newest,
    loadEarlier: () => { const at = steps.indexOf(shown[0]); load(at > PAGE ? steps[at - PAGE - 1] : 0, Math.min(at, PAGE)); },
    loadLater: () => span !== null && load(span[1], PAGE),
  };
}

/** A link to a step of the same run; the step lights up while the pointer is on it. */
function StepLink({ step, children, onSelect, title }) {
  const light = (isOn) => document.getElementById(`turn-${step}`)?.classList.toggle("is-lit", isOn);
  return html`<button class="step-link" title=${title || `Show step ${step}`} onClick=${(event) => { event.stopPropagation(); light(false); onSelect(step); }}
    onPointerEnter=${() => light(true)} onPointerLeave=${() => light(false)} onFocus=${() => light(true)} onBlur=${() => light(false)}>${children}</button>`;
}

/** A text of the document; of one that was cut, how to see the rest. */
function Shown({ value, isCode = false, open }) {
  if (!value) return null;
  if (value.text === null) return html`<p class="withheld">${count(value.size)} characters, which this token may not read (it lacks <code>bodies:read</code>)</p>`;
  return html`<${Text} text=${value.text} className=${isCode ? "code" : ""} />
    ${value.cut && html`<p class="cut-note">… ${count(value.size - value.text.length)} more characters: ${open}</p>`}`;
}

const ROLES = { system: "system", user: "user", assistant: "assistant", tool: "tool" };

const pretty = (value) => {
  if (!value || value.text === null || value.cut || !/^\s*[{[]/.test(value.text)) return value;
  try {
    const text = JSON.stringify(JSON.parse(value.text), null, 2);
    // Numbers that a browser cannot hold exactly stay as they were written.
    return /\d{16}/.test(value.text) ? value : { ...value, text };
  } catch {
    return value;
  }
};

function ToolCall({ tool, onSelect, open }) {
  return html`<div class="tool-call">
    <div class="tool-head"><span class="tool-name">${visible(tool.name || "(no name)")}</span>
      ${tool.executed_by && html`<${StepLink} step=${tool.executed_by} onSelect=${onSelect}>ran in step ${tool.executed_by}</${StepLink}>`}
      ${tool.answered_by && html`<${StepLink} step=${tool.answered_by} onSelect=${onSelect} title="The prompt that used the result">result → prompt of step ${tool.answered_by}</${StepLink}>`}
      ${!tool.executed_by && !tool.answered_by && html`<small>no result in this run</small>`}
    </div>
    <${Shown} value=${pretty(tool.arguments)} isCode open=${open} />
  </div>`;
}

function Part({ part, onSelect, open }) {
  if (part.kind === "tool_call") return html`<div class="tool-call"><div class="tool-head"><span class="tool-name">${visible(part.name || "(no name)")}</span></div><${Shown} value=${pretty(part)} isCode open=${open} /></div>`;
  if (part.kind === "tool_call_response") {
    return html`<div class="tool-result">
      <div class="tool-head">${part.executed_by ? html`<${StepLink} step=${part.executed_by} onSelect=${onSelect}>← step ${part.executed_by}</${StepLink}>` : null}
        <span>result${part.name ? html` of <span class="tool-name">${visible(part.name)}</span>` : ""}</span>
        ${part.asked_by && html`<${StepLink} step=${part.asked_by} onSelect=${onSelect}>asked in step ${part.asked_by}</${StepLink}>`}</div>
      ${part.executed_by && part.size > 60 ? html`<details><summary>${count(part.size)} characters, as the prompt has them</summary><${Shown} value=${pretty(part)} isCode open=${open} /></details>` : html`<${Shown} value=${pretty(part)} isCode open=${open} />`}</div>`;
  }
  if (part.kind === "media") return html`<p class="media">${visible(part.name || "file")}${part.text ? html`: <span class="mono">${visible(part.text)}</span>` : ""}</p>`;
  if (part.kind === "reasoning") return html`<div class="reasoning"><small>reasoning</small><${Shown} value=${part} open=${open} /></div>`;
  return html`<${Shown} value=${part} open=${open} />`;
}

const LONG_SYSTEM = 280;

function Message({ message, onSelect, open }) {
  const role = ROLES[message.role] || "other";
  const size = message.parts.reduce((sum, part) => sum + part.size, 0);
  const body = html`${message.parts.map((part, place) => html`<${Part} key=${place} part=${part} onSelect=${onSelect} open=${open} />`)}
    ${message.parts_left_out > 0 && html`<p class="cut-note">${count(message.parts_left_out)} more parts: ${open}</p>`}`;
  if (message.echo) {
    return html`<div class="msg is-echo"><span class="role">${visible(message.role)}</span><div>the answer of <${StepLink} step=${message.echo} onSelect=${onSelect}>step ${message.echo}</${StepLink}>, sent back</div></div>`;
  }
  return html`<div class="msg is-${role}"><span class="role">${visible(message.role)}</span><div class="msg-body">
    ${role === "system" && size > LONG_SYSTEM ? html`<details><summary>${count(size)} characters of instructions</summary>${body}</details>` : body}</div></div>`;
}

function Prompt({ prompt, onSelect, open }) {
  const half = prompt.messages.findIndex((message, place) => place > 0 && message.index !== prompt.messages[place - 1].index + 1);
  const rest = html`<p class="left-out">${count(prompt.left_out)} messages are not shown: ${open}</p>`;
  return html`<div class="prompt">
    <p class="prompt-head">${prompt.after
      ? html`<strong>+${count(prompt.new)} ${prompt.new === 1 ? "message" : "messages"}</strong> after ${count(prompt.repeated)} of <${StepLink} step=${prompt.after.step} onSelect=${onSelect}>step ${prompt.after.step}</${StepLink}>`
      : html`<strong>${count(prompt.new)} ${prompt.new === 1 ? "message" : "messages"}</strong>, a new conversation`}
      ${prompt.dropped > 0 && html` <${Badge} tone="warn" title="Messages of that prompt that this one does not send again">${count(prompt.dropped)} dropped</${Badge}>`}
      ${prompt.tools_changed && html` <span class="offers" title=${prompt.tools.map((name) => visible(name)).join("\n")}>${prompt.tools.length ? `offers ${prompt.tools.length} ${prompt.tools.length === 1 ? "tool" : "tools"}: ${prompt.tools.slice(0, 4).map((name) => visible(name)).join(", ")}${prompt.tools.length > 4 ? " …" : ""}` : "offers no tools any more"}</span>`}
    </p>
    ${prompt.messages.map((message, place) => html`${place === half && rest}<${Message} key=${message.index} message=${message} onSelect=${onSelect} open=${open} />`)}
  </div>`;
}

function Answer({ answer, onSelect, open }) {
  return html`<div class="msg is-answer"><span class="role">answer</span><div class="msg-body">
    <${Shown} value=${answer.text} open=${open} />
    ${answer.tool_calls.map((tool, place) => html`<${ToolCall} key=${place} tool=${tool} onSelect=${onSelect} open=${open} />`)}
    ${answer.tool_calls_left_out > 0 && html`<p class="cut-note">${count(answer.tool_calls_left_out)} more tool calls: ${open}</p>`}
    ${answer.error && html`<div class="error-text"><${Shown} value=${pretty(answer.error)} isCode open=${open} /></div>`}
    ${!answer.text && !answer.tool_calls.length && !answer.error && html`<small>no text</small>`}
  </div></div>`;
}

/** How a step ended, with a word and not only a colour. */
export function StatusBadge({ step }) {
  if (step.failed) return html`<${Badge} tone="bad" title=${step.outcome}>${step.status === null ? "no response" : step.status < 400 ? "broke off" : step.status}</${Badge}>`;
  if (step.origin && step.origin !== "live") return html`<${Badge} tone=${step.origin === "edited" ? "warn" : "info"}>${step.origin}</${Badge}>`;
  return null;
}

function TurnHead({ step, run, isSelected, onSelect, onFork }) {
  return html`<header class="turn-head" onClick=${() => onSelect(step.step)}>
    <${Link} class="turn-number" to=${`/runs/${encodeURIComponent(run)}/calls/${step.call}`} title="Open the call (Enter)">${step.step}</${Link}>
    <strong class="cut">${visible(step.label)}</strong>
    ${step.actor && html`<span class="chip">${visible(step.actor)}</span>`}
    <${StatusBadge} step=${step} />
    ${step.tries > 1 && html`<${Badge} tone="warn">${step.tries} attempts</${Badge}>`}
    ${!step.complete && !step.failed && html`<${Badge} tone="warn">incomplete</${Badge}>`}
    <span class="grow"></span>
    ${isSelected && onFork && html`<button class="quiet" onClick=${(event) => { event.stopPropagation(); onFork(step.step); }}>Fork from here</button>`}
    <span class="turn-sums num">${duration(stepEnd(step) - step.start_ms)}
      ${step.kind === "model" && html`<span title="input and output tokens">${tokens(step.usage.input_tokens)} → ${tokens(step.usage.output_tokens)}</span>
      <span title="cost of the step, and the sum up to it">${step.unpriced ? "price unknown" : money(step.cost_usd)} <small>Σ ${money(step.cost_so_far_usd)}</small></span>`}</span>
  </header>`;
}

function Turn({ step, item, run, isSelected, moment, onSelect, onFork }) {
  const open = html`<${Link} to=${`/runs/${encodeURIComponent(run)}/calls/${step.call}`}>open the call</${Link}>`;
  const isWaiting = moment !== null && stepEnd(step) > moment;
  return html`<article class="turn is-${step.kind} ${isSelected ? "is-selected" : ""} ${step.failed ? "is-bad" : ""}" id=${`turn-${step.step}`} aria-current=${isSelected ? "step" : undefined}>
    <${TurnHead} step=${step} run=${run} isSelected=${isSelected} onSelect=${onSelect} onFork=${onFork} />
    ${step.failed && step.error && html`<p class="turn-error">${visible(step.error)}</p>`}
    ${!item && html`<p class="muted">…</p>`}
    ${item?.too_large && html`<p class="muted">too large to be shown here: ${open}</p>`}
    ${item?.prompt && html`<${Prompt} prompt=${item.prompt} onSelect=${onSelect} open=${open} />`}
    ${item?.executes?.step && html`<p class="executes">runs the tool call of <${StepLink} step=${item.executes.step} onSelect=${onSelect}>step ${item.executes.step}</${StepLink}></p>`}
    ${item?.request && html`<div class="msg is-request"><span class="role">request</span><div class="msg-body"><${Shown} value=${pretty(item.request)} isCode open=${open} /></div></div>`}
    ${isWaiting && item && html`<p class="waiting">waiting for the answer: ${duration(moment - step.start_ms)} of ${duration(stepEnd(step) - step.start_ms)}</p>`}
    ${!isWaiting && item?.response && html`<div class="msg is-result"><span class="role">result</span><div class="msg-body"><${Shown} value=${pretty(item.response)} isCode open=${open} /></div></div>`}
    ${!isWaiting && item?.answer && html`<${Answer} answer=${item.answer} onSelect=${onSelect} open=${open} />`}
  </article>`;
}

/** Loads more when it comes into sight. */
function More({ label, onSight }) {
  const root = useRef(null);
  const call = useRef(onSight);
  call.current = onSight;
  useEffect(() => {
    const observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && call.current(), { rootMargin: "600px" });
    observer.observe(root.current);
    return () => observer.disconnect();
  });
  return html`<div class="more-turns" ref=${root}><button onClick=${onSight}>${label}</button></div>`;
}

/** Scroll a turn below what stays on top, unless it is in sight. */
function showTurn(step) {
  const turn = document.getElementById(`turn-${step}`);
  if (!turn) return;
  const top = Math.max(46, document.querySelector(".run-stick")?.getBoundingClientRect().bottom ?? 0) + 8;
  const box = turn.getBoundingClientRect();
  if (box.top >= top - 1 && box.bottom <= innerHeight) return;
  window.scrollBy(0, box.top - top);
}

export function Conversation({ run, timeline, conversation, selected, scrolls, moment, onSelect, onFork }) {
  const byStep = new Map(timeline.steps.map((step) => [step.step, step]));
  const { items, shown, hasEarlier, hasLater, loadEarlier, loadLater, error } = conversation;
  const visibleSteps = shown.map((step) => byStep.get(step)).filter((step) => step && (moment === null || step.start_ms <= moment));
  const later = moment === null ? 0 : timeline.steps.filter((step) => step.start_ms > moment).length;
  const isThere = selected !== null && items.has(selected);
  useLayoutEffect(() => {
    if (!scrolls || !isThere) return undefined;
    showTurn(selected);
    // Turns that were never drawn have an estimated height: look again when they are.
    const timer = setTimeout(showTurn, 60, selected);
    return () => clearTimeout(timer);
  }, [selected, isThere, scrolls]);
  return html`<section class="conversation" aria-label="Conversation">
    ${error && html`<${ErrorNote} error=${error} />`}
    ${hasEarlier && html`<div class="more-turns"><button onClick=${loadEarlier}>Show earlier steps</button></div>`}
    ${visibleSteps.map((step) => html`<${Turn} key=${step.step} step=${step} item=${items.get(step.step)} run=${run} isSelected=${step.step === selected} moment=${moment} onSelect=${onSelect} onFork=${onFork} />`)}
    ${!shown.length && hasLater && !error && html`<${Loading} height="200px" />`}
    ${hasLater && shown.length > 0 && !(moment !== null && later > 0 && visibleSteps.length < shown.length) && html`<${More} label="Show more steps" onSight=${loadLater} />`}
    ${later > 0 && html`<p class="later">${count(later)} ${later === 1 ? "step begins" : "steps begin"} after this moment.</p>`}
  </section>`;
}
