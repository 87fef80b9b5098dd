// The list of runs: filters with counts, search, what is new, two runs to compare.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { events, get } from "../core/api.js";
import { Link, callPath, listOf, navigate, path, pick, runPath, setQuery } from "../core/router.js";
import { between, count, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import {
  AddressInput, Badge, canReadBodies, Choice, Command, Duration, Empty, ErrorNote, JsonLink, Loaded, Loading, Money, MoreInSight,
  Time, Tokens, useLoad, useMost, useSession,
} from "../core/parts.js";
import { ProofMark, RunActions, setPinned } from "./actions.js";

const FACETS = {
  model: "Model", label: "Label", tool: "Tool", status: "HTTP status", provider: "Provider", actor: "Agent", host: "Host", kind: "Kind",
};
/** Filters that are typed: label, type of the input, example. */
const TEXTS = {
  min_cost: ["Cost from, $", "number"], min_duration: ["Duration from, ms", "number"],
  until: ["Until", "text", "2026-11-25T12:00:00Z"], parent: ["Forks of run", "text"],
  dialect: ["Dialect", "text"], operation: ["Operation", "text"], key: ["Key", "text", "sha256:…"],
};
const FILTERS = [...Object.keys(FACETS), ...Object.keys(TEXTS), "since", "error", "incomplete", "q"];
const NOT_OF_EVENTS = ["until", "parent", "key", "since", "incomplete", "q"];
const OF_EVENTS = FILTERS.filter((name) => !NOT_OF_EVENTS.includes(name));
const SORTS = [["", "Newest first"], ["cost", "Most expensive"], ["duration", "Longest"], ["tokens", "Most tokens"]];
const SPANS = [["", "Any"], [1, "1 h"], [24, "24 h"], [168, "7 d"], [720, "30 d"]];
const PAGE = 50;

const noFilters = () => setQuery(Object.fromEntries(FILTERS.map((name) => [name, null])));

/** The runs of a list with filters, page by page, each with its marks. */
function useRuns(params) {
  const [state, setState] = useState({ items: null, next: null, error: null, isLoading: true });
  const turn = useRef(0);
  const change = (work) => setState((before) => ({ ...before, ...work(before) }));
  const load = async (cursor) => {
    const mine = ++turn.current;
    change(() => ({ isLoading: true }));
    try {
      const page = await get("/v1/runs", { ...params, limit: PAGE, cursor });
      if (mine !== turn.current) return;
      change(({ items }) => ({ items: cursor ? [...items, ...page.items] : page.items, next: page.next, error: null, isLoading: false }));
      await mark(page.items.map((run) => run.id));
    } catch (error) {
      if (mine === turn.current) change(() => ({ error, isLoading: false }));
    }
  };
  const mark = async (ids) => {
    if (!ids.length) return;
    const found = (await get("/v1/marks", { run: ids })).items;
    const marks = new Map(found.map((one) => [one.run, one]));
    change(({ items }) => ({ items: items?.map((run) => (marks.has(run.id) ? { ...run, marks: marks.get(run.id) } : run)) }));
  };
  useEffect(() => { load(null); }, [JSON.stringify(params)]);
  /** Put a run as it is now in the place of the one that is shown; null removes it. */
  const replace = (id, run) => change(({ items }) => ({
    items: items?.flatMap((one) => (one.id !== id ? [one] : run ? [{ ...one, ...run }] : [])),
  }));
  const refresh = async (ids) => {
    await Promise.all(ids.map((id) => get(path`/v1/runs/${id}`).then(
      (run) => replace(id, run),
      (error) => error.status === 404 && replace(id, null),
    )));
    await mark(ids);
  };
  return { ...state, reload: () => load(null), more: () => load(state.next), replace, refresh };
}

/** What is recorded meanwhile: how many runs are not in the list, and changes of those that are. */
function useNews(query, list) {
  const [fresh, setFresh] = useState(() => new Set());
  const [state, setState] = useState("waiting");
  const current = useRef(list);
  current.current = list;
  const filters = pick(query, OF_EVENTS);
  useEffect(() => {
    setFresh(new Set());
    const changed = new Set();
    let timer = 0;
    const flush = () => {
      const ids = [...changed].slice(0, 10);
      for (const id of ids) changed.delete(id);
      current.current.refresh(ids).catch(() => {});
      timer = changed.size ? setTimeout(flush, 1000) : 0;
    };
    const stop = events(filters, (name, { run }) => {
      const { items, replace } = current.current;
      if (!run || !items || name === "drift" || name === "replay") return;
      if (name === "run.deleted") {
        changed.delete(run);
        replace(run, null);
      } else if (items.some((one) => one.id === run)) {
        changed.add(run);
        timer ||= setTimeout(flush, 700);
      } else {
        setFresh((before) => (before.has(run) ? before : new Set(before).add(run)));
      }
    }, setState);
    return () => { stop(); clearTimeout(timer); };
  }, [JSON.stringify(filters)]);
  return { fresh, state, clear: () => setFresh(new Set()) };
}

export default function Runs({ query }) {
  const filters = pick(query, FILTERS);
  const params = { ...filters, ...pick(query, ["sort", "order"]) };
  const list = useRuns(params);
  const news = useNews(query, list);
  const [place, setPlace] = useState(-1);
  const checked = listOf(query.compare);
  const setChecked = (compare) => setQuery({ compare });
  const [menuOf, setMenuOf] = useState(null);
  const [areFiltersOpen, setFiltersOpen] = useState(() => innerWidth > 900);
  // In the state, because drawing the list anew would otherwise put the address's words over what is being typed.
  const [words, setWords] = useState(query.q || "");
  useEffect(() => setWords(query.q || ""), [query.q]);
  const search = useRef(null);
  const table = useRef(null);
  const mayRead = canReadBodies(useSession());
  const items = list.items || [];
  const filterCount = Object.keys(filters).length;
  const select = (next) => {
    if (!items.length) return;
    const at = Math.max(0, Math.min(items.length - 1, next));
    setPlace(at);
    const row = table.current?.querySelectorAll("tbody tr")[at];
    row?.focus();
    row?.scrollIntoView({ block: "nearest" });
    if (at >= items.length - 3 && list.next && !list.isLoading) list.more();
  };
  const toggle = (id) => setChecked(checked.includes(id) ? checked.filter((one) => one !== id) : [...checked, id].slice(-2));
  const compare = () => checked.length === 2 && navigate(path`/diff/${checked[0]}/${checked[1]}`);
  const showNew = () => { news.clear(); list.reload(); scrollTo(0, 0); };
  const openFilters = () => {
    setFiltersOpen(true);
    setTimeout(() => /** @type {HTMLElement} */ (document.querySelector(".facets button, .facets input"))?.focus());
  };
  const chosen = items[place];
  useKeys({
    j: { label: "next run", run: () => select(place + 1) }, ArrowDown: () => select(place + 1),
    k: { label: "previous run", run: () => select(place - 1) }, ArrowUp: () => select(place - 1),
    Enter: { label: "open the run", run: () => chosen && navigate(runPath(chosen.id)) },
    Escape: { label: "back: clear the selection", run: () => { setPlace(-1); setChecked([]); /** @type {HTMLElement} */ (document.activeElement)?.blur?.(); } },
    "/": { label: "search", run: () => search.current?.focus() },
    f: { label: "filters", run: openFilters },
    c: { label: "actions of the run", run: () => chosen && setMenuOf(chosen.id) },
    d: { label: "mark for comparison; with two marked, compare", run: () => (checked.length === 2 ? compare() : chosen && toggle(chosen.id)) },
    p: { label: "pin or unpin", run: () => chosen && setPinned(chosen, !chosen.pinned).then((run) => list.replace(run.id, run), () => {}) },
    n: { label: "show new runs", run: showNew },
  });
  useEffect(() => setPlace(-1), [JSON.stringify(params)]);
  const row = (run, at) => html`<${Row} key=${run.id} run=${run} isChosen=${at === place} isChecked=${checked.includes(run.id)}
    onToggle=${() => toggle(run.id)} onFocus=${() => setPlace(at)} onChange=${(next) => list.replace(run.id, next)}
    isMenuOpen=${menuOf === run.id} onMenuClose=${() => setMenuOf(null)} />`;
  return html`<div class="runs ${areFiltersOpen ? "has-facets" : ""}">
    <div class="bar">
      <h1>Runs</h1>
      <button class="quiet" aria-expanded=${areFiltersOpen} aria-controls="facets" onClick=${() => setFiltersOpen(!areFiltersOpen)}>
        Filters${filterCount ? ` (${filterCount})` : ""}</button>
      <form role="search" class="search" onSubmit=${(event) => { event.preventDefault(); setQuery({ q: words.trim() || null }); }}>
        <input ref=${search} type="search" aria-label="Search prompts, answers and tools" disabled=${!mayRead} value=${words}
          placeholder=${mayRead ? "Search what was said   /" : "Search needs the scope bodies:read"}
          onInput=${(event) => setWords(event.target.value)}
          onSearch=${(event) => !event.target.value && query.q && setQuery({ q: null })} />
      </form>
      <span class="grow"></span>
      ${news.fresh.size > 0 && html`<button class="pill" onClick=${showNew}>${count(news.fresh.size)} new</button>`}
      <span class="live ${news.state}" role="status">${{ live: "Live", waiting: "Connecting", closed: "Not live" }[news.state]}</span>
      <label class="visually-hidden" for="sort">Sort</label>
      <select id="sort" value=${query.sort && query.sort !== "time" ? query.sort : ""}
        onChange=${(event) => setQuery({ sort: event.target.value || null, order: null })}>
        ${SORTS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select>
      <button class=${checked.length === 2 ? "primary" : ""} disabled=${checked.length !== 2} onClick=${compare}>
        Compare${checked.length ? ` ${checked.length}/2` : ""}</button>
      <${JsonLink} path="/v1/runs" params=${params} />
    </div>
    ${filterCount > 0 && html`<${ActiveFilters} filters=${filters} />`}
    <div class="columns">
      ${areFiltersOpen && html`<${Facets} filters=${filters} isWaiting=${!list.items && !list.error} />`}
      <div class="list">
        ${query.q && mayRead && html`<${Matches} filters=${filters} />`}
        <${ErrorNote} error=${list.error} retry=${list.reload} />
        ${!list.items && !list.error && html`<${Loading} height="60vh" />`}
        ${list.items && !items.length && (filterCount
          ? html`<${Empty} title="No run fits these filters"><p><button onClick=${noFilters}>Clear the filters</button></p></${Empty}>`
          : html`<${Nothing} />`)}
        ${items.length > 0 && html`<table ref=${table} class="run-table" aria-busy=${list.isLoading}>
          <thead><tr>${HEADS.map(([name, label]) => html`<th key=${label} class=${name}>${label.startsWith("(")
            ? html`<span class="visually-hidden">${label.slice(1, -1)}</span>` : label}</th>`)}</tr></thead>
          <tbody>${items.map(row)}</tbody>
        </table>`}
        ${list.next && html`<${MoreInSight} isBusy=${list.isLoading} onMore=${list.more}>Show more</${MoreInSight}>`}
      </div>
    </div>
  </div>`;
}

/** The class and the name of each column; a name in parentheses is not shown. */
const HEADS = [
  ["tick", "(Compare)"], ["", "Status"], ["", "Run"], ["num", "Started"], ["num", "Duration"], ["num", "Calls"],
  ["num wide-only", "Tokens"], ["num", "Cost"], ["wide-only", "Models"], ["wide-only", "Proof"], ["", "(Actions)"],
];

function ActiveFilters({ filters }) {
  const chip = (name, one, values) => html`<button key=${name + one} class="chip" title="Remove this filter"
    onClick=${() => setQuery({ [name]: values.filter((other) => other !== one) })}>${name}: ${visible(one)} ✕</button>`;
  return html`<div class="chips" aria-label="Active filters">
    ${Object.entries(filters).flatMap(([name, value]) => listOf(value).map((one, _, values) => chip(name, one, values)))}
    <button class="quiet" onClick=${noFilters}>Clear all</button></div>`;
}

/** What a run is like, in a word: [tone, text, explanation]. */
function statusOf(run) {
  const errors = run.marks?.errors;
  if (!run.ended_at) return ["info", "Live", "it goes on"];
  if (errors) return ["bad", errors === 1 ? "1 error" : `${count(errors)} errors`, "exchanges that failed"];
  if (!run.complete) return ["warn", "Incomplete", "something was not recorded, or an answer was cut off"];
  return ["good", "Complete", "everything was recorded, and nothing failed"];
}

const VERDICT_TONES = { right: "good", diverged: "bad" };
const plural = (number, word) => `${count(number)} ${word}${number === 1 ? "" : "s"}`;

function Row({ run, isChosen, isChecked, onToggle, onFocus, onChange, isMenuOpen, onMenuClose }) {
  const [tone, text, explanation] = statusOf(run);
  const open = (event) => !event.target.closest("a, button, input, label, dialog, [role=menu]") && !String(getSelection())
    && navigate(runPath(run.id));
  const verdict = run.marks?.replays[0]?.verdict;
  const labels = Object.entries(run.labels).filter(([name]) => !name.startsWith("playhead."));
  const { input_tokens: input, output_tokens: output } = run.tokens;
  return html`<tr tabindex=${isChosen ? 0 : -1} class=${isChosen ? "is-chosen" : ""} onClick=${open} onFocusIn=${onFocus}>
    <td class="tick"><label><span class="visually-hidden">Compare ${visible(run.name || run.id)}</span>
      <input type="checkbox" checked=${isChecked} onChange=${onToggle} /></label></td>
    <td><${Badge} tone=${tone} title=${explanation}>${text}</${Badge}></td>
    <td class="name"><div><${Link} class="cut" to=${runPath(run.id)} title=${run.id}><bdi>${visible(run.name || run.id)}</bdi></${Link}>
      <span class="notes">
        ${run.pinned && html`<${Badge} title="retention keeps it">Pinned</${Badge}>`}
        ${run.parent && html`<${Badge} title="fork of ${run.parent} after step ${run.forked_at}">Fork</${Badge}>`}
        ${run.gaps > 0 && html`<${Badge} tone="warn" title="what passed and was not recorded">${plural(run.gaps, "gap")}</${Badge}>`}
        ${verdict && html`<${Badge} tone=${VERDICT_TONES[verdict] || ""} title="the newest replay">Replay ${verdict}</${Badge}>`}
      </span>
      <span class="labels">${labels.slice(0, 4).map(([name, value]) => html`<button key=${name} class="chip"
        title="Show runs with ${name}=${value}" onClick=${() => setQuery({ label: `${name}=${value}` })}>${visible(name)}=${visible(value)}</button>`)}
        ${labels.length > 4 && html`<span class="count">+${labels.length - 4}</span>`}</span></div></td>
    <td class="num"><${Time} at=${run.started_at} /></td>
    <td class="num"><${Duration} ms=${run.marks?.duration_ms ?? between(run.started_at, run.active_at)} /></td>
    <td class="num">${count(run.calls)}</td>
    <td class="num wide-only"><${Tokens} value=${input === null && output === null ? null : input + output} /></td>
    <td class="num"><${Money} value=${run.cost_usd ?? run.known_cost_usd} isPartial=${run.unpriced > 0} /></td>
    <td class="wide-only"><div class="cut muted" title=${run.models.join(", ")}>${run.models.map(visible).join(", ") || "–"}</div></td>
    <td class="wide-only"><${ProofMark} proof=${run.marks?.proof} /></td>
    <td class="actions"><${RunActions} run=${run} label="⋯" onChange=${onChange} isOpen=${isMenuOpen} onClose=${onMenuClose} /></td>
  </tr>`;
}

/** The time some hours ago, at a whole minute. */
const hoursAgo = (hours) => new Date(Math.floor(Date.now() / 60_000) * 60_000 - hours * 3_600_000).toISOString().replace(/\.\d+Z/, "Z");

/** Counts take longer than rows: with `isWaiting` they are not asked for yet, so that the rows come first. */
function Facets({ filters, isWaiting }) {
  const { data, error } = useLoad(() => (isWaiting ? null : get("/v1/facets", filters)), [JSON.stringify(filters), isWaiting]);
  const toggle = (name, value) => {
    const before = listOf(filters[name]);
    setQuery({ [name]: before.includes(value) ? before.filter((one) => one !== value) : [...before, value] });
  };
  const check = (name, label) => html`<label class="check"><input type="checkbox" checked=${filters[name] === "true"}
    onChange=${(event) => setQuery({ [name]: event.target.checked ? "true" : null })} /> ${label}</label>`;
  const field = ([name, [label, type, hint]]) => html`<label key=${name} class="field">${label}<${AddressInput} type=${type} min="0" step="any"
    placeholder=${hint} value=${listOf(filters[name])[0] || ""} onCommit=${(text) => setQuery({ [name]: text })} /></label>`;
  return html`<aside class="facets" id="facets" aria-label="Filters">
    <section><h2>Time</h2><${Choice} className="spans" label="Time" options=${SPANS} value=${filters.since ? null : ""}
      onChange=${(hours) => setQuery({ since: hours ? hoursAgo(hours) : null })} /></section>
    <section><h2>State</h2>${check("error", "With errors")}${check("incomplete", "Incomplete")}</section>
    <${ErrorNote} error=${error} />
    ${Object.entries(FACETS).map(([name, label]) => html`<${Facet} key=${name} label=${label} values=${data?.facets[name] || []}
      chosen=${listOf(filters[name])} onToggle=${(value) => toggle(name, value)} />`)}
    <details><summary>More filters</summary>${Object.entries(TEXTS).map(field)}</details>
    ${data && !data.is_complete && html`<p><small>Counts are of the newest ${count(data.runs)} runs that fit.</small></p>`}
  </aside>`;
}

function Facet({ label, values, chosen, onToggle }) {
  const missing = chosen.filter((one) => !values.some((value) => value.value === one));
  const [shown, more] = useMost([...missing.map((value) => ({ value })), ...values], 6, 24);
  return shown.length > 0 && html`<section><h2>${label}</h2>
    ${shown.map(({ value, runs }) => html`<button key=${value} class="facet" aria-pressed=${chosen.includes(value)} title=${value}
      onClick=${() => onToggle(value)}><span class="cut">${visible(value)}</span><span class="count">${runs && count(runs)}</span></button>`)}
    ${more}
  </section>`;
}

function Matches({ filters }) {
  const found = useLoad(() => get("/v1/search", { ...filters, limit: 20 }), [JSON.stringify(filters)]);
  return html`<${Loaded} of=${found} height="120px">${({ items }) => html`
    <section class="matches" aria-label="Where it was said" aria-busy=${found.isLoading}>
      <h2>${items.length === 20 ? "The best 20 places" : plural(items.length, "place")}</h2>
      <ol>${items.map((one, place) => html`<li key=${place}><${Link} to=${callPath(one.run, one.call)}>
        <span class="where">${visible(one.run)} · step ${one.step} · ${visible(one.role)}</span>
        <span> </span><${Snippet} text=${one.snippet} places=${one.highlights} /></${Link}></li>`)}</ol>
    </section>`}</${Loaded}>`;
}

/** A snippet with what was found marked. Places count characters, not UTF-16 units. */
function Snippet({ text, places }) {
  const pieces = useMemo(() => {
    const chars = Array.from(text);
    const ends = [0, ...places.flat(), chars.length];
    return ends.slice(1).map((end, place) => chars.slice(ends[place], end).join(""));
  }, [text]);
  return html`<bdi class="snippet">${pieces.map((part, place) => (place % 2 ? html`<mark key=${place}>${visible(part)}</mark>` : visible(part)))}</bdi>`;
}

function Nothing() {
  const session = useSession();
  const proxy = session?.proxy;
  return html`<${Empty} title="Nothing is recorded yet">
    <div class="first">
      <p>Run your agent under Playhead, on the machine where it runs:</p>
      <${Command} text="playhead record -- python agent.py" />
      <p>Or point a shell at this <code>playhead up</code>, and start the agent there:</p>
      <${Command} text=${'eval "$(playhead env)"'} />
      ${proxy && html`<p>These variables are most of what it sets, with the proxy of this <code>up</code>:</p>
        <${Command} text=${`HTTPS_PROXY=${proxy} SSL_CERT_FILE="$(playhead ca --bundle)" python agent.py`} />`}
      <p class="muted">The store server answers at <code>${location.origin}</code>${session ? `, in mode ${session.mode}` : ""}.
        A run appears here with its first call.</p>
    </div>
  </${Empty}>`;
}
