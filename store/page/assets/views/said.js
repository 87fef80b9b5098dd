// What was said in a call: the messages of its prompt, its answer, its tool calls. The views of a run and of a call share it.
//
// The documents have texts that may be cut. `open` is what stands where one is: how to see the rest. `onSelect(step)` shows a step of the
// same run; without it, steps are not linked.
import { html } from "../core/html.js";
import { count, visible } from "../core/format.js";
import { Badge, Text } from "../core/parts.js";

/** A link to a step of the same run; the step lights up while the pointer is on it. */
export function StepLink({ step, children, onSelect, title }) {
  const light = (isOn) => () => document.getElementById(`turn-${step}`)?.classList.toggle("is-lit", isOn);
  const open = (event) => { event.stopPropagation(); light(false)(); onSelect(step); };
  if (!onSelect) return html`<span>${children}</span>`;
  return html`<button class="step-link" title=${title || `Show step ${step}`} onClick=${open}
    onPointerEnter=${light(true)} onPointerLeave=${light(false)} onFocus=${light(true)} onBlur=${light(false)}>${children}</button>`;
}

/** JSON with lines, where a browser can hold its numbers exactly; anything else as it was written. */
const pretty = (value) => {
  if (!value?.text || value.cut || !/^\s*[{[]/.test(value.text) || /\d{16}/.test(value.text)) return value;
  try {
    return { ...value, text: JSON.stringify(JSON.parse(value.text), null, 2) };
  } catch {
    return value;
  }
};

/** A text of the document; of one that was cut, how to see the rest. */
export function Shown({ value, isCode = false, open }) {
  if (!value) return null;
  if (value.text === null) return html`<p class="withheld">${count(value.size)} characters, which this token may not read (it lacks <code>bodies:read</code>)</p>`;
  const { text, cut, size } = isCode ? pretty(value) : value;
  return html`<${Text} text=${text} className=${isCode ? "code" : ""} />
    ${cut && html`<p class="cut-note">… ${count(size - text.length)} more characters: ${open}</p>`}`;
}

const leftOut = (number, what, open) => number > 0 && html`<p class="cut-note">${count(number)} more ${what}: ${open}</p>`;

/** One thing that was said, with who said it. */
export const Said = ({ tone, role, children }) => html`<div class="msg is-${tone}"><span class="role">${role}</span><div class="msg-body">${children}</div></div>`;

const toolName = (name) => html`<span class="tool-name">${visible(name || "(no name)")}</span>`;

function ToolCall({ tool, links, onSelect, open }) {
  const { executed_by: ran, answered_by: used } = tool;
  return html`<div class="tool-call">
    <div class="tool-head">${toolName(tool.name)}
      ${ran && html`<${StepLink} step=${ran} onSelect=${onSelect}>ran in step ${ran}</${StepLink}>`}
      ${used && html`<${StepLink} step=${used} onSelect=${onSelect} title="The prompt that used the result">result → prompt of step ${used}</${StepLink}>`}
      ${!ran && !used && onSelect && html`<small>no result in this run</small>`}${links}
    </div>
    <${Shown} value=${tool.arguments} isCode open=${open} />
  </div>`;
}

function ToolResult({ part, onSelect, open }) {
  const { executed_by: ran, asked_by: asked } = part;
  const shown = html`<${Shown} value=${part} isCode open=${open} />`;
  return html`<div class="tool-result" data-result=${ran}>
    <div class="tool-head">${ran && html`<${StepLink} step=${ran} onSelect=${onSelect}>← step ${ran}</${StepLink}>`}
      <span>result${part.name && html` of ${toolName(part.name)}`}</span>
      ${asked && html`<${StepLink} step=${asked} onSelect=${onSelect}>asked in step ${asked}</${StepLink}>`}</div>
    ${ran && part.size > 60 ? html`<details><summary>${count(part.size)} characters, as the prompt has them</summary>${shown}</details>` : shown}</div>`;
}

/** What a model thought; much of it opens by a click. */
function Reasoning({ value, open }) {
  const shown = html`<${Shown} value=${value} open=${open} />`;
  return html`<div class="reasoning">${value.size > LONG_REASONING
    ? html`<details><summary>${count(value.size)} characters of reasoning</summary>${shown}</details>`
    : html`<small>reasoning</small>${shown}`}</div>`;
}

function Part({ part, onSelect, open }) {
  const shown = html`<${Shown} value=${part} isCode=${part.kind === "tool_call"} open=${open} />`;
  if (part.kind === "tool_call") return html`<div class="tool-call"><div class="tool-head">${toolName(part.name)}</div>${shown}</div>`;
  if (part.kind === "tool_call_response") return html`<${ToolResult} part=${part} onSelect=${onSelect} open=${open} />`;
  if (part.kind === "media") return html`<p class="media">${visible(part.name || "file")}${part.text && html`: <span class="mono">${visible(part.text)}</span>`}</p>`;
  return part.kind === "reasoning" ? html`<${Reasoning} value=${part} open=${open} />` : shown;
}

const ROLES = ["system", "user", "assistant", "tool"];
const LONG_SYSTEM = 280;
const LONG_REASONING = 600;

function Message({ message, onSelect, open }) {
  const { role, echo } = message;
  if (echo) return html`<div class="msg is-echo"><span class="role">${visible(role)}</span><div>the answer of <${StepLink} step=${echo}
    onSelect=${onSelect}>step ${echo}</${StepLink}>, sent back</div></div>`;
  const size = message.parts.reduce((sum, part) => sum + part.size, 0);
  const body = html`${message.parts.map((part, place) => html`<${Part} key=${place} part=${part} onSelect=${onSelect} open=${open} />`)}
    ${leftOut(message.parts_left_out, "parts", open)}`;
  return html`<${Said} tone=${ROLES.includes(role) ? role : "other"} role=${visible(role)}>
    ${role === "system" && size > LONG_SYSTEM ? html`<details><summary>${count(size)} characters of instructions</summary>${body}</details>` : body}</${Said}>`;
}

const messages = (number) => `${count(number)} ${number === 1 ? "message" : "messages"}`;

function offers(tools) {
  if (!tools.length) return "offers no tools any more";
  return `offers ${tools.length} ${tools.length === 1 ? "tool" : "tools"}: ${tools.slice(0, 4).map(visible).join(", ")}${tools.length > 4 ? " …" : ""}`;
}

/** What is new in a prompt. `isWhole`: what is new is all there is, and no earlier prompt is spoken of. */
export function Prompt({ prompt, isWhole = false, onSelect, open }) {
  const { after, tools } = prompt;
  const half = prompt.messages.findIndex((message, place) => place > 0 && message.index !== prompt.messages[place - 1].index + 1);
  const message = (one, place) => html`${place === half && html`<p class="left-out">${count(prompt.left_out)} messages are not shown: ${open}</p>`}
    <${Message} key=${one.index} message=${one} onSelect=${onSelect} open=${open} />`;
  return html`<div class="prompt">
    <p class="prompt-head">${after
      ? html`<strong>+${messages(prompt.new)}</strong> after ${count(prompt.repeated)} of <${StepLink} step=${after.step}
        onSelect=${onSelect}>step ${after.step}</${StepLink}>`
      : html`<strong>${messages(prompt.new)}</strong>${isWhole ? "" : ", a new conversation"}`}
      ${prompt.dropped > 0 && html` <${Badge} tone="warn" title="Messages of that prompt that this one does not send again">${count(prompt.dropped)} dropped</${Badge}>`}
      ${prompt.tools_changed && html` <span class="offers" title=${tools.map(visible).join("\n")}>${offers(tools)}</span>`}
    </p>
    ${prompt.messages.map(message)}
  </div>`;
}

/** `links` are more links of each tool call. */
export function Answer({ answer, links = [], onSelect, open }) {
  const calls = answer.tool_calls;
  return html`<${Said} tone="answer" role="answer">
    ${answer.reasoning && html`<${Reasoning} value=${answer.reasoning} open=${open} />`}
    <${Shown} value=${answer.text} open=${open} />
    ${calls.map((tool, place) => html`<${ToolCall} key=${place} tool=${tool} links=${links[place]} onSelect=${onSelect} open=${open} />`)}
    ${leftOut(answer.tool_calls_left_out, "tool calls", open)}
    ${answer.error && html`<div class="error-text"><${Shown} value=${answer.error} isCode open=${open} /></div>`}
    ${!answer.text && !calls.length && !answer.error && html`<small>no text</small>`}
  </${Said}>`;
}

/** A request or answer that is no conversation. */
export const Plain = ({ value, tone, open }) => value && html`<${Said} tone=${tone} role=${tone}><${Shown} value=${value} isCode open=${open} /></${Said}>`;
