// A call: its request and answer as messages, as JSON, as bytes with their times; its key explained; the same key elsewhere.
import { html, useState } from "../core/html.js";
import { get, isOffline } from "../core/api.js";
import { bytes, count, duration, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import {
  Badge, CallStatus, Chip, Choice, Copy, Duration, JsonLink, Loaded, Money, Stat, Table, Tabs, Text, Time, canReadBodies, useLoad, useMost, useSession,
} from "../core/parts.js";
import { Link, callPath, navigate, path, runPath, setQuery } from "../core/router.js";
import { Bytes, Http } from "./bytes.js";
import { JsonTree, childrenOf, nodeAt } from "./json.js";
import { Answer, Plain, Prompt } from "./said.js";
import { CopyAs } from "./snippets.js";
import { loadTimeline, partOf, seenTimeline } from "./timelines.js";

function Messages({ facts }) {
  const { said } = facts;
  const open = html`<${Link} to=${callPath(facts.run, facts.id)} params=${{ tab: "json" }}>see the JSON</${Link}>`;
  const link = (call, text) => call && html`<${Link} to=${callPath(facts.run, call)}>${text}</${Link}>`;
  const links = facts.tool_calls.map((one) => html`${link(one.executed_by, "the call that ran it")} ${link(one.answered_by, "result → the prompt that used it")}`);
  return html`<div class="turn call-talk">
    ${said.prompt && html`<${Prompt} prompt=${said.prompt} isWhole open=${open} />`}
    <${Plain} value=${said.request} tone="request" open=${open} />
    <${Plain} value=${said.response} tone="result" open=${open} />
    ${said.answer && html`<${Answer} answer=${said.answer} links=${links} open=${open} />`}
  </div>`;
}

const PARTS = ["request", "answer", "tool_results"];

/** The parts of a call that are JSON, as places in the text of the whole document. */
async function loadJson(call) {
  const address = path`/v1/calls/${call}`;
  const text = isOffline ? JSON.stringify(await get(address)) : await get(address, {}, { as: "text" });
  const nodes = childrenOf(text, nodeAt(text)).items.filter(({ key, start }) => PARTS.includes(key) && !/^(null|\[\])/.test(text.slice(start, start + 4)));
  return { text, nodes };
}

function Json({ facts, part, pointer }) {
  const found = useLoad(() => loadJson(facts.id), [facts.id]);
  return html`<${Loaded} of=${found} height="300px">${({ text, nodes }) => {
    const node = nodes.find(({ key }) => key === part) || nodes[0];
    if (!node) return html`<p class="muted">There is no JSON: the bytes are all there is.</p>`;
    const name = (one) => html`${one.key.replace("_", " ")} <small>${bytes(one.end - one.start)}</small>`;
    return html`<${Choice} className="picks" label="Part" value=${node.key} options=${nodes.map((one) => [one.key, name(one)])}
      onChange=${(one) => setQuery({ part: one, pointer: null })} />
      <${JsonTree} key=${node.key} text=${text} start=${node.start} label=${node.key} chosen=${pointer} onChoose=${(one) => setQuery({ pointer: one })} />`;
  }}</${Loaded}>`;
}

const FATES = {
  key: ["good", "in the key"], unknown: ["warn", "no rule: in the key"], folded: ["info", "in the key, simplified"],
  renamed: ["info", "an id, renamed"], "left out": ["", "left out"],
};

function Key({ facts }) {
  const found = useLoad(() => get(path`/v1/calls/${facts.id}/explain`), [facts.id]);
  return html`<${Loaded} of=${found} height="200px">${(data) => html`<${Explained} data=${data} />`}</${Loaded}>`;
}

function Explained({ data }) {
  const [sought, setSought] = useState("");
  const isSought = (row) => `${row.pointer} ${row.fate} ${row.rule} ${row.value ?? ""}`.toLowerCase().includes(sought.toLowerCase());
  const [rows, more] = useMost(data.rows.filter(isSought), 200, 500);
  const cells = ({ pointer, fate, rule, value }) => [
    html`<code>${visible(pointer)}</code>`, html`<${Badge} tone=${FATES[fate]?.[0]}>${FATES[fate]?.[1] ?? fate}</${Badge}>`, visible(rule),
    html`<div class="cut explain-value" title=${visible((value ?? "").slice(0, 400))}><code>${visible((value ?? "").slice(0, 200))}</code></div>`,
  ];
  return html`<p>Requests with the same key get the same recorded answer. This one was made by the profile <strong>${visible(data.profile)}</strong>.</p>
    <div class="json-bar"><code class="cut">${data.key}</code><${Copy} text=${data.key} label="Copy key" /><span class="grow"></span>
      <input type="search" placeholder="Filter" aria-label="Filter the fields" value=${sought} onInput=${(event) => setSought(event.currentTarget.value)} /></div>
    ${data.stored_key !== data.key && html`<p class="note warn">The profiles have changed since it was recorded: it was stored with <code
      >${data.stored_key}</code>. <code>playhead rekey</code> computes the keys of stored calls again.</p>`}
    ${data.warnings.map((warning) => html`<p class="note warn" key=${warning}>${visible(warning)}</p>`)}
    <${Table} label="Fields of the request" className="explain" heads=${["Field", "What became of it", "Rule", "Value"]} rows=${rows.map(cells)} />${more}`;
}

const answerOf = (call) => call.text || call.tool_calls.map((tool) => `${tool.name}(${JSON.stringify(tool.arguments)})`).join("\n");

function Same({ facts }) {
  const found = useLoad(() => get("/v1/calls", { key: facts.key, limit: 20 }), [facts.key]);
  return html`<${Loaded} of=${found} height="200px">${({ items, next }) => {
    const mine = items.find((one) => one.id === facts.id);
    const others = items.filter((one) => one !== mine);
    if (!others.length) return html`<p class="muted">No other call has this key.</p>`;
    return html`<p class="muted">${count(others.length)}${next ? "+" : ""} other ${others.length === 1 ? "call has" : "calls have"} the same key. Answers are shortened to 500 characters.</p>
      <div class="sames">${[...(mine ? [mine] : []), ...others].map((one) => html`<${SameCall} key=${one.id} call=${one} mine=${mine} />`)}</div>`;
  }}</${Loaded}>`;
}

function SameCall({ call, mine }) {
  const isSame = mine && answerOf(call) === answerOf(mine);
  return html`<article class="same ${call === mine ? "is-mine" : ""}">
    <header>${call === mine ? html`<strong>this call</strong>` : html`<${Link} to=${callPath(call.run, call.id)}>${visible(call.run)} · step ${call.step}</${Link}>`}
      <span class="grow"></span><${Time} at=${call.started_at} /></header>
    <p class="badges"><${Badge} tone=${call.status === null || call.status >= 400 ? "bad" : ""}>${call.status ?? "no response"}</${Badge}>
      ${[call.model_returned, call.system_fingerprint].filter(Boolean).map((name) => html`<${Chip} key=${name}>${name}</${Chip}>`)}
      <small>${duration(call.duration_ms)}</small>
      ${mine && call !== mine && html`<${Badge} tone=${isSame ? "good" : "warn"}>${isSame ? "same answer" : "another answer"}</${Badge}>`}</p>
    <${Text} text=${answerOf(call) || "(no text)"} first=${2000} /></article>`;
}

/** What was called: the model, the tool, or the method and path. */
function labelOf(facts) {
  if (facts.kind === "model") return facts.model_returned || facts.model_requested || facts.operation;
  if (facts.dialect === "generic") return `${facts.method} ${facts.path ?? facts.host}`;
  return facts.tool_calls[0]?.name || facts.operation;
}

function Header({ facts, place, steps, move, isCopying, onCopied }) {
  const mayCopy = canReadBodies(useSession());
  const { usage, first_byte_ms: firstByte, executes, run } = facts;
  const amount = (value, name) => (value ? `${tokens(value)} ${name}` : null);
  const models = [...new Set([facts.model_requested, facts.model_returned])].filter(Boolean);
  const chips = [facts.provider, facts.operation, facts.streamed && "streamed", facts.finish_reason && `finish: ${facts.finish_reason}`, facts.actor];
  const button = (by, label, key, mark) => html`<button class="quiet" disabled=${!steps[place + by] || place < 0} onClick=${() => move(by)}
    aria-label=${label} title="${label} (${key})">${mark}</button>`;
  return html`<header class="run-head">
    <div class="run-title"><${Link} to=${runPath(run)} params=${{ step: facts.step }} title="Back to the run (Esc)">${visible(run)}</${Link}>
      <span class="muted">/</span><h1>${facts.step}. ${visible(labelOf(facts))}</h1><span class="grow"></span>
      ${button(-1, "Step before", "[", "◂")}${button(1, "Next step", "]", "▸")}
      ${mayCopy && html`<${CopyAs} call=${facts.id} isOpen=${isCopying} onClose=${onCopied} />`}<${JsonLink} path=${path`/v1/calls/${facts.id}`} /></div>
    <p class="badges"><${CallStatus} call=${facts} /><${Badge}>${facts.kind}</${Badge}>
      ${chips.filter(Boolean).map((text) => html`<${Chip} key=${text}>${text}</${Chip}>`)}
      ${facts.attempts > 1 && html`<${Badge} tone="warn">${facts.attempts} attempts</${Badge}>`}
      ${facts.nth > 0 && html`<${Chip} title="calls of the run with the same key before it">repeat ${facts.nth + 1}</${Chip}>`}
      ${(facts.follows || []).slice(0, 8).map((one) => html`<${Link} key=${one.call} to=${callPath(run, one.call)}>continues step ${one.step}</${Link}>`)}
      ${executes && html`<${Link} to=${callPath(run, executes.call)}>runs a tool call of step ${executes.step}</${Link}>`}</p>
    <dl class="stats"><${Stat} label="Began"><${Time} at=${facts.started_at} /></${Stat}>
      <${Stat} label="Took" note=${firstByte !== null && `${duration(firstByte)} to first byte`}><${Duration} ms=${facts.duration_ms} /></${Stat}>
      ${facts.kind === "model" && html`
        <${Stat} label="Tokens in" note=${amount(usage.cached_tokens, "cached")}>${tokens(usage.input_tokens)}</${Stat}>
        <${Stat} label="Tokens out" note=${amount(usage.reasoning_tokens, "reasoning")}>${tokens(usage.output_tokens)}</${Stat}>
        <${Stat} label="Cost" note=${facts.prices && visible(facts.prices)}><${Money} value=${facts.cost_usd} /></${Stat}>
        <${Stat} label="Model" note=${facts.system_fingerprint ? `fingerprint ${visible(facts.system_fingerprint)}` : "no fingerprint"}>
          <span class="models">${models.map((name) => html`<${Chip} key=${name}>${name}</${Chip}>`)}</span></${Stat}>`}</dl>
    <p class="badges">${Object.entries(facts.params || {}).slice(0, 20).map(([name, value]) => html`<${Chip} key=${name}>${`${name}=${value}`}</${Chip}>`)}</p>
    ${facts.warnings.map((warning) => html`<p class="note warn" key=${warning}>${visible(warning)}</p>`)}
  </header>`;
}

const TABS = { messages: "Messages", json: "JSON", bytes: "Bytes", http: "HTTP", key: "Key", same: "Same key" };

export default function Call({ params: { run, call }, query }) {
  const found = useLoad(() => get(path`/v1/calls/${call}`, { content: "short" }), [call]);
  const facts = found.data;
  const after = facts ? partOf(facts.step) : null;
  const { data: timeline } = useLoad(async () => (facts ? seenTimeline(facts.run, after) ?? loadTimeline(facts.run, after) : null), [facts?.run, after]);
  const isWithheld = !canReadBodies(useSession());
  const steps = timeline?.steps ?? [];
  const place = steps.findIndex((one) => one.call === call);
  const tab = query.tab in TABS ? query.tab : "messages";
  const [isCopying, setCopying] = useState(false);
  const move = (by) => steps[place + by] && place >= 0 && navigate(callPath(run, steps[place + by].call), tab === "messages" ? {} : { tab });
  useKeys({
    "]": { label: "next step", run: () => move(1) },
    "[": { label: "step before", run: () => move(-1) },
    c: { label: "copy as", run: () => setCopying(true) },
    ...(tab === "json" ? {} : { "/": { label: "search in the JSON", run: () => setQuery({ tab: "json" }) } }),
    Escape: { label: "back to the run", run: () => navigate(runPath(facts?.run ?? run), facts ? { step: facts.step } : {}) },
  });
  const panel = () => {
    if (isWithheld && tab !== "same") return html`<p class="note warn">This token lacks <code>bodies:read</code>: what was asked and answered is not shown.</p>`;
    if (tab === "json") return html`<${Json} facts=${facts} part=${query.part} pointer=${query.pointer} />`;
    if (tab === "bytes") return html`<${Bytes} ids=${facts.exchanges} query=${query} />`;
    if (tab === "http") return html`<${Http} ids=${facts.exchanges} query=${query} />`;
    if (tab === "key") return html`<${Key} facts=${facts} />`;
    return tab === "same" ? html`<${Same} facts=${facts} />` : html`<${Messages} key=${facts.id} facts=${facts} />`;
  };
  return html`<${Loaded} of=${found} as="h1">${() => html`<div class="run-view call-view">
    <${Header} facts=${facts} place=${place} steps=${steps} move=${move} isCopying=${isCopying} onCopied=${() => setCopying(false)} />
    <${Tabs} label="View" panel="call-panel" active=${tab} onSelect=${(id) => setQuery({ tab: id === "messages" ? null : id })}
      tabs=${Object.entries(TABS).map(([id, label]) => ({ id, label }))} />
    <div id="call-panel" role="tabpanel" aria-label=${tab} class="call-panel">${panel()}</div></div>`}</${Loaded}>`;
}
