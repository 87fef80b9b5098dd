// Keys. A view says which it has: useKeys({j: {label: "next row", run: next}, "Enter": …}).
//
// A key is a `KeyboardEvent.key` ("j", "Enter", "Escape", "?"), or two in a row with a space ("g l"). Keys do nothing while
// something is typed, with a modifier, or where a dialog is open (except its own). The newest component that has a key gets it; of
// those that are drawn at once, the innermost.
import { useLayoutEffect, useRef } from "./html.js";

const stack = [];
let components = 0;
let prefix = "";
let prefixAt = 0;

/** `{key: {label, run}}`, or `{key: run}` for a key that the help does not show. */
export function useKeys(keys) {
  const current = useRef(keys);
  current.current = keys;
  // A component is called before those inside it, and its effects run after theirs.
  const number = useRef(0);
  number.current ||= ++components;
  // With what is drawn, not after it: a key that is pressed as soon as something is shown is for it.
  useLayoutEffect(() => {
    const entry = { number: number.current, keys: () => current.current };
    stack.push(entry);
    stack.sort((one, other) => one.number - other.number);
    return () => stack.splice(stack.indexOf(entry), 1);
  }, []);
}

/** All keys with labels, for the help: the newest first, each key once. */
export function activeKeys() {
  const shown = new Map();
  for (const entry of [...stack].reverse()) {
    for (const [key, value] of Object.entries(entry.keys())) if (value?.label && !shown.has(key)) shown.set(key, value.label);
  }
  return [...shown];
}

/** @param {any} target */
const isTyping = (target) =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName) && target.getAttribute("type") !== "checkbox");

function find(key) {
  for (const entry of [...stack].reverse()) {
    const value = entry.keys()[key];
    if (value) return value.run || value;
  }
  return null;
}

addEventListener("keydown", (event) => {
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
  if (document.querySelector("dialog[open]") || document.querySelector("[role=menu]")) return;
  if (isTyping(event.target)) {
    if (event.key === "Escape") /** @type {HTMLElement} */ (event.target).blur();
    return;
  }
  // Enter on a link or button does what the browser does.
  const isOnControl = event.target instanceof HTMLElement && event.target.closest("a[href], button, summary, [role=tab]");
  if (isOnControl && (event.key === "Enter" || event.key === " ")) return;
  const both = prefix && performance.now() - prefixAt < 1000 ? `${prefix} ${event.key}` : "";
  prefix = event.key.length === 1 ? event.key : "";
  prefixAt = performance.now();
  const run = (both && find(both)) || find(event.key);
  if (run) {
    event.preventDefault();
    run(event);
  }
});
