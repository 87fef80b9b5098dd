// The bodies of an exchange as bytes, a piece at a time, with the times at which they arrived; and its headers.
import { html, useEffect, useMemo, useState } from "../core/html.js";
import { get, isOffline } from "../core/api.js";
import { bytes, count, duration, visible } from "../core/format.js";
import { Badge, Choice, ErrorNote, Loaded, Loading, PIECE, VirtualList, useLoad } from "../core/parts.js";
import { path, setQuery } from "../core/router.js";

/** A body that is compressed is fetched whole up to this size: without its beginning, a piece of it says nothing. */
const MOST_COMPRESSED = 8 << 20;
const HEX_PIECE = 16 << 10;

const decoder = new TextDecoder();

function hexOf(data) {
  const lines = [];
  for (let at = 0; at < data.length; at += 16) {
    const row = [...data.subarray(at, at + 16)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, "0")).join(" ").padEnd(48);
    const text = row.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : "·")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${hex} ${text}`);
  }
  return lines.join("\n");
}

/** Undo the content encoding, as far as the browser can; null where it cannot. */
async function decompress(data, encoding) {
  const kind = { gzip: "gzip", "x-gzip": "gzip", deflate: "deflate" }[encoding.trim().toLowerCase()];
  if (!kind) return null;
  try {
    return new Uint8Array(await new Response(new Blob([data]).stream().pipeThrough(new DecompressionStream(kind))).arrayBuffer());
  } catch {
    return null;
  }
}

function join(one, other) {
  const both = new Uint8Array(one.length + other.length);
  both.set(one);
  both.set(other, one.length);
  return both;
}

/** The first `end` bytes of a body, of which those that are there are not fetched again: `{data, total, plain, error}`. */
function useBody(address, end, encoding, isWhole) {
  const [state, setState] = useState({ data: new Uint8Array(), total: null, plain: null });
  const [error, setError] = useState(null);
  const { data, total } = state;
  useEffect(() => {
    if (total !== null && data.length >= Math.min(end, total)) return;
    let isCurrent = true;
    const load = async () => {
      const range = isWhole || isOffline ? null : `bytes=${data.length}-${end - 1}`;
      const found = await get(address, {}, { as: "bytes", range });
      const part = found.headers.get("content-range");
      const joined = part ? join(data, found.bytes) : found.bytes;
      const plain = isWhole ? await decompress(joined, encoding) : null;
      if (isCurrent) setState({ data: joined, total: part ? Number(part.split("/")[1]) : joined.length, plain });
    };
    load().catch((problem) => isCurrent && setError(problem));
    return () => { isCurrent = false; };
  }, [end, total]);
  return { ...state, error };
}

function Body({ exchange, side, encoding, size, isHex }) {
  const address = path`/v1/exchanges/${exchange}/${side}`;
  const [isStored, setStored] = useState(false);
  const [end, setEnd] = useState(isHex ? HEX_PIECE : PIECE);
  const { data, total, plain, error } = useBody(address, end, encoding, encoding !== "" && size <= MOST_COMPRESSED);
  const shown = (!isStored && plain) || data;
  const whole = shown === data ? total : shown.length;
  const most = Math.min(end, shown.length);
  const pieces = useMemo(() => {
    if (isHex) return [hexOf(shown.subarray(0, most))];
    const places = Array.from({ length: Math.ceil(most / PIECE) }, (_, place) => place * PIECE);
    return places.map((at) => decoder.decode(shown.subarray(at, Math.min(at + PIECE, most))));
  }, [shown, most, isHex]);
  const turn = () => { setQuery({ as: isHex ? null : "hex" }); setEnd(isHex ? PIECE : HEX_PIECE); };
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (total === null) return html`<${Loading} height="120px" />`;
  const facts = [`${count(total)} bytes stored`];
  if (size !== total) facts.push(`${count(size)} on the wire`);
  if (encoding) facts.push(encoding);
  if (plain) facts.push(`${count(plain.length)} decoded`);
  return html`<div class="bytes">
    <div class="json-bar"><small>${facts.join(", ")}</small><span class="grow"></span>
      ${plain && html`<button aria-pressed=${isStored} onClick=${() => setStored(!isStored)}>${isStored ? "decoded" : "as stored"}</button>`}
      <button aria-pressed=${isHex} onClick=${turn}>${isHex ? "as text" : "as hex"}</button>
      ${!isOffline && html`<a class="quiet" href=${address} download>Download</a>`}</div>
    ${whole === 0 ? html`<p class="muted">empty</p>`
      : html`<div class="text code raw" tabindex="0" role="region" aria-label="Bytes">${pieces.map((piece, place) => html`<span key=${place} class="piece">${visible(piece)}</span>`)}</div>`}
    ${whole > most && html`<button class="more"
      onClick=${() => setEnd(end + (isHex ? HEX_PIECE : PIECE))}>Show ${isHex ? 16 : 64} KB more (${bytes(whole - most)} left)</button>`}
  </div>`;
}

function Chunks({ exchange }) {
  const found = useLoad(() => get(path`/v1/exchanges/${exchange}/chunks`), [exchange]);
  return html`<${Loaded} of=${found} height="60px">${({ items }) => {
    const last = items.reduce((most, one) => Math.max(most, one.at_ns), 1);
    const row = (one, place) => html`<div key=${place} class="chunk" role="listitem">
      <span class="chunk-side">${one.side}</span><span class="num">${duration(one.at_ns / 1e6)}</span>
      <span class="num">${count(one.size)} B</span><span class="num wide">at ${count(one.offset)}</span>
      <svg class="chunk-line" viewBox="0 0 1000 6" preserveAspectRatio="none" aria-hidden="true"><rect class="chunk-track" width="1000" height="6" />
        <rect class=${one.side === "request" ? "key-think" : "key-stream"} x=${(one.at_ns / last) * 994} width="6" height="6" /></svg></div>`;
    return html`<h2>${count(items.length)} ${items.length === 1 ? "piece" : "pieces"} as they arrived</h2>
      <${VirtualList} items=${items} rowHeight=${24} height=${`min(${items.length * 24 + 2}px, 50vh)`} label="Pieces" render=${row} />`;
  }}</${Loaded}>`;
}

/** Shows `children(exchange)` of a call's exchange: the one that the address names, or the last. */
function Exchange({ ids, query, children }) {
  const id = ids.includes(query.exchange) ? query.exchange : ids[ids.length - 1];
  const found = useLoad(() => get(path`/v1/exchanges/${id}`), [id]);
  return html`${ids.length > 1 && html`<${Choice} className="picks" label="Exchange" value=${id} onChange=${(exchange) => setQuery({ exchange })}
      options=${ids.map((one, place) => [one, `exchange ${place + 1}`])} />`}
    <${Loaded} of=${found} height="160px">${children}</${Loaded}>`;
}

const encodingOf = (headers) => (headers || []).find(([name]) => name.toLowerCase() === "content-encoding")?.[1] ?? "";

export function Bytes({ ids, query }) {
  const side = query.side === "request" ? "request" : "response";
  return html`<${Exchange} ids=${ids} query=${query}>${(data) => html`
    <${Choice} className="picks" label="Side" value=${side} options=${[["request", "request"], ["response", "response"]]} onChange=${(one) => setQuery({ side: one })} />
    ${side === "response" && data.status === null
      ? html`<p class="muted">No response came: ${visible(data.error || data.outcome)}</p>`
      : html`<${Body} key=${data.id + side} exchange=${data.id} side=${side} encoding=${encodingOf(data[`${side}_headers`])} size=${data[`${side}_size`]} isHex=${query.as === "hex"} />`}
    <${Chunks} exchange=${data.id} />`}</${Exchange}>`;
}

const Headers = ({ title, list }) => html`<h2>${title}</h2>
  <div class="scroll" tabindex="0" role="region" aria-label=${title}><table class="headers"><tbody>
    ${(list || []).map(([name, value], place) => html`<tr key=${place}><th scope="row">${visible(name)}</th><td><code>${visible(value)}</code></td></tr>`)}
  </tbody></table></div>`;

export function Http({ ids, query }) {
  return html`<${Exchange} ids=${ids} query=${query}>${(data) => html`
    <p class="badges">
      <${Badge} tone=${data.status === null || data.status >= 400 ? "bad" : "good"}>${data.status ?? "no response"} ${visible(data.reason || "")}</${Badge}>
      <${Badge} tone=${data.outcome === "completed" ? "" : "warn"}>${data.outcome.replace("_", " ")}</${Badge}>
      ${data.truncated && html`<${Badge} tone="bad">bytes are missing</${Badge}>`}
      ${data.reencoded && html`<${Badge} tone="warn">compressed anew</${Badge}>`}
      ${Boolean(data.redactions) && html`<${Badge} tone="info">redacted</${Badge}>`}<span class="chip">${data.http_version}</span></p>
    ${data.error && html`<p class="note bad">${visible(data.error)}</p>`}
    <p><code>${data.method} ${visible(data.url)}</code></p>
    <${Headers} title="Request headers" list=${data.request_headers} />
    <${Headers} title="Response headers" list=${data.response_headers} />
    <${Headers} title="Why it is in this run" list=${data.run_evidence} />`}</${Exchange}>`;
}
