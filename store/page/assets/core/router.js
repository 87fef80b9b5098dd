// The address is the state of the page: `useLocation()` gives it, `navigate(path, params)` changes it.
import { html, useLayoutEffect, useState } from "./html.js";
import { isOffline } from "./api.js";

const listeners = new Set();

function read() {
  // A file has no paths of its own: its address is in the fragment.
  const url = isOffline ? new URL(location.hash.slice(1) || "/", "file:///") : new URL(location.href);
  return { path: url.pathname, query: queryOf(url.searchParams) };
}

/** Parameters as an object: a string each, or a list where one is repeated. */
function queryOf(params) {
  const query = {};
  for (const name of new Set(params.keys())) {
    const values = params.getAll(name);
    query[name] = values.length > 1 ? values : values[0];
  }
  return query;
}

/** A path with its values encoded: path`/runs/${run}`. */
export const path = (texts, ...values) => texts.reduce((whole, text, place) => whole + encodeURIComponent(values[place - 1]) + text);

export const runPath = (run) => path`/runs/${run}`;
export const callPath = (run, call) => path`/runs/${run}/calls/${call}`;

/** Those parameters of an address that have one of these names. */
export const pick = (query, names) => Object.fromEntries(names.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));

/** The values of a parameter as a list. */
export const listOf = (value) => (value === undefined || value === null || value === "" ? [] : Array.isArray(value) ? value : [value]);

/** The address of a view. The project of this address is kept. */
export function href(path, params = {}) {
  const query = new URLSearchParams();
  const { project } = read().query;
  for (const [name, value] of Object.entries(project ? { project, ...params } : params)) {
    for (const one of listOf(value)) query.append(name, one);
  }
  const text = query.toString();
  return (isOffline ? "#" : "") + (text ? `${path}?${text}` : path);
}

/** Open a view. With `{replace: true}` the back button skips this address. */
export function navigate(path, params = {}, { replace = false } = {}) {
  if (!replace) history.replaceState(scrollY, "");
  history[replace ? "replaceState" : "pushState"](null, "", href(path, params));
  if (!replace) scrollTo(0, 0);
  notify();
}

/** Scroll to where the reader was, once the view that is fetched anew is that long; give up after three seconds, or in another view. */
function scrollBack(left) {
  if (scrollY < history.state - 1 && left) {
    scrollTo(0, history.state);
    setTimeout(scrollBack, 50, left - 1);
  }
}

/** Change some parameters of this address; null removes one. */
export function setQuery(changes, options = { replace: true }) {
  const { path, query } = read();
  const next = { ...query, ...changes };
  for (const name of Object.keys(next)) if (listOf(next[name]).length === 0) delete next[name];
  navigate(path, next, options);
}

function notify() {
  const now = read();
  for (const listener of listeners) listener(now);
}
addEventListener("popstate", () => { notify(); scrollBack(60); });
addEventListener("hashchange", notify);

/** `{path, query}` of the address; the component is drawn again when it changes. */
export function useLocation() {
  const [place, setPlace] = useState(read);
  useLayoutEffect(() => {
    listeners.add(setPlace);
    return () => listeners.delete(setPlace);
  }, []);
  return place;
}

/** A link to a view. A click with a modifier key opens a tab, as everywhere. */
export function Link({ to, params, children, ...rest }) {
  const open = (event) => {
    if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    navigate(to, params);
  };
  return html`<a href=${href(to, params)} onClick=${open} ...${rest}>${children}</a>`;
}
