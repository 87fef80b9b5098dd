// A call: its request and answer as messages, as JSON, as bytes with their times; its key explained; the same key elsewhere.
import { html, useEffect, useMemo, useState } from "../core/html.js";
import { get, isOffline } from "../core/api.js";
import { bytes, count, duration, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { Badge, Copy, Duration, ErrorNote, JsonLink, Loading, Money, PIECE, Tabs, Text, Time, VirtualList, canReadBodies, useLoad, useSession } from "../core/parts.js";
import { Link, navigate, setQuery } from "../core/router.js";
import { CopyAs } from "./snippets.js";
import { JsonTree, childrenOf, member, nodeAt, valueOf } from "./json.js";
import { Stat, loadTimeline, seenTimeline } from "./timelines.js";

/** Tool calls of an answer that are shown at a time. */
const MOST_TOOLS = 100;
const BIG = ["request", "answer", "tool_results"];
const LONGEST_MESSAGE = 256 << 10;
const FIRST_MESSAGES = 30;

/** Load a call as text: its bodies are parsed as far as they are looked at. */
async function loadCall(call) {
  const path = `/v1/calls/${encodeURIComponent(call)}`;
  const text = isOffline ? JSON.stringify(await get(path)) : await get(path, {}, { as: "text" });
  const facts = {};
  const nodes = {};
  for (const child of childrenOf(text, nodeAt(text)).items) {
    if (BIG.includes(child.key)) nodes[child.key] = child;
    else facts[child.key] = valueOf(text, child);
  }
  return { text, facts, nodes };
}

const isNothing = (text, node) => !node || text.startsWith("null", node.start);

// Messages.

const asText = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 2));

function Block({ block }) {
  if (typeof block === "string") return html`<${Text} text=${block} />`;
  if (typeof block?.text === "string") return html`<${Text} text=${block.text} />`;
  const used = block?.toolUse || block?.functionCall || block;
  if (used?.name && (used.input ?? used.args ?? used.arguments) !== undefined) return html`<${ToolUse} name=${used.name} given=${used.input ?? used.args ?? used.arguments} />`;
  const result = block?.toolResult || block?.functionResponse || block;
  const content = result?.content ?? result?.output ?? result?.response;
  if (content !== undefined) return html`<div class="tool-result"><div class="tool-head"><span>result</span><code>${visible(String(result.tool_use_id ?? result.toolUseId ?? result.call_id ?? result.name ?? ""))}</code></div>
    ${Array.isArray(content) ? content.map((one, place) => html`<${Block} key=${place} block=${one} />`) : html`<${Text} text=${asText(content)} className="code" />`}</div>`;
  return html`<${Text} text=${asText(block)} className="code" />`;
}

function ToolUse({ name, given, children }) {
  const text = typeof given === "string" ? given : JSON.stringify(given ?? null, null, 2);
  return html`<div class="tool-call"><div class="tool-head"><span class="tool-name">${visible(String(name))}</span>${children}</div><${Text} text=${text} className="code" /></div>`;
}

function Message({ text, node }) {
  const isLong = node.end - node.start > LONGEST_MESSAGE;
  const message = useMemo(() => (isLong ? null : valueOf(text, node)), [text, node.start]);
  const role = isLong ? valueOf(text, member(text, node, "role")) ?? "message" : typeof message === "string" ? "user" : message?.role ?? message?.type ?? "message";
  const long = isLong ? member(text, node, "content") : null;
  const content = isLong ? (long?.kind === "string" ? valueOf(text, long) : text.slice(node.start, node.end)) : typeof message === "string" ? message : message?.content ?? message?.parts ?? (message?.tool_calls ? null : message);
  return html`<div class="msg is-${["system", "user", "assistant", "tool"].includes(role) ? role : "other"}"><span class="role">${visible(String(role))}</span><div class="msg-body">
    ${content === null || content === undefined ? null : Array.isArray(content) ? content.map((block, place) => html`<${Block} key=${place} block=${block} />`) : typeof content === "string" ? html`<${Text} text=${content} className=${isLong && long?.kind !== "string" ? "code" : ""} />` : html`<${Block} block=${content} />`}
    ${!isLong && (message?.tool_calls || []).slice(0, MOST_TOOLS).map((tool, place) => html`<${ToolUse} key=${place} name=${tool.function?.name ?? tool.name ?? "?"} given=${tool.function?.arguments ?? tool.arguments} />`)}
  </div></div>`;
}

