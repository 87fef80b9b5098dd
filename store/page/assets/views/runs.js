// The list of runs: filters with counts, search, what is new, two runs to compare.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { events, get } from "../core/api.js";
import { Link, listOf, navigate, setQuery } from "../core/router.js";
import { between, count, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { AddressInput, Badge, canReadBodies, Command, Duration, Empty, ErrorNote, JsonLink, Loading, Money, Time, Tokens, useLoad, useSession } from "../core/parts.js";
import { RunActions, setPinned } from "./actions.js";

const FACETS = [["model", "Model"], ["label", "Label"], ["tool", "Tool"], ["status", "HTTP status"], ["provider", "Provider"], ["actor", "Agent"], ["host", "Host"], ["kind", "Kind"]];
const MULTIPLE = FACETS.map(([name]) => name);
const TEXTS = [["min_cost", "Cost from, $", "number"], ["min_duration", "Duration from, ms", "number"], ["until", "Until", "text", "2026-11-25T12:00:00Z"], ["parent", "Forks of run", "text"], ["dialect", "Dialect", "text"], ["operation", "Operation", "text"], ["key", "Key", "text", "sha256:…"]];
const FILTERS = [...MULTIPLE, ...TEXTS.map(([name]) => name), "since", "error", "incomplete", "q"];
const OF_EVENTS = ["label", "model", "provider", "tool", "host", "status", "kind", "dialect", "operation", "actor", "min_cost", "min_duration", "error"];
const SORTS = [["", "Newest first"], ["cost", "Most expensive"], ["duration", "Longest"], ["tokens", "Most tokens"]];
const SPANS = [["", "Any"], ["1", "1 h"], ["24", "24 h"], ["168", "7 d"], ["720", "30 d"]];
const PAGE = 50;

const pick = (query, names) => Object.fromEntries(names.filter((name) => query[name] !== undefined).map((name) => [name, query[name]]));
const runPath = (run) => `/runs/${encodeURIComponent(run.id)}`;

/** The runs of a list with filters, page by page, each with its marks. */
function useRuns(params) {
  const key = JSON.stringify(params);
  const [state, setState] = useState({ items: null, next: null, error: null, isLoading: true });
  const turn = useRef(0);
  const load = async (cursor) => {
    const mine = ++turn.current;
    setState((before) => ({ ...before, isLoading: true }));
    try {
      const page = await get("/v1/runs", { ...params, limit: PAGE, cursor });
      if (mine !== turn.current) return;
      setState((before) => ({ items: cursor ? [...before.items, ...page.items] : page.items, next: page.next, error: null, isLoading: false }));
      await mark(page.items.map((run) => run.id));
    } catch (error) {
      if (mine === turn.current) setState((before) => ({ ...before, error, isLoading: false }));
    }
  };
  const mark = async (ids) => {
    if (!ids.length) return;
    const marks = new Map((await get("/v1/marks", { run: ids })).items.map((one) => [one.run, one]));
    setState((before) => ({ ...before, items: before.items && before.items.map((run) => (marks.has(run.id) ? { ...run, marks: marks.get(run.id) } : run)) }));
  };
  useEffect(() => { load(null); }, [key]);
  /** Put runs as they are now in the place of those that are shown; one that is null is gone. */
  const replace = (id, run) => setState((before) => ({
    ...before, items: before.items && before.items.flatMap((one) => (one.id !== id ? [one] : run ? [{ ...one, ...run }] : [])),
  }));
  const refresh = async (ids) => {
    await Promise.all(ids.map((id) => get(`/v1/runs/${encodeURIComponent(id)}`).then((run) => replace(id, run), (error) => error.status === 404 && replace(id, null))));
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
  const changed = useRef(new Set());
  const key = JSON.stringify(pick(query, OF_EVENTS));
  useEffect(() => {
    setFresh(new Set());
    let timer = 0;
    const flush = () => {
      timer = 0;
      const ids = [...changed.current].slice(0, 10);
      for (const id of ids) changed.current.delete(id);
      current.current.refresh(ids).catch(() => {});
      if (changed.current.size) timer = setTimeout(flush, 1000);
    };
    const stop = events(pick(query, OF_EVENTS), (name, data) => {
      if (!data.run || name === "drift" || name === "replay") return;
      if (name === "run.deleted") {
        changed.current.delete(data.run);
        current.current.replace(data.run, null);
      } else if (current.current.items?.some((run) => run.id === data.run)) {
        changed.current.add(data.run);
        timer ||= setTimeout(flush, 700);
      } else if (current.current.items) {
        setFresh((before) => (before.has(data.run) ? before : new Set(before).add(data.run)));
      }
    }, setState);
    return () => { stop(); clearTimeout(timer); };
  }, [key]);
  return { fresh, state, clear: () => setFresh(new Set()) };
}

export default function Runs({ query }) {
  const filters = pick(query, FILTERS);
  const params = { ...filters, ...pick(query, ["sort", "order"]) };
  const list = useRuns(params);
  const news = useNews(query, list);
  const [place, setPlace] = useState(-1);
  const [checked, setChecked] = useState([]);
  const [menuOf, setMenuOf] = useState(null);
  const [areFiltersOpen, setFiltersOpen] = useState(() => innerWidth > 900);
  // In the state, because drawing the list anew would otherwise put the address's words over what is being typed.
  const [words, setWords] = useState(query.q || "");
  useEffect(() => setWords(query.q || ""), [query.q]);
  const search = useRef(null);
  const table = useRef(null);
  const session = useSession();
  const items = list.items || [];
  const hasFilters = Object.keys(filters).length > 0;
  const select = (next) => {
    if (!items.length) return;
    const at = Math.max(0, Math.min(items.length - 1, next));
    setPlace(at);
    const row = table.current?.querySelectorAll("tbody tr")[at];
    row?.focus();
    row?.scrollIntoView({ block: "nearest" });
    if (at >= items.length - 3 && list.next && !list.isLoading) list.more();
  };
  const toggle = (id) => setChecked((before) => (before.includes(id) ? before.filter((one) => one !== id) : [...before, id].slice(-2)));
  const compare = () => checked.length === 2 && navigate(`/diff/${encodeURIComponent(checked[0])}/${encodeURIComponent(checked[1])}`);
  const showNew = () => { news.clear(); list.reload(); window.scrollTo(0, 0); };
  const chosen = items[place];
  useKeys({
    j: { label: "next run", run: () => select(place + 1) }, ArrowDown: () => select(place + 1),
    k: { label: "previous run", run: () => select(place - 1) }, ArrowUp: () => select(place - 1),
    Enter: { label: "open the run", run: () => chosen && navigate(runPath(chosen)) },
    Escape: { label: "back: clear the selection", run: () => { setPlace(-1); setChecked([]); document.activeElement?.blur?.(); } },
    "/": { label: "search", run: () => search.current?.focus() },
    f: { label: "filters", run: () => { setFiltersOpen(true); setTimeout(() => document.querySelector(".facets button, .facets input")?.focus()); } },
    c: { label: "actions of the run", run: () => chosen && setMenuOf(chosen.id) },
    d: { label: "mark for comparison; with two marked, compare", run: () => (checked.length === 2 ? compare() : chosen && toggle(chosen.id)) },
    p: { label: "pin or unpin", run: () => chosen && setPinned(chosen, !chosen.pinned).then((run) => list.replace(run.id, run), () => {}) },
    n: { label: "show new runs", run: showNew },
  });
  useEffect(() => setPlace(-1), [JSON.stringify(params)]);
  const change = (id) => (run) => list.replace(id, run);
  return html`<div class="runs ${areFiltersOpen ? "has-facets" : ""}">
    <div class="bar">
      <h1>Runs</h1>
      <button class="quiet" aria-expanded=${areFiltersOpen ? "true" : "false"} aria-controls="facets" onClick=${() => setFiltersOpen(!areFiltersOpen)}>Filters${hasFilters ? ` (${Object.keys(filters).length})` : ""}</button>
      <form role="search" class="search" onSubmit=${(event) => { event.preventDefault(); setQuery({ q: words.trim() || null }); }}>
        <input ref=${search} type="search" aria-label="Search prompts, answers and tools" placeholder=${canReadBodies(session) ? "Search what was said   /" : "Search needs the scope bodies:read"} disabled=${!canReadBodies(session)} value=${words} onInput=${(event) => setWords(event.target.value)}
          onSearch=${(event) => !event.target.value && query.q && setQuery({ q: null })} />
      </form>
      <span class="grow"></span>
      ${news.fresh.size > 0 && html`<button class="pill" onClick=${showNew}>${count(news.fresh.size)} new</button>`}
      <span class="live ${news.state}" role="status">${{ live: "Live", waiting: "Connecting", closed: "Not live" }[news.state]}</span>
      <label class="visually-hidden" for="sort">Sort</label>
      <select id="sort" value=${query.sort && query.sort !== "time" ? query.sort : ""} onChange=${(event) => setQuery({ sort: event.target.value || null, order: null })}>${SORTS.map(([value, label]) => html`<option key=${value} value=${value}>${label}</option>`)}</select>
      <button class=${checked.length === 2 ? "primary" : ""} disabled=${checked.length !== 2} onClick=${compare}>Compare${checked.length ? ` ${checked.length}/2` : ""}</button>
      <${JsonLink} path="/v1/runs" params=${params} />
    </div>
    ${hasFilters && html`<div class="chips" aria-label="Active filters">${Object.entries(filters).flatMap(([name, value]) => listOf(value).map((one) => html`<button key=${`${name}${one}`} class="chip" title="Remove this filter" aria-label="Remove filter ${name} ${one}" onClick=${() => setQuery({ [name]: listOf(value).filter((other) => other !== one) })}>${name}: ${visible(one)} ✕</button>`))}<button class="quiet" onClick=${() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear all</button></div>`}
    <div class="columns">
      ${areFiltersOpen && html`<${Facets} filters=${filters} />`}
      <div class="list">
        ${query.q && canReadBodies(session) && html`<${Matches} filters=${filters} />`}
        ${list.error && html`<${ErrorNote} error=${list.error} retry=${list.reload} />`}
        ${!list.items && !list.error && html`<${Loading} height="60vh" />`}
        ${list.items && !items.length && (hasFilters ? html`<${Empty} title="No run fits these filters"><p><button onClick=${() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}>Clear the filters</button></p></${Empty}>` : html`<${Nothing} />`)}
        ${items.length > 0 && html`<table ref=${table} class="run-table" aria-busy=${list.isLoading ? "true" : "false"}>
          <thead><tr><th class="tick"><span class="visually-hidden">Compare</span></th><th>Status</th><th>Run</th><th class="num">Started</th><th class="num">Duration</th><th class="num">Calls</th><th class="num wide-only">Tokens</th><th class="num">Cost</th><th class="wide-only">Models</th><th><span class="visually-hidden">Actions</span></th></tr></thead>
          <tbody>${items.map((run, at) => html`<${Row} key=${run.id} run=${run} isChosen=${at === place} isChecked=${checked.includes(run.id)} onToggle=${() => toggle(run.id)} onFocus=${() => setPlace(at)} onChange=${change(run.id)} isMenuOpen=${menuOf === run.id} onMenuClose=${() => setMenuOf(null)} />`)}</tbody>
        </table>`}
        ${list.next && html`<${More} isLoading=${list.isLoading} onMore=${list.more} />`}
      </div>
    </div>
  </div>`;
}

/** What a run is like, in a word: [tone, text, explanation]. */
export function statusOf(run) {
  const errors = run.marks?.errors;
  if (!run.ended_at) return ["info", "Live", "it goes on"];
  if (errors) return ["bad", errors === 1 ? "1 error" : `${count(errors)} errors`, "exchanges that failed"];
  if (!run.complete) return ["warn", "Incomplete", "something was not recorded, or an answer was cut off"];
  return ["good", "Complete", "everything was recorded, and nothing failed"];
}

const VERDICT_TONES = { right: "good", diverged: "bad" };
const sum = (...values) => (values.every((value) => value === null || value === undefined) ? null : values.reduce((total, value) => total + (value || 0), 0));

function Row({ run, isChosen, isChecked, onToggle, onFocus, onChange, isMenuOpen, onMenuClose }) {
  const [tone, text, explanation] = statusOf(run);
  const open = (event) => !event.target.closest("a, button, input, label, dialog, [role=menu]") && !String(getSelection()) && navigate(runPath(run));
  const verdict = run.marks?.replays[0]?.verdict;
  const labels = Object.entries(run.labels);
  return html`<tr tabindex=${isChosen ? 0 : -1} class=${isChosen ? "is-chosen" : ""} onClick=${open} onFocusIn=${onFocus}>
    <td class="tick"><label><span class="visually-hidden">Compare ${run.name || run.id}</span><input type="checkbox" checked=${isChecked} onChange=${onToggle} /></label></td>
    <td><${Badge} tone=${tone} title=${explanation}>${text}</${Badge}></td>
    <td class="name"><div><${Link} class="cut" to=${runPath(run)} title=${run.id}><bdi>${visible(run.name || run.id)}</bdi></${Link}>
      <span class="notes">${run.pinned && html`<${Badge} title="retention keeps it">Pinned</${Badge}>`}${run.parent && html`<${Badge} title="fork of ${run.parent} after step ${run.forked_at}">Fork</${Badge}>`}${run.gaps > 0 && html`<${Badge} tone="warn" title="what passed and was not recorded">${run.gaps === 1 ? "1 gap" : `${count(run.gaps)} gaps`}</${Badge}>`}${verdict && html`<${Badge} tone=${VERDICT_TONES[verdict] || ""} title="the newest replay">Replay ${verdict}</${Badge}>`}</span>
      <span class="labels">${labels.slice(0, 4).map(([name, value]) => html`<button key=${name} class="chip" title="Show runs with ${name}=${value}" onClick=${() => setQuery({ label: `${name}=${value}` })}>${visible(name)}=${visible(value)}</button>`)}${labels.length > 4 && html`<span class="count">+${labels.length - 4}</span>`}</span></div></td>
    <td class="num"><${Time} at=${run.started_at} /></td>
    <td class="num"><${Duration} ms=${run.marks?.duration_ms ?? between(run.started_at, run.active_at)} /></td>
    <td class="num">${count(run.calls)}</td>
    <td class="num wide-only"><${Tokens} value=${sum(run.tokens.input_tokens, run.tokens.output_tokens)} /></td>
    <td class="num"><${Money} value=${run.cost_usd ?? run.known_cost_usd} isPartial=${run.unpriced > 0} /></td>
    <td class="wide-only"><div class="cut models" title=${run.models.join(", ")}>${run.models.map(visible).join(", ") || "–"}</div></td>
    <td class="actions"><${RunActions} run=${run} label="⋯" onChange=${onChange} isOpen=${isMenuOpen} onClose=${onMenuClose} /></td>
  </tr>`;
}

/** Loads the next page when it comes into sight. */
function More({ isLoading, onMore }) {
  const root = useRef(null);
  const run = useRef(onMore);
  run.current = onMore;
  useEffect(() => {
    if (isLoading) return undefined;
    const observer = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && run.current(), { rootMargin: "600px" });
    observer.observe(root.current);
    return () => observer.disconnect();
  }, [isLoading]);
  return html`<div class="more-rows" ref=${root}><button disabled=${isLoading} onClick=${onMore}>${isLoading ? "Loading…" : "Show more"}</button></div>`;
}

function Facets({ filters }) {
  const { data, error } = useLoad(() => get("/v1/facets", filters), [JSON.stringify(filters)]);
  const toggle = (name, value) => {
    const before = listOf(filters[name]);
    setQuery({ [name]: before.includes(value) ? before.filter((one) => one !== value) : [...before, value] });
  };
  const span = (hours) => setQuery({ since: hours ? new Date(Math.floor(Date.now() / 60_000) * 60_000 - hours * 3_600_000).toISOString().replace(/\.\d+Z/, "Z") : null });
  return html`<aside class="facets" id="facets" aria-label="Filters">
    <section><h2>Time</h2><div class="spans">${SPANS.map(([hours, label]) => html`<button key=${hours} class="quiet" aria-pressed=${!hours && !filters.since ? "true" : "false"} onClick=${() => span(Number(hours))}>${label}</button>`)}</div></section>
    <section><h2>State</h2>
      <label class="check"><input type="checkbox" checked=${filters.error === "true"} onChange=${(event) => setQuery({ error: event.target.checked ? "true" : null })} /> With errors</label>
      <label class="check"><input type="checkbox" checked=${filters.incomplete === "true"} onChange=${(event) => setQuery({ incomplete: event.target.checked ? "true" : null })} /> Incomplete</label></section>
    ${error && html`<${ErrorNote} error=${error} />`}
    ${FACETS.map(([name, label]) => html`<${Facet} key=${name} label=${label} values=${data?.facets[name] || []} chosen=${listOf(filters[name])} onToggle=${(value) => toggle(name, value)} />`)}
    <details><summary>More filters</summary>${TEXTS.map(([name, label, type, hint]) => html`<label key=${name} class="field">${label}<${AddressInput} type=${type} min="0" step="any" placeholder=${hint} value=${listOf(filters[name])[0] || ""} onCommit=${(text) => setQuery({ [name]: text })} /></label>`)}</details>
    ${data && !data.is_complete && html`<p><small>Counts are of the newest ${count(data.runs)} runs that fit.</small></p>`}
  </aside>`;
}

function Facet({ label, values, chosen, onToggle }) {
  const [isWhole, setWhole] = useState(false);
  const all = [...values, ...chosen.filter((one) => !values.some((value) => value.value === one)).map((value) => ({ value, runs: null }))];
  if (!all.length) return null;
  const shown = isWhole ? all : all.filter((one, place) => place < 6 || chosen.includes(one.value));
  return html`<section><h2>${label}</h2>
    ${shown.map((one) => html`<button key=${one.value} class="facet" aria-pressed=${chosen.includes(one.value) ? "true" : "false"} onClick=${() => onToggle(one.value)} title=${one.value}><span class="cut">${visible(one.value)}</span><span class="count">${one.runs === null ? "" : count(one.runs)}</span></button>`)}
    ${all.length > shown.length && html`<button class="quiet" onClick=${() => setWhole(true)}>${all.length - shown.length} more</button>`}
  </section>`;
}

function Matches({ filters }) {
  const { data, error, isLoading } = useLoad(() => get("/v1/search", { ...filters, limit: 20 }), [JSON.stringify(filters)]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} height="120px" />`;
  return html`<section class="matches" aria-label="Where it was said" aria-busy=${isLoading ? "true" : "false"}>
    <h2>${data.items.length === 20 ? "The best 20 places" : data.items.length === 1 ? "1 place" : `${data.items.length} places`}</h2>
    <ol>${data.items.map((one, place) => html`<li key=${place}><${Link} to=${`/runs/${encodeURIComponent(one.run)}/calls/${one.call}`}><span class="where">${visible(one.run)} · step ${one.step} · ${visible(one.role)}</span> <${Snippet} text=${one.snippet} places=${one.highlights} /></${Link}></li>`)}</ol>
  </section>`;
}

/** A snippet with what was found marked. Places count characters, not UTF-16 units. */
function Snippet({ text, places }) {
  const pieces = useMemo(() => {
    const chars = Array.from(text);
    const parts = [];
    let at = 0;
    for (const [start, end] of places) {
      parts.push([false, chars.slice(at, start).join("")], [true, chars.slice(start, end).join("")]);
      at = end;
    }
    return [...parts, [false, chars.slice(at).join("")]];
  }, [text]);
  return html`<bdi class="snippet">${pieces.map(([isFound, part], place) => (isFound ? html`<mark key=${place}>${visible(part)}</mark>` : visible(part)))}</bdi>`;
}

function Nothing() {
  const session = useSession();
  return html`<${Empty} title="Nothing is recorded yet">
    <div class="first">
      <p>Run your agent under Playhead, on the machine where it runs:</p>
      <${Command} text="playhead record -- python agent.py" />
      <p>Or point a shell at this store server's proxy, and start the agent there:</p>
      <${Command} text=${'eval "$(playhead env)"'} />
      <p class="muted">This store server answers at <code>${location.origin}</code>${session ? `, in mode ${session.mode}` : ""}. A run appears here with its first call.</p>
    </div>
  </${Empty}>`;
}
