// Components that several views use. Conventions for all views:
//
// - A view is the default export of `views/NAME.js`, with the props `params` (names in the path) and `query` (parameters; a list
//   where one is repeated). What it shows is in the address: change it with `setQuery` or `navigate` of `core/router.js`.
// - Load with `useLoad(() => get("/v1/…"), [what it depends on])`: `{data, error, isLoading, reload}`. The data of before stays
//   while new data is loaded, so that nothing jumps. `Loaded` shows the data, the error or that it is being loaded.
// - What was recorded is shown by `Text` (long texts in pieces) or as a text node through `visible` of `core/format.js`; it never
//   becomes an attribute `href` or `src`, a tag name, a class or a key of an object that has a prototype.
// - Styles are classes of `app.css`. A computed size is `style=${{width: "12px"}}` (an object, which needs no inline style) or an
//   SVG attribute. Colours are the custom properties at the top of `app.css`.
// - Statuses have a text, not only a colour: `Badge`. Numbers are in cells with the class `num`.
// - A view shows a link to its JSON: `JsonLink`. Keys are registered by `useKeys`.
// - Without the scope `bodies:read`, `canReadBodies(useSession())` is false and the API has null in place of content: say so.
import { html, useEffect, useLayoutEffect, useRef, useState } from "./html.js";
import { address, isOffline } from "./api.js";
import { bytes, count, duration, exactTime, money, outcomeWord, time, tokens, visible } from "./format.js";

// The session.
let session = null;
const watchers = new Set();
export function setSession(value) {
  session = value;
  for (const watcher of watchers) watcher(value);
}
/** What the token of the reader allows; null until it is known. */
export function useSession() {
  const [value, setValue] = useState(session);
  useEffect(() => {
    setValue(session);
    watchers.add(setValue);
    return () => watchers.delete(setValue);
  }, []);
  return value;
}
export const allows = (value, scope) => isOffline || !value || value.scopes.includes(scope) || value.scopes.includes("admin");
export const canReadBodies = (value) => allows(value, "bodies:read");

/** Load with a function that returns a promise, again when `inputs` change. */
export function useLoad(load, inputs) {
  const [state, setState] = useState({ data: null, error: null, isLoading: true });
  const [turn, setTurn] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    setState((before) => ({ ...before, isLoading: true }));
    Promise.resolve().then(load).then(
      (data) => isCurrent && setState({ data, error: null, isLoading: false }),
      (error) => isCurrent && error.name !== "AbortError" && setState((before) => ({ ...before, error, isLoading: false })),
    );
    return () => { isCurrent = false; };
  }, [...inputs, turn]);
  return { ...state, reload: () => setTurn((before) => before + 1) };
}

/** What `useLoad` returned: `children` is a function of the data. `height` is that of what will be shown. */
export function Loaded({ of: { data, error, reload }, height, children, as }) {
  if (error) return html`<${ErrorNote} error=${error} retry=${reload} as=${as} />`;
  return data ? children(data) : html`<${Loading} height=${height} />`;
}

/** The first items of a list, and a button that shows more of them, or null: `[items, button]`. */
export function useMost(items, first, step = first, what = "more") {
  const [most, setMost] = useState(first);
  const left = items.length - most;
  const button = left > 0 && html`<button class="quiet" onClick=${() => setMost(most + step)}>Show ${count(Math.min(step, left))} ${what} of ${count(left)}</button>`;
  return [items.slice(0, most), button, setMost];
}

/** The width of an element, also when it changes. */
export function useWidth(root, before = 0) {
  const [width, setWidth] = useState(before);
  useLayoutEffect(() => {
    const measure = () => root.current && setWidth(Math.floor(root.current.clientWidth));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(root.current);
    return () => observer.disconnect();
  }, []);
  return width;
}

/** A button that presses itself when it comes into sight. */
export function MoreInSight({ isBusy = false, onMore, children }) {
  const root = useRef(null);
  const current = useRef(onMore);
  current.current = onMore;
  useEffect(() => {
    if (isBusy) return;
    const observer = new IntersectionObserver((seen) => seen.some((one) => one.isIntersecting) && current.current(), { rootMargin: "600px" });
    observer.observe(root.current);
    return () => observer.disconnect();
  });
  return html`<div class="more-rows" ref=${root}><button disabled=${isBusy} onClick=${onMore}>${isBusy ? "Loading…" : children}</button></div>`;
}