function Messages({ call }) {
  const { text, nodes, facts } = call;
  const [shown, setShown] = useState(FIRST_MESSAGES);
  const parts = useMemo(() => {
    const found = { instructions: null, messages: [], rest: null };
    if (isNothing(text, nodes.request)) return found;
    for (const name of ["system", "systemInstruction", "instructions", "preamble"]) found.instructions ||= member(text, nodes.request, name);
    for (const name of ["messages", "contents", "input", "prompt", "inputs"]) {
      const node = member(text, nodes.request, name);
      if (!node) continue;
      if (node.kind !== "array") found.messages = [node];
      else for (let page = { next: undefined }; page.next !== null;) { page = childrenOf(text, node, page.next ?? null, 2000, found.messages.length); found.messages.push(...page.items); }
      break;
    }
    return found;
  }, [text]);
  const [tools, setTools] = useState(MOST_TOOLS);
  const from = Math.max(0, parts.messages.length - shown);
  const isPlain = parts.messages.length === 0;
  const address = `${facts.method} ${facts.host}${facts.path ?? ""}`;
  return html`<div class="turn call-talk">
    ${isPlain && html`<div class="msg is-request"><span class="role">request</span><div class="msg-body"><code>${visible(address)}</code>${!isNothing(text, nodes.request) && html`<${Text} text=${bodyText(text, nodes.request)} className="code" />`}</div></div>`}
    ${parts.instructions && !isNothing(text, parts.instructions) && html`<div class="msg is-system"><span class="role">instructions</span><div class="msg-body"><${Text} text=${bodyText(text, parts.instructions)} /></div></div>`}
    ${from > 0 && html`<div class="more-turns"><button onClick=${() => setShown(shown + 200)}>Show ${count(Math.min(200, from))} earlier of ${count(from)} messages</button></div>`}
    ${parts.messages.slice(from).map((node) => html`<${Message} key=${node.start} text=${text} node=${node} />`)}
    <div class="msg is-answer"><span class="role">answer</span><div class="msg-body">
      ${facts.text !== null && facts.text !== "" && html`<${Text} text=${facts.text} />`}
      ${facts.tool_calls.slice(0, tools).map((tool, place) => html`<${ToolUse} key=${place} name=${tool.name} given=${tool.arguments}>
        ${tool.executed_by && html`<${Link} to=${`/runs/${encodeURIComponent(facts.run)}/calls/${tool.executed_by}`}>the call that ran it</${Link}>`}
        ${tool.answered_by && html`<${Link} to=${`/runs/${encodeURIComponent(facts.run)}/calls/${tool.answered_by}`}>result → the prompt that used it</${Link}>`}</${ToolUse}>`)}
      ${facts.tool_calls.length > tools && html`<button onClick=${() => setTools(tools + MOST_TOOLS)}>Show ${count(Math.min(MOST_TOOLS, facts.tool_calls.length - tools))} more of ${count(facts.tool_calls.length)} tool calls</button>`}
      ${!facts.text && !facts.tool_calls.length && (isNothing(text, nodes.answer) ? html`<small>no answer</small>` : html`<${Text} text=${bodyText(text, nodes.answer)} className="code" />`)}
    </div></div>
  </div>`;
}

