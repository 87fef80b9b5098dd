// The frame of the page: header, the view of the address, help, themes.
import { html, render, useEffect, useErrorBoundary, useState } from "./core/html.js";
import { get, isOffline, leftOut, del, unreachable } from "./core/api.js";
import { Link, navigate, useLocation } from "./core/router.js";
import { activeKeys, useKeys } from "./core/keys.js";
import { Dialog, ErrorNote, Loading, setSession, useSession } from "./core/parts.js";

/** Pattern of the path, view, names in the path, title.
 * @type {[RegExp, () => Promise<{ default: any }>, string[], string][]} */
const ROUTES = [
  [/^\/$/, () => import("./views/runs.js"), [], "Runs"],
  [/^\/runs\/([^/]+)$/, () => import("./views/run.js"), ["run"], "Run"],
  [/^\/runs\/([^/]+)\/calls\/([^/]+)$/, () => import("./views/call.js"), ["run", "call"], "Call"],
  [/^\/diff\/([^/]+)\/([^/]+)$/, () => import("./views/diff.js"), ["a", "b"], "Diff"],
  [/^\/misses\/([^/]+)$/, () => import("./views/miss.js"), ["replay"], "Misses"],
  [/^\/costs$/, () => import("./views/costs.js"), [], "Costs"],
  [/^\/drift$/, () => import("./views/drift.js"), [], "Drift"],
  [/^\/login$/, () => import("./views/login.js"), [], "Log in"],
];

function routeOf(path) {
  for (const [pattern, load, names, title] of ROUTES) {
    const found = pattern.exec(path);
    if (found) return { load, title, params: Object.fromEntries(names.map((name, place) => [name, decodeURIComponent(found[place + 1])])) };
  }
  return null;
}

function View({ path, query }) {
  const [loaded, setLoaded] = useState(null);
  const [fault, resetFault] = useErrorBoundary((error) => console.error(error));
  const route = routeOf(path);
  useEffect(() => {
    let isCurrent = true;
    resetFault();
    if (!route) return;
    document.title = [...Object.values(route.params).slice(0, 2), route.title, "Playhead"].join(" · ");
    route.load().then(
      (module) => isCurrent && setLoaded({ component: module.default, path }),
      // Browsers say it in words of their own, with the address of a script.
      (error) => isCurrent && setLoaded({ error: error instanceof TypeError ? unreachable() : error, path }),
    );
    return () => { isCurrent = false; };
  }, [path]);
  // A browser asks for a module once: if that failed, only a new document asks again, and also for the files of a new version.
  const reloadPage = () => get("/v1/session").then(() => location.reload(), (error) => setLoaded({ error, path }));
  if (isOffline && path === "/") return html`<${Loading} />`;
  if (!route) return html`<${ErrorNote} error=${new Error("There is no such page.")} as="h1" />`;
  if (fault) return html`<${ErrorNote} error=${fault} as="h1" />`;
  if (loaded?.path !== path) return html`<${Loading} />`;
  if (loaded.error) return html`<${ErrorNote} error=${loaded.error} retry=${reloadPage} as="h1" />`;
  return html`<${loaded.component} key=${path} params=${route.params} query=${query} />`;
}

const THEMES = ["system", "light", "dark"];

function useTheme() {
  const [theme, setTheme] = useState(document.documentElement.dataset.theme || "system");
  const next = () => {
    const chosen = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    if (chosen === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = chosen;
    try {
      localStorage.setItem("playhead.theme", chosen);
    } catch {
      // storage is forbidden: the theme holds for this page
    }
    setTheme(chosen);
  };
  return [theme, next];
}

function Help({ onClose }) {
  return html`<${Dialog} title="Keys" onClose=${onClose}>
    <dl class="keys">${activeKeys().map(([key, label]) => html`<div key=${key}><dt><kbd>${KEY_NAMES[key] || key}</kbd></dt><dd>${label}</dd></div>`)}</dl>
  </${Dialog}>`;
}
const KEY_NAMES = { Escape: "Esc" };

function App() {
  const { path, query } = useLocation();
  const [theme, nextTheme] = useTheme();
  const [isHelpOpen, setHelpOpen] = useState(false);
  const session = useSession();
  useEffect(() => {
    // A file has one run, and no list.
    if (isOffline && path === "/") get("/v1/runs").then(({ items }) => navigate(`/runs/${encodeURIComponent(items[0].id)}`, {}, { replace: true }));
  }, [path]);
  useEffect(() => {
    if (!isOffline && path !== "/login") get("/v1/session").then(setSession, () => {});
  }, [path === "/login"]);
  useKeys({
    "?": { label: "this help", run: () => setHelpOpen(true) },
    t: { label: "light, dark or the system's theme", run: nextTheme },
    ...(isOffline ? {} : {
      "g l": { label: "go to the list of runs", run: () => navigate("/") },
      "g c": { label: "go to costs", run: () => navigate("/costs") },
      "g d": { label: "go to drift", run: () => navigate("/drift") },
    }),
  });
  const tab = (to, label) => html`<${Link} to=${to} aria-current=${path === to ? "page" : undefined}>${label}</${Link}>`;
  const logOut = () => del("/v1/session").finally(() => location.assign("/login"));
  return html`
    <a class="skip" href="#main">Skip to the content</a>
    <header class="top">
      <${Link} to="/" class="brand" aria-label="Playhead, all runs"><svg viewBox="0 0 16 16" width="18" height="18" aria-hidden="true"><rect class="logo" width="16"
        height="16" rx="4" /><path class="logo-mark" d="M5 4v8l6-4z" /><path class="logo-line" d="M12 4v8" /></svg><span>Playhead</span></${Link}>
      ${!isOffline && html`<nav aria-label="Pages">${tab("/", "Runs")}${tab("/costs", "Costs")}${tab("/drift", "Drift")}</nav>`}
      ${isOffline && html`<span class="chip"
        title=${leftOut ? "Bodies that are too large are left out and named." : "All that was recorded is in this file."}>
        a file${leftOut ? `, ${leftOut} left out` : ""}</span>`}
      <span class="grow"></span>
      ${session?.project && session.project !== "default" && html`<span class="chip" title="project">${session.project}</span>`}
      <button class="quiet" onClick=${nextTheme} title="Theme: ${theme} (t)"><span class="wide">Theme: </span>${theme}</button>
      <button class="quiet" onClick=${() => setHelpOpen(true)} title="Keys (?)" aria-label="Keys">?</button>
      ${session?.has_cookie && html`<button class="quiet" onClick=${logOut} title="Token: ${session.token}">Log out</button>`}
    </header>
    <main id="main" tabindex="-1"><${View} path=${path} query=${query} /></main>
    ${isHelpOpen && html`<${Help} onClose=${() => setHelpOpen(false)} />`}`;
}

const place = document.getElementById("app");
place.replaceChildren();
render(html`<${App} />`, place);
