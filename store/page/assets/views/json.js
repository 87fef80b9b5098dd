// A JSON text as a tree that reads only what is opened: 5 MB take no longer to show than 5 KB, and numbers keep all digits.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { bytes, count, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { Copy, Text, VirtualList } from "../core/parts.js";

const PAGE = 500;
const PREVIEW = 160;
const ROW = 22;
const MOST_MATCHES = 1000;

const isSpace = (code) => code === 32 || code === 10 || code === 13 || code === 9;

function skipSpace(text, at) {
  while (isSpace(text.charCodeAt(at))) at += 1;
  return at;
}

/** The place after a string that begins at `at`. */
function skipString(text, at) {
  for (let end = text.indexOf('"', at + 1); end >= 0; end = text.indexOf('"', end + 1)) {
    let slashes = 0;
    while (text.charCodeAt(end - 1 - slashes) === 92) slashes += 1;
    if (slashes % 2 === 0) return end + 1;
  }
  return text.length;
}

/** The place after a value that begins at `at`. */
function skipValue(text, at) {
  const first = text.charCodeAt(at);
  if (first === 34) return skipString(text, at);
  if (first !== 123 && first !== 91) {
    while (at < text.length && !isSpace(text.charCodeAt(at)) && !",]}".includes(text[at])) at += 1;
    return at;
  }
  let depth = 0;
  while (at < text.length) {
    const code = text.charCodeAt(at);
    if (code === 34) at = skipString(text, at) - 1;
    else if (code === 123 || code === 91) depth += 1;
    else if (code === 125 || code === 93) { depth -= 1; if (depth === 0) return at + 1; }
    at += 1;
  }
  return at;
}

const KINDS = { "{": "object", "[": "array", '"': "string", t: "literal", f: "literal", n: "literal" };

/** The value at a place: `{start, end, kind}`. */
export function nodeAt(text, at = 0) {
  const start = skipSpace(text, at);
  return { start, end: skipValue(text, start), kind: KINDS[text[start]] || "number" };
}

/** Some children of an object or array, from the place where the last ones ended: `{items, next}`; `next` is null at the end. */
export function childrenOf(text, node, from = null, limit = PAGE, first = 0) {
  const items = [];
  let at = from ?? skipSpace(text, node.start + 1);
  while (items.length < limit && at < node.end - 1) {
    let key = first + items.length;
    if (node.kind === "object") {
      const end = skipString(text, at);
      key = JSON.parse(text.slice(at, end));
      at = skipSpace(text, skipSpace(text, end) + 1);
    }
    const child = nodeAt(text, at);
    items.push({ key, ...child });
    at = skipSpace(text, child.end);
    if (text[at] === ",") at = skipSpace(text, at + 1);
  }
  return { items, next: at < node.end - 1 ? at : null };
}

/** A member of an object, or null. */
export function member(text, node, name) {
  if (node?.kind !== "object") return null;
  for (let page = childrenOf(text, node), all = page.items; ;) {
    const found = all.find((child) => child.key === name);
    if (found || page.next === null) return found || null;
    page = childrenOf(text, node, page.next);
    all = page.items;
  }
}

export const valueOf = (text, node) => (node ? JSON.parse(text.slice(node.start, node.end)) : undefined);

/** RFC 6901. */
const escaped = (key) => String(key).replaceAll("~", "~0").replaceAll("/", "~1");

function preview(text, node) {
  if (node.kind === "string") return visible(text.slice(node.start, Math.min(node.end, node.start + PREVIEW)).replace(/\\n/g, "⏎")) + (node.end - node.start > PREVIEW ? "…" : "");
  if (node.kind === "object" || node.kind === "array") {
    const size = node.end - node.start;
    return `${node.kind === "object" ? "{…}" : "[…]"} ${size > 4096 ? bytes(size) : ""}`;
  }
  return visible(text.slice(node.start, Math.min(node.end, node.start + PREVIEW)));
}

const isContainer = (node) => node.kind === "object" || node.kind === "array";

class Tree {
  constructor(text, start) {
    this.text = text;
    this.root = { key: null, ...nodeAt(text, start) };
    this.children = new Map();
    this.open = new Set();
    this.toggle("", this.root, true);
    // What is small is open at once.
    let room = 60;
    const openSmall = (pointer, node, depth) => {
      for (const child of this.page(pointer, node).items) {
        const below = `${pointer}/${escaped(child.key)}`;
        if (isContainer(child) && depth < 3 && child.end - child.start < 4000 && (room -= 8) > 0) {
          this.toggle(below, child, true);
          openSmall(below, child, depth + 1);
        }
      }
    };
    if (isContainer(this.root)) openSmall("", this.root, 0);
  }