/** A value to read: a string as it is; JSON with lines where it is short, else as it was written. */
function bodyText(text, node) {
  if (node.kind === "string") return valueOf(text, node);
  const written = text.slice(node.start, node.end);
  return written.length < LONGEST_MESSAGE && !/\d{16}/.test(written) ? JSON.stringify(JSON.parse(written), null, 2) : written;
}

function Json({ call, part }) {
  const tabs = ["request", "answer", "tool_results"].filter((name) => !isNothing(call.text, call.nodes[name]) && !(name === "tool_results" && call.text.startsWith("[]", call.nodes[name].start)));
  const active = tabs.includes(part) ? part : tabs[0];
  if (!active) return html`<p class="muted">There is no JSON: the bytes are all there is.</p>`;
  return html`<div class="pair"><span class="picks">${tabs.map((name) => html`<button key=${name} class=${name === active ? "primary" : ""} aria-pressed=${name === active ? "true" : "false"} onClick=${() => setQuery({ part: name })}>${name.replace("_", " ")} <small>${bytes(call.nodes[name].end - call.nodes[name].start)}</small></button>`)}</span></div>
    <${JsonTree} text=${call.text} start=${call.nodes[active].start} label=${active} />`;
}

// Bytes.

const decoder = new TextDecoder();

function hexOf(data, from, to) {
  const lines = [];
  for (let at = from; at < to; at += 16) {
    const row = data.subarray(at, Math.min(at + 16, to));
    const hex = [...row].map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex} ${[...row].map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("")}`);
  }
  return lines.join("\n");
}

/** Undo the content encoding, as far as the browser can. */
async function plainBytes(data, encoding) {
  const kind = { gzip: "gzip", "x-gzip": "gzip", deflate: "deflate" }[(encoding || "").trim().toLowerCase()];
  if (!kind || !globalThis.DecompressionStream) return data;
  try {
    return new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream(kind))).arrayBuffer());
  } catch {
    return data;
  }
}

function Body({ exchange, side, encoding, size }) {
  const path = `/v1/exchanges/${exchange}/${side}`;
  const { data, error } = useLoad(async () => {
    const found = (await get(path, {}, { as: "bytes" })).bytes;
    return { stored: found, plain: await plainBytes(found, encoding) };
  }, [path]);
  const [end, setEnd] = useState(PIECE);
  const [isHex, setHex] = useState(false);
  const [isStored, setStored] = useState(false);
  useEffect(() => setEnd(PIECE), [path, isHex, isStored]);
  const shown = data && (isStored ? data.stored : data.plain);
  const pieces = useMemo(() => {
    const found = [];
    for (let at = 0; shown && at < Math.min(end, shown.length); at += PIECE) {
      const to = Math.min(at + PIECE, end, shown.length);
      found.push(isHex ? hexOf(shown, at, Math.min(to, at + 16384)) : decoder.decode(shown.subarray(at, to)));
    }
    return found;
  }, [shown, end, isHex]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="120px" />`;
  return html`<div class="bytes">
    <div class="json-bar"><small>${count(data.stored.length)} bytes stored${size !== data.stored.length ? `, ${count(size)} on the wire` : ""}${encoding ? `, ${encoding}` : ""}${data.plain !== data.stored ? `, ${count(data.plain.length)} decoded` : ""}</small><span class="grow"></span>
      ${data.plain !== data.stored && html`<button aria-pressed=${isStored ? "true" : "false"} onClick=${() => setStored(!isStored)}>${isStored ? "decoded" : "as stored"}</button>`}
      <button aria-pressed=${isHex ? "true" : "false"} onClick=${() => setHex(!isHex)}>${isHex ? "as text" : "as hex"}</button>
      ${!isOffline && html`<a class="quiet" href=${path} download>Download</a>`}</div>
    ${shown.length === 0 ? html`<p class="muted">empty</p>` : html`<div class="text code raw">${pieces.map((piece, place) => html`<span key=${place} class="piece">${visible(piece)}</span>`)}</div>`}
    ${shown.length > end && html`<button class="more" onClick=${() => setEnd(end + (isHex ? 16384 : PIECE))}>Show 64 KB more (${bytes(shown.length - end)} left)</button>`}
  </div>`;
}