/** One of several values: `options` are `[value, label]`. */
export const Choice = ({ label, options, value, onChange, className = "segments" }) => html`<div class=${className} role="group" aria-label=${label}>
  ${options.map(([id, text]) => html`<button key=${id} aria-pressed=${id === value} onClick=${() => onChange(id)}>${text}</button>`)}</div>`;

const numberClass = (head) => (head.startsWith("#") ? "num" : "");

/** A table that scrolls by itself. The heads of numbers begin with "#"; rows are lists of cells. */
export const Table = ({ label, heads, rows, className = "" }) => html`<div class="scroll" tabindex="0" role="region" aria-label=${label}><table class=${className}>
  <thead><tr>${heads.map((head) => html`<th key=${head} class=${numberClass(head)}>${head.replace("#", "")}</th>`)}</tr></thead>
  <tbody>${rows.map((cells, place) => html`<tr key=${place}>${cells.map((cell, at) => html`<td key=${at} class=${numberClass(heads[at])}>${cell}</td>`)}</tr>`)}</tbody>
</table></div>`;

/** A number of the strip at the top, with a word below it. */
export const Stat = ({ label, children, note }) => html`<div class="stat"><dt>${label}</dt><dd>${children}</dd>${note && html`<dd class="stat-note">${note}</dd>`}</div>`;

export const Chip = ({ children, title }) => html`<span class="chip" title=${title}>${typeof children === "string" ? visible(children) : children}</span>`;

/** `tone`: good, bad, warn, info or nothing. */
export const Badge = ({ tone = "", children, title }) => html`<span class="badge ${tone}" title=${title}>${children}</span>`;

const ANSWER_STATES = { error: "the answer says that the call failed", partial: "the answer says that a part of the call failed" };

/** The status of a call's answer, with a word for an answer that is not whole or not the API's. */
export function CallStatus({ call }) {
  const word = outcomeWord(call);
  return html`<${Badge} tone=${call.failed ? "bad" : word ? "warn" : "good"} title=${ANSWER_STATES[call.answer_state]}>${
    call.status ?? "no response"}${word && ` ${word}`}</${Badge}>`;
}

export function Money({ value, isPartial = false }) {
  const isKnown = value !== null && value !== undefined;
  const title = isKnown ? `$${value}${isPartial ? ", without calls whose price is unknown" : ""}` : "the price is unknown";
  return html`<span title=${title}>${isPartial && isKnown ? "≥ " : ""}${money(value)}</span>`;
}
export const Tokens = ({ value }) => html`<span title=${count(value)}>${tokens(value)}</span>`;
export const Duration = ({ ms }) => html`<span title=${ms == null ? "unknown" : `${ms} ms`}>${duration(ms)}</span>`;
/** A time in the reader's zone; the exact one on hover. */
export const Time = ({ at }) => html`<time datetime=${at} title=${exactTime(at)}>${time(at)}</time>`;

/** An error, if there is one: what happened and what to do, as the API says it. `as` is "h1" where it is all that a page has. While the store server
 * does not answer, or its database, `retry` is called every three seconds. */
export function ErrorNote({ error, retry, as = "strong" }) {
  const status = error?.status;
  useEffect(() => {
    const timer = error && retry && (!status || status === 503) && setTimeout(retry, 3000);
    return () => clearTimeout(timer);
  }, [error]);
  return error && html`
  <div class="note bad" role="alert">
    <${as}>${status ? `${error.document?.title || "Error"} (${status})` : "This did not work"}</${as}>
    <p>${visible(String(error.message))}</p>
    ${retry && html`<button onClick=${retry}>Try again</button>`}
  </div>`;
}

/** A place for what is being loaded, as high as it will be. Shown after a moment only, so that nothing flickers. */
export const Loading = ({ height = "40vh" }) =>
  html`<div class="loading" style=${{ minHeight: height }} role="status" aria-label="Loading"><span></span></div>`;

export const Empty = ({ title, children }) => html`<div class="empty"><h2>${title}</h2>${children}</div>`;