  page(pointer, node) {
    if (!this.children.has(pointer)) this.children.set(pointer, childrenOf(this.text, node));
    return this.children.get(pointer);
  }

  more(pointer, node) {
    const page = this.page(pointer, node);
    if (page.next === null) return;
    const next = childrenOf(this.text, node, page.next, PAGE * 4, page.items.length);
    page.items.push(...next.items);
    page.next = next.next;
  }

  toggle(pointer, node, isOpen = !this.open.has(pointer)) {
    if (!isContainer(node)) return;
    if (isOpen) this.open.add(pointer);
    else this.open.delete(pointer);
  }

  rows() {
    const found = [];
    const visit = (pointer, node, depth) => {
      found.push({ pointer, node, depth });
      if (!isContainer(node) || !this.open.has(pointer)) return;
      const page = this.page(pointer, node);
      for (const child of page.items) visit(`${pointer}/${escaped(child.key)}`, child, depth + 1);
      if (page.next !== null) found.push({ pointer, node, depth: depth + 1, isMore: true, left: node.end - page.next });
    };
    visit("", this.root, 0);
    return found;
  }

  /** Open everything around the value that a pointer names, if there is one. */
  openTo(pointer) {
    let [at, node] = ["", this.root];
    for (const key of pointer.split("/").slice(1)) {
      if (!isContainer(node)) return;
      const find = () => this.page(at, node).items.find((child) => escaped(child.key) === key);
      while (!find() && this.page(at, node).next !== null) this.more(at, node);
      const child = find();
      if (!child) return;
      this.open.add(at);
      [at, node] = [`${at}/${key}`, child];
    }
  }

  /** Open everything around a place of the text; return the pointer of the value there. */
  reveal(place) {
    let pointer = "";
    let node = this.root;
    while (isContainer(node)) {
      this.open.add(pointer);
      const page = this.page(pointer, node);
      let child = page.items.findLast((one) => one.start - String(one.key).length - 4 <= place && place < one.end);
      while (!child && page.next !== null && page.next <= place) {
        this.more(pointer, node);
        child = page.items.findLast((one) => one.start - String(one.key).length - 4 <= place && place < one.end);
      }
      if (!child) break;
      pointer = `${pointer}/${escaped(child.key)}`;
      if (place < child.start) break;
      node = child;
    }
    return pointer;
  }
}