function Chunks({ exchange }) {
  const { data, error } = useLoad(() => get(`/v1/exchanges/${exchange}/chunks`), [exchange]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="60px" />`;
  const items = data.items;
  const last = items.reduce((most, one) => Math.max(most, one.at_ns), 1);
  return html`<h3>${count(items.length)} ${items.length === 1 ? "piece" : "pieces"} as they arrived</h3>
    <${VirtualList} items=${items} rowHeight=${24} height=${`min(${items.length * 24 + 2}px, 50vh)`} label="Pieces" render=${(one, place) => html`<div key=${place} class="chunk" role="listitem">
      <span class="chunk-side">${one.side}</span><span class="num">${duration(one.at_ns / 1e6)}</span><span class="num">${count(one.size)} B</span><span class="num wide">at ${count(one.offset)}</span>
      <svg class="chunk-line" viewBox="0 0 1000 6" preserveAspectRatio="none" aria-hidden="true"><rect class="chunk-track" width="1000" height="6" /><rect class=${one.side === "request" ? "key-think" : "key-stream"} x=${(one.at_ns / last) * 994} width="6" height="6" /></svg></div>`} />`;
}

const Headers = ({ title, list }) => html`<h3>${title}</h3><div class="table-scroll" tabindex="0" role="region" aria-label=${title}><table class="headers"><tbody>${(list || []).map(([name, value], place) => html`<tr key=${place}><th scope="row">${visible(name)}</th><td><code>${visible(value)}</code></td></tr>`)}</tbody></table></div>`;

function useExchange(call, query) {
  const ids = call.facts.exchanges;
  const id = ids.includes(query.exchange) ? query.exchange : ids[ids.length - 1];
  return { id, ...useLoad(() => get(`/v1/exchanges/${id}`), [id]) };
}

function Picks({ call, id }) {
  if (call.facts.exchanges.length < 2) return null;
  return html`<p class="picks">${call.facts.exchanges.map((one, place) => html`<button key=${one} class=${one === id ? "primary" : ""} aria-pressed=${one === id ? "true" : "false"} onClick=${() => setQuery({ exchange: one })}>exchange ${place + 1}</button>`)}</p>`;
}

const encodingOf = (headers) => (headers || []).find(([name]) => name.toLowerCase() === "content-encoding")?.[1] ?? "";

function Bytes({ call, query }) {
  const { id, data, error } = useExchange(call, query);
  const side = query.side === "request" ? "request" : "response";
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="160px" />`;
  return html`<${Picks} call=${call} id=${id} /><p class="picks">${["request", "response"].map((one) => html`<button key=${one} class=${one === side ? "primary" : ""} aria-pressed=${one === side ? "true" : "false"} onClick=${() => setQuery({ side: one })}>${one}</button>`)}</p>
    ${side === "response" && data.status === null ? html`<p class="muted">No response came: ${visible(data.error || data.outcome)}</p>` : html`<${Body} key=${id + side} exchange=${id} side=${side} encoding=${encodingOf(side === "request" ? data.request_headers : data.response_headers)} size=${side === "request" ? data.request_size : data.response_size} />`}
    <${Chunks} exchange=${id} />`;
}

function Http({ call, query }) {
  const { id, data, error } = useExchange(call, query);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="160px" />`;
  return html`<${Picks} call=${call} id=${id} />
    <p class="badges"><${Badge} tone=${data.status === null || data.status >= 400 ? "bad" : "good"}>${data.status ?? "no response"} ${visible(data.reason || "")}</${Badge}><${Badge} tone=${data.outcome === "completed" ? "" : "warn"}>${data.outcome.replace("_", " ")}</${Badge}>
      ${data.truncated && html`<${Badge} tone="bad">bytes are missing</${Badge}>`}${data.reencoded && html`<${Badge} tone="warn">compressed anew</${Badge}>`}${data.redactions ? html`<${Badge} tone="info">redacted</${Badge}>` : ""}<span class="chip">${data.http_version}</span></p>
    ${data.error && html`<p class="note bad">${visible(data.error)}</p>`}
    <p><code>${data.method} ${visible(data.url)}</code></p>
    <${Headers} title="Request headers" list=${data.request_headers} /><${Headers} title="Response headers" list=${data.response_headers} />
    <${Headers} title="Why it is in this run" list=${data.run_evidence} />`;
}

// The key.

const FATES = { key: ["good", "in the key"], unknown: ["warn", "no rule: in the key"], folded: ["info", "in the key, simplified"], renamed: ["info", "an id, renamed"], "left out": ["", "left out"] };

function Key({ call, facts }) {
  const { data, error } = useLoad(() => get(`/v1/calls/${encodeURIComponent(facts.id)}/explain`), [facts.id]);
  const [sought, setSought] = useState("");
  const [most, setMost] = useState(200);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="200px" />`;
  const rows = data.rows.filter((row) => !sought || `${row.pointer} ${row.fate} ${row.rule} ${row.value ?? ""}`.toLowerCase().includes(sought.toLowerCase()));
  return html`<p>Requests with the same key get the same recorded answer. This one was made by the profile <strong>${visible(data.profile)}</strong>.</p>
    <div class="json-bar"><code class="cut">${data.key}</code><${Copy} text=${data.key} label="Copy key" /><span class="grow"></span><input type="search" placeholder="Filter" aria-label="Filter the fields" value=${sought} onInput=${(event) => setSought(event.currentTarget.value)} /></div>
    ${data.stored_key !== data.key && html`<p class="note warn">The profiles have changed since it was recorded: it was stored with <code>${data.stored_key}</code>. <code>playhead rekey</code> computes the keys of stored calls again.</p>`}
    ${[...data.warnings].map((warning) => html`<p class="note warn" key=${warning}>${visible(warning)}</p>`)}
    <div class="table-scroll" tabindex="0" role="region" aria-label="Fields of the request"><table class="explain"><thead><tr><th>Field</th><th>What became of it</th><th>Rule</th><th>Value</th></tr></thead>
      <tbody>${rows.slice(0, most).map((row, place) => html`<tr key=${place}><td><code>${visible(row.pointer)}</code></td><td><${Badge} tone=${FATES[row.fate]?.[0]}>${FATES[row.fate]?.[1] ?? row.fate}</${Badge}></td><td>${visible(row.rule)}</td><td class="cut explain-value" title=${visible((row.value ?? "").slice(0, 400))}><code>${visible((row.value ?? "").slice(0, 200))}</code></td></tr>`)}</tbody></table></div>
    ${rows.length > most && html`<button onClick=${() => setMost(most + 500)}>Show more of ${count(rows.length - most)}</button>`}`;
}

function Same({ facts }) {
  const { data, error } = useLoad(() => get("/v1/calls", { key: facts.key, limit: 20 }), [facts.key]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="200px" />`;
  const saidBy = (one) => one.text || one.tool_calls.map((tool) => `${tool.name}(${JSON.stringify(tool.arguments)})`).join("\n");
  const mine = data.items.find((one) => one.id === facts.id);
  const others = data.items.filter((one) => one.id !== facts.id);
  const card = (one, isMine) => html`<article key=${one.id} class="same ${isMine ? "is-mine" : ""}"><header>${isMine ? html`<strong>this call</strong>` : html`<${Link} to=${`/runs/${encodeURIComponent(one.run)}/calls/${one.id}`}>${visible(one.run)} · step ${one.step}</${Link}>`}<span class="grow"></span><${Time} at=${one.started_at} /></header>
    <p class="badges"><${Badge} tone=${one.status === null || one.status >= 400 ? "bad" : ""}>${one.status ?? "no response"}</${Badge}>${one.model_returned && html`<span class="chip">${visible(one.model_returned)}</span>`}${one.system_fingerprint && html`<span class="chip">${visible(one.system_fingerprint)}</span>`}<small>${duration(one.duration_ms)}</small>
      ${!isMine && mine && html`<${Badge} tone=${saidBy(one) === saidBy(mine) ? "good" : "warn"}>${saidBy(one) === saidBy(mine) ? "same answer" : "another answer"}</${Badge}>`}</p>
    <${Text} text=${saidBy(one) || "(no text)"} first=${2000} /></article>`;
  if (!others.length) return html`<p class="muted">No other call has this key.</p>`;
  return html`<p class="muted">${count(others.length)}${data.next ? "+" : ""} other ${others.length === 1 ? "call has" : "calls have"} the same key. Answers are shortened to 500 characters.</p><div class="sames">${mine && card(mine, true)}${others.map((one) => card(one, false))}</div>`;
}

// The frame of the view.

function Header({ facts, steps, move }) {
  const place = steps.findIndex((one) => one.call === facts.id);
  const label = facts.kind === "model" ? facts.model_returned || facts.model_requested || facts.operation : facts.dialect === "generic" ? `${facts.method} ${facts.path ?? facts.host}` : facts.tool_calls[0]?.name || facts.operation;
  const isFailed = facts.status === null || facts.status >= 400 || (facts.outcome !== "completed" && !facts.complete);
  const mayCopy = canReadBodies(useSession());
  const param = ([name, value]) => html`<span class="chip" key=${name}>${visible(name)}=${visible(String(value))}</span>`;
  return html`<header class="run-head">
    <div class="run-title"><${Link} to=${`/runs/${encodeURIComponent(facts.run)}`} params=${{ step: facts.step }} title="Back to the run (Esc)">${visible(facts.run)}</${Link}><span class="muted">/</span><h1>${facts.step}. ${visible(label)}</h1><span class="grow"></span>
      <button class="quiet" disabled=${place <= 0} onClick=${() => move(-1)} aria-label="Step before" title="Step before ([)">◂</button><button class="quiet" disabled=${place < 0 || place >= steps.length - 1} onClick=${() => move(1)} aria-label="Next step" title="Next step (])">▸</button>
      ${mayCopy && html`<${CopyAs} call=${facts.id} />`}<${JsonLink} path=${`/v1/calls/${encodeURIComponent(facts.id)}`} /></div>
    <p class="badges"><${Badge} tone=${isFailed ? "bad" : "good"}>${facts.status ?? "no response"}</${Badge}>${facts.outcome !== "completed" && html`<${Badge} tone="warn">${facts.outcome.replace("_", " ")}</${Badge}>`}${!facts.complete && html`<${Badge} tone="warn">incomplete</${Badge}>`}
      <${Badge}>${facts.kind}</${Badge}><span class="chip">${visible(facts.provider)}</span><span class="chip">${visible(facts.operation)}</span>${facts.streamed && html`<span class="chip">streamed</span>`}${facts.finish_reason && html`<span class="chip">finish: ${visible(facts.finish_reason)}</span>`}${facts.actor && html`<span class="chip">${visible(facts.actor)}</span>`}
      ${facts.attempts > 1 && html`<${Badge} tone="warn">${facts.attempts} attempts</${Badge}>`}${facts.nth > 0 && html`<span class="chip" title="calls of the run with the same key before it">repeat ${facts.nth + 1}</span>`}
      ${(facts.follows || []).slice(0, 8).map((one) => html`<${Link} key=${one.call} to=${`/runs/${encodeURIComponent(facts.run)}/calls/${one.call}`}>continues step ${one.step}</${Link}>`)}
      ${facts.executes && html`<${Link} to=${`/runs/${encodeURIComponent(facts.run)}/calls/${facts.executes.call}`}>runs a tool call of step ${facts.executes.step}</${Link}>`}</p>
    <dl class="stats"><${Stat} label="Began"><${Time} at=${facts.started_at} /></${Stat}><${Stat} label="Took" note=${facts.first_byte_ms === null ? null : `${duration(facts.first_byte_ms)} to first byte`}><${Duration} ms=${facts.duration_ms} /></${Stat}>
      ${facts.kind === "model" && html`<${Stat} label="Tokens in" note=${facts.usage.cached_tokens ? `${tokens(facts.usage.cached_tokens)} cached` : null}>${tokens(facts.usage.input_tokens)}</${Stat}><${Stat} label="Tokens out" note=${facts.usage.reasoning_tokens ? `${tokens(facts.usage.reasoning_tokens)} reasoning` : null}>${tokens(facts.usage.output_tokens)}</${Stat}>
      <${Stat} label="Cost" note=${facts.prices && visible(facts.prices)}><${Money} value=${facts.cost_usd} /></${Stat}><${Stat} label="Model" note=${facts.system_fingerprint ? `fingerprint ${visible(facts.system_fingerprint)}` : "no fingerprint"}><span class="models">${[...new Set([facts.model_requested, facts.model_returned])].filter(Boolean).map((name) => html`<span class="chip" key=${name}>${visible(name)}</span>`)}</span></${Stat}>`}</dl>
    ${Object.keys(facts.params || {}).length > 0 && html`<p class="badges">${Object.entries(facts.params).slice(0, 20).map(param)}</p>`}
    ${facts.warnings.map((warning) => html`<p class="note warn" key=${warning}>${visible(warning)}</p>`)}
  </header>`;
}

const TABS = [["messages", "Messages"], ["json", "JSON"], ["bytes", "Bytes"], ["http", "HTTP"], ["key", "Key"], ["same", "Same key"]];

export default function Call({ params, query }) {
  const { data: call, error } = useLoad(() => loadCall(params.call), [params.call]);
  const { data: timeline } = useLoad(() => seenTimeline(params.run) ?? loadTimeline(params.run), [params.run]);
  const session = useSession();
  const steps = timeline?.steps ?? [];
  const tab = TABS.some(([id]) => id === query.tab) ? query.tab : "messages";
  const move = (by) => {
    const next = steps[steps.findIndex((one) => one.call === params.call) + by];
    if (next) navigate(`/runs/${encodeURIComponent(params.run)}/calls/${next.call}`, tab === "messages" ? {} : { tab });
  };
  useKeys({
    "]": { label: "next step", run: () => move(1) },
    "[": { label: "step before", run: () => move(-1) },
    Escape: { label: "back to the run", run: () => navigate(`/runs/${encodeURIComponent(params.run)}`, call ? { step: call.facts.step } : {}) },
  });
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!call) return html`<${Loading} />`;
  const { facts } = call;
  const isWithheld = !canReadBodies(session);
  const panel = isWithheld && tab !== "same" ? html`<p class="note warn">This token lacks <code>bodies:read</code>: what was asked and answered is not shown.</p>`
    : tab === "json" ? html`<${Json} call=${call} part=${query.part} />`
      : tab === "bytes" ? html`<${Bytes} call=${call} query=${query} />`
        : tab === "http" ? html`<${Http} call=${call} query=${query} />`
          : tab === "key" ? html`<${Key} call=${call} facts=${facts} />`
            : tab === "same" ? html`<${Same} facts=${facts} />` : html`<${Messages} key=${facts.id} call=${call} />`;
  return html`<div class="run-view call-view"><${Header} facts=${facts} steps=${steps} move=${move} />
    <${Tabs} label="View" panel="call-panel" active=${tab} onSelect=${(id) => setQuery({ tab: id === "messages" ? null : id })} tabs=${TABS.map(([id, label]) => ({ id, label }))} />
    <div id="call-panel" role="tabpanel" aria-label=${tab} class="call-panel">${panel}</div></div>`;
}