/** The JSON of a view. */
export const JsonLink = ({ path, params, label = "JSON" }) =>
  isOffline ? null : html`<a class="quiet" href=${address(path, params)} title="The same as JSON" data-twin>${label}</a>`;

/** Copy a text. */
export function Copy({ text, label = "Copy", title }) {
  const [isDone, setDone] = useState(false);
  const copy = async () => {
    await writeClipboard(typeof text === "function" ? await text() : text);
    setDone(true);
    setTimeout(() => setDone(false), 1200);
  };
  return html`<button class="quiet" onClick=${copy} title=${title}>${isDone ? "Copied" : label}</button>`;
}

export async function writeClipboard(text) {
  if (navigator.clipboard) return navigator.clipboard.writeText(text);
  // A page over plain HTTP from another machine has no clipboard: select the text in a field, and copy that.
  const field = document.createElement("textarea");
  field.value = text;
  (document.querySelector("dialog[open]") || document.body).append(field);
  field.select();
  document.execCommand("copy");
  field.remove();
}

/** An input whose value is in the address: `onCommit(text or null)` when it is left or entered. What is being typed is kept here, because
    drawing the view anew would put the value of the address over it. */
export function AddressInput({ value = "", onCommit, ...rest }) {
  const [text, setText] = useState(value);
  useEffect(() => setText(value), [value]);
  return html`<input ...${rest} value=${text} onInput=${(event) => setText(event.target.value)} onChange=${(event) => onCommit(event.target.value.trim() || null)} />`;
}

/** `tabs`: `[{id, label, badge}]`. Arrow keys move; `panel` is the id of the element that they change. */
export function Tabs({ tabs, active, onSelect, label, panel }) {
  const list = useRef(null);
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const place = (tabs.findIndex((tab) => tab.id === active) + step + tabs.length) % tabs.length;
    onSelect(tabs[place].id);
    list.current.children[place].focus();
  };
  return html`<div class="tabs" role="tablist" aria-label=${label} ref=${list} onKeyDown=${onKeyDown}>
    ${tabs.map((tab) => html`<button key=${tab.id} role="tab" aria-selected=${tab.id === active} aria-controls=${panel}
      tabindex=${tab.id === active ? 0 : -1} onClick=${() => onSelect(tab.id)}>${tab.label}${tab.badge !== undefined && html` <span
        class="count">${tab.badge}</span>`}</button>`)}
  </div>`;
}