/** Where a text is found, whether it is written with escapes or not. */
function matchesOf(text, sought, from, to) {
  const written = JSON.stringify(sought).slice(1, -1);
  const pattern = new RegExp(written.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
  pattern.lastIndex = from;
  const found = [];
  for (let match = pattern.exec(text); match && match.index < to && found.length < MOST_MATCHES; match = pattern.exec(text)) {
    found.push(match.index);
    if (match[0] === "") break;
  }
  return found;
}

/** `text` is JSON, of which the value at `start` is shown, with what `chosen` points at selected. `onChoose(pointer)` is called when the hand
    rests on another. */
export function JsonTree({ text, start = 0, label = "JSON", chosen = "", onChoose = (_pointer) => {} }) {
  const tree = useMemo(() => {
    const made = new Tree(text, start);
    made.openTo(chosen);
    return made;
  }, [text, start]);
  const [, draw] = useState(0);
  const [selected, setSelected] = useState(chosen);
  const [sought, setSought] = useState("");
  const [hits, setHits] = useState({ places: [], at: -1 });
  const [target, setTarget] = useState(null);
  const timer = useRef(0);
  const field = useRef(null);
  useKeys({ "/": { label: "search in the JSON", run: () => field.current.focus() } });
  useEffect(() => { if (chosen) show(chosen); }, [tree]);
  useEffect(() => {
    const resting = setTimeout(() => selected !== chosen && onChoose(selected), 300);
    return () => clearTimeout(resting);
  }, [selected]);
  const rows = tree.rows();
  const place = Math.max(0, rows.findIndex((row) => row.pointer === selected && !row.isMore));
  const current = rows[place];
  const show = (pointer) => {
    setSelected(pointer);
    setTarget(tree.rows().findIndex((row) => row.pointer === pointer && !row.isMore));
  };
  const goTo = (places, at) => {
    setHits({ places, at });
    if (at >= 0) show(tree.reveal(places[at]));
  };
  const search = (value) => {
    setSought(value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => {
      const places = value ? matchesOf(text, value, tree.root.start, tree.root.end) : [];
      goTo(places, places.length ? 0 : -1);
    }, 150);
  };
  const step = (by) => hits.places.length && goTo(hits.places, (hits.at + by + hits.places.length) % hits.places.length);
  const toggle = (row) => {
    if (row.isMore) tree.more(row.pointer, row.node);
    else tree.toggle(row.pointer, row.node);
    draw((turn) => turn + 1);
  };
  const onKeyDown = (event) => {
    const row = rows[place];
    const parent = row.pointer.slice(0, row.pointer.lastIndexOf("/"));
    const isOpen = tree.open.has(row.pointer);
    if (event.key === "ArrowDown" && rows[place + 1]) show(rows.slice(place + 1).find((one) => !one.isMore)?.pointer ?? selected);
    else if (event.key === "ArrowUp" && place > 0) show(rows.slice(0, place).findLast((one) => !one.isMore).pointer);
    else if (event.key === "ArrowRight" && isContainer(row.node) && !isOpen) toggle(row);
    else if (event.key === "ArrowLeft" && isContainer(row.node) && isOpen) toggle(row);
    else if (event.key === "ArrowLeft" && row.pointer) show(parent);
    else if (event.key === "Home") show("");
    else return;
    event.preventDefault();
  };
  const marked = (words) => {
    if (!sought) return words;
    const at = words.toLowerCase().indexOf(sought.toLowerCase());
    return at < 0 ? words : html`${words.slice(0, at)}<mark>${words.slice(at, at + sought.length)}</mark>${words.slice(at + sought.length)}`;
  };
  const draw1 = (row, at) => html`<div key=${row.isMore ? `${row.pointer}//more` : row.pointer}
    class="json-row ${row.pointer === selected && !row.isMore ? "is-selected" : ""}" role="treeitem" id=${`json-${at}`}
      aria-level=${row.depth + 1} aria-selected=${row.pointer === selected}
        aria-expanded=${!row.isMore && isContainer(row.node) ? (tree.open.has(row.pointer) ?? false) : undefined}
      style=${{ paddingLeft: `${6 + Math.min(row.depth, 30) * 15}px` }}
        onClick=${() => { if (row.isMore) toggle(row); else if (row.pointer === selected || isContainer(row.node)) { setSelected(row.pointer); toggle(row); } else setSelected(row.pointer); }}>
    ${row.isMore
      ? html`<span class="json-more">show ${count(PAGE * 4)} more (${bytes(row.left)} left)</span>`
      : html`<span class="json-fold">${isContainer(row.node) ? (tree.open.has(row.pointer) ? "▾" : "▸") : ""}</span>${row.node.key !== null && html`<span
        class="json-key">${marked(visible(String(row.node.key)))}</span>`}<span
        class="json-${row.node.kind}">${isContainer(row.node) && tree.open.has(row.pointer) ? (row.node.kind === "object" ? "{" : "[") : marked(preview(text, row.node))}</span>`}
  </div>`;
  const pointer = current?.pointer ?? "";
  const isLeaf = current && !isContainer(current.node);
  const size = current ? current.node.end - current.node.start : 0;
  return html`<div class="json">
    <div class="json-bar">
      <input ref=${field} type="search" placeholder="Search in it" aria-label="Search in the JSON" value=${sought} onInput=${(event) => search(event.currentTarget.value)}
        onKeyDown=${(event) => { if (event.key === "Enter") { event.preventDefault(); step(event.shiftKey ? -1 : 1); } }} />
      ${sought && html`<span class="count"
        role="status">${hits.places.length ? `${hits.at + 1} of ${count(hits.places.length)}${hits.places.length === MOST_MATCHES ? "+" : ""}` : "nothing"}</span>
        <button class="quiet" onClick=${() => step(-1)} aria-label="Match before">↑</button><button class="quiet" onClick=${() => step(1)}
          aria-label="Next match">↓</button>`}
      <span class="grow"></span>
      <code class="cut json-pointer" title=${pointer}>${visible(pointer || "(all)")}</code>
      <${Copy} text=${pointer} label="Copy pointer" title="RFC 6901" /><${Copy} text=${() => (current ? text.slice(current.node.start, current.node.end) : "")}
        label="Copy value" />
    </div>
    <div class="json-tree" onKeyDown=${onKeyDown}>
      <${VirtualList} items=${rows} rowHeight=${ROW} height=${`min(${rows.length * ROW + 4}px, 62vh)`} role="tree" label=${label} scrollTo=${target} render=${draw1} />
    </div>
    ${isLeaf && current.node.kind === "string" && size > PREVIEW && html`<div class="json-value"><small>${count(size - 2)} characters as written</small><${Text}
      text=${valueOf(text, current.node)} /></div>`}
  </div>`;
}