/** A button with a menu. `items`: `[{label, run, note, isDangerous, isDisabled}]`; null is a line between them. */
export function Menu({ label, items, title, isOpen: opensNow = false, onClose = () => {}, className = "" }) {
  const [isOpen, setOpen] = useState(opensNow);
  const root = useRef(null);
  const button = useRef(null);
  const close = (isFocused = true) => {
    setOpen(false);
    onClose();
    if (isFocused) button.current?.focus();
  };
  useEffect(() => setOpen(opensNow), [opensNow]);
  useEffect(() => {
    if (!isOpen) return;
    root.current.querySelector("[aria-disabled=false]")?.focus();
    const outside = (event) => root.current.contains(event.target) || close(false);
    addEventListener("pointerdown", outside, true);
    return () => removeEventListener("pointerdown", outside, true);
  }, [isOpen]);
  const onKeyDown = (event) => {
    if (!isOpen) return;
    const all = [...root.current.querySelectorAll("[role=menuitem]")];
    const place = all.indexOf(document.activeElement);
    const target = { ArrowDown: place + 1, ArrowUp: place - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (target !== undefined) all[target % all.length].focus();
    else if (event.key === "Escape") close();
    else if (event.key === "Tab") return close(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const choose = (item) => {
    if (item.isDisabled) return;
    close();
    item.run();
  };
  return html`<span class="menu ${className}" ref=${root} onKeyDown=${onKeyDown}>
    <button ref=${button} class="quiet" aria-haspopup="menu" aria-expanded=${isOpen} title=${title} aria-label=${title}
      onClick=${(event) => { event.stopPropagation(); if (isOpen) close(); else setOpen(true); }}>${label}</button>
    ${isOpen && html`<div class="menu-list" role="menu" aria-label=${title || label}>
      ${items.map((item, place) => item === null
        ? html`<hr key=${place} />`
        : html`<button key=${place} role="menuitem" tabindex="-1" class=${item.isDangerous ? "danger" : ""} aria-disabled=${Boolean(item.isDisabled)}
            onClick=${(event) => { event.stopPropagation(); choose(item); }}>${item.label}${item.note && html`<small>${item.note}</small>`}</button>`)}
    </div>`}
  </span>`;
}

/** A modal dialog; Escape and a click beside it close it. */
export function Dialog({ title, onClose, children, actions, isWide = false }) {
  const dialog = useRef(null);
  useLayoutEffect(() => {
    const before = document.activeElement;
    dialog.current.showModal();
    return () => before instanceof HTMLElement && before.isConnected && before.focus();
  }, []);
  return html`<dialog ref=${dialog} class=${isWide ? "is-wide" : ""} aria-label=${title} onCancel=${(event) => { event.preventDefault(); onClose(); }}
    onClick=${(event) => event.target === dialog.current && onClose()}>
    <div class="dialog-body">
      <header><h2>${title}</h2><button class="quiet" onClick=${onClose} aria-label="Close">✕</button></header>
      ${children}
      ${actions && html`<footer>${actions}</footer>`}
    </div>
  </dialog>`;
}

/** A command to copy. */
export const Command = ({ text }) => html`<div class="command"><code>${visible(text)}</code><${Copy} text=${text} title="Copy the command" /></div>`;

/**
 * Rows of one height, of which only those in sight are in the document. `render(item, place)` returns a row; give it a key.
 * It scrolls within itself: `height` is a CSS length.
 */
export function VirtualList({ items, rowHeight, height, render, label, overscan = 8, scrollTo = null, role = "list" }) {
  const [top, setTop] = useState(0);
  const root = useRef(null);
  useWidth(root);
  const size = root.current?.clientHeight ?? 600;
  useLayoutEffect(() => {
    if (scrollTo === null) return;
    const at = scrollTo * rowHeight;
    const { scrollTop, clientHeight } = root.current;
    if (at < scrollTop) root.current.scrollTop = at;
    else if (at + rowHeight > scrollTop + clientHeight) root.current.scrollTop = at + rowHeight - clientHeight;
  }, [scrollTo]);
  const first = Math.max(0, Math.floor(top / rowHeight) - overscan);
  const last = Math.min(items.length, Math.ceil((top + size) / rowHeight) + overscan);
  return html`<div class="vlist" ref=${root} role=${role} aria-label=${label} tabindex="0" style=${{ height }}
    onScroll=${(event) => setTop(event.currentTarget.scrollTop)}>
    <div class="vlist-space" style=${{ height: `${items.length * rowHeight}px` }} role="presentation">
      <div class="vlist-rows" style=${{ transform: `translateY(${first * rowHeight}px)` }} role="presentation">
        ${items.slice(first, last).map((item, place) => render(item, first + place))}
      </div>
    </div>
  </div>`;
}

export const PIECE = 64 << 10;

/** Where to cut a text so that no character is divided. */
export function cutPlace(text, at) {
  if (at >= text.length) return text.length;
  const code = text.charCodeAt(at - 1);
  return code >= 0xd800 && code <= 0xdbff ? at - 1 : at;
}

/** A text of any length from anywhere: 64 KB at a time, with what is invisible made visible. */
export function Text({ text, className = "", first = PIECE }) {
  const [end, setEnd] = useState(first);
  useEffect(() => setEnd(first), [text]);
  if (text == null) return null;
  const cuts = [0];
  for (let at = Math.min(end, text.length); cuts[cuts.length - 1] < at;) {
    const before = cuts[cuts.length - 1];
    cuts.push(cutPlace(text, Math.min(before + PIECE, at)));
  }
  const shown = cuts[cuts.length - 1];
  return html`<div class="text ${className}" dir="auto">
    ${cuts.slice(1).map((cut, place) => html`<span key=${place} class="piece">${visible(text.slice(cuts[place], cut))}</span>`)}
    ${shown < text.length && html`<button class="more" onClick=${() => setEnd(shown + PIECE)}>Show 64 KB more (${bytes(text.length - shown)} left)</button>`}
  </div>`;
}
