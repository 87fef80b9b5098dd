// The REST API. All paths begin with `/v1/`.
//
//   await get("/v1/runs", {limit: 50, model: ["a", "b"]})   JSON; a value of null, undefined or "" is left out
//   await post(path, body, params)                          likewise put, patch; del(path, params)
//   const stop = events({run: "r"}, (name, data, id) => …)  everything that is stored from now on, with resume
//
// What goes wrong is thrown as a `Problem`. The project is that of the address, unless `params` has one.

/** An error of the API (RFC 9457), or of the connection. */
export class Problem extends Error {
  constructor(document) {
    super(document.detail || document.title || "the request failed");
    this.status = document.status ?? 0;
    this.type = (document.type || "").replace("urn:playhead:problem:", "");
    this.document = document;
  }
}

/** That the store server does not answer at all. */
export const unreachable = () => new Problem({ detail: "The store server does not answer. Check that `playhead up` runs." });

const embedded = (() => {
  const element = document.getElementById("document");
  return element ? JSON.parse(element.textContent) : null;
})();

/** Whether the page shows a file and has no server. */
export const isOffline = embedded !== null;

/** The path with its query. Lists are repeated parameters. */
export function address(path, params = {}) {
  const query = new URLSearchParams();
  const project = embedded ? null : new URLSearchParams(location.search).get("project");
  for (const [name, value] of Object.entries(project ? { project, ...params } : params)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "") query.append(name, one);
    }
  }
  const text = query.toString();
  return text ? `${path}${path.includes("?") ? "&" : "?"}${text}` : path;
}

export function get(path, params, options) {
  if (embedded && embedded["*"] !== "fetch") return embeddedAnswer(path, params, options);
  return send("GET", path, undefined, params, options);
}

export const post = (path, body, params) => send("POST", path, body, params);
export const put = (path, body, params) => send("PUT", path, body, params);
export const patch = (path, body, params) => send("PATCH", path, body, params);
export const del = (path, params) => send("DELETE", path, undefined, params);

async function embeddedAnswer(path, params, { as = "json" } = {}) {
  // A document answers by the whole address, or by the path alone.
  const key = [address(path, params), path].find((one) => Object.hasOwn(embedded, one));
  const found = key === undefined ? null : embedded[key];
  if (found?.problem) throw new Problem(found.problem);
  if (found === null) {
    const size = embedded["left-out"]?.[address(path, params)] ?? embedded["left-out"]?.[path];
    const why = size ? `it was left out, because it has ${(size / 1024).toFixed(0)} KB` : "it is not in this file";
    const detail = `${path}: ${why}. Open the run on its store server, or export it as a bundle.`;
    throw new Problem({ status: 404, title: "Not in this file", type: "not_in_file", detail });
  }
  if (as === "bytes") return { bytes: Uint8Array.from(atob(found.base64), (char) => char.charCodeAt(0)), headers: new Headers() };
  return as === "text" ? JSON.stringify(found) : found;
}

/** How many documents a file leaves out. */
export const leftOut = Object.keys(embedded?.["left-out"] ?? {}).length;

/** The answer for which `core/theme.js` has asked, once. A view that begins with other requests leaves it alone. */
function takeEarly(where) {
  const { early } = window;
  if (early?.path !== where) return null;
  delete window.early;
  return early.answer;
}

async function send(method, path, body, params, { signal = undefined, as = "json", range = null } = {}) {
  /** @type {Record<string, string>} */
  const headers = { "playhead-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  if (range) headers.range = range;
  const where = address(path, params);
  const early = method === "GET" ? takeEarly(where) : null;
  /** @type {Response} */
  let answer;
  try {
    answer = await (early ?? fetch(where, {
      method, headers, signal,
      body: body === undefined ? undefined : JSON.stringify(body),
    }));
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw unreachable();
  }
  // Not logged in, or no longer: the session expired, ended in another tab or with the store server.
  if (answer.status === 401 && !embedded && location.pathname !== "/login") location.replace(`/login?next=${encodeURIComponent(location.href)}`);
  if (!answer.ok) throw new Problem(await problemOf(answer));
  if (answer.status === 204) return null;
  if (as === "bytes") return { bytes: new Uint8Array(await answer.arrayBuffer()), headers: answer.headers };
  return as === "text" ? answer.text() : answer.json();
}

async function problemOf(answer) {
  try {
    return await answer.json();
  } catch {
    return { status: answer.status, detail: `The server answered ${answer.status} ${answer.statusText}.` };
  }
}

const NAMES = ["run.began", "run.ended", "run.changed", "run.deleted", "call", "gap", "replay", "drift", "reset"];

/**
 * Call `onEvent(name, data, id)` for each event until the returned function is called. While the tab is hidden, the stream is
 * closed: a browser has six connections to a host. It goes on after the last event when the tab is shown again.
 *
 * @param {(state: string) => void} onState
 */
export function events(params, onEvent, onState = () => {}) {
  if (embedded) return () => {};
  let source = null;
  let last = null;
  let timer = 0;
  const open = () => {
    source = new EventSource(address("/v1/events", last ? { ...params, last_event_id: last } : params));
    for (const name of NAMES) {
      source.addEventListener(name, (event) => {
        last = event.lastEventId || last;
        onEvent(name, JSON.parse(event.data), event.lastEventId);
      });
    }
    source.onopen = () => onState("live");
    source.onerror = () => {
      const isClosed = source?.readyState === EventSource.CLOSED;
      onState(isClosed ? "closed" : "waiting");
      // The browser itself tries again only if there was no answer at all.
      if (isClosed) timer = setTimeout(open, 5000);
    };
  };
  const close = () => {
    clearTimeout(timer);
    source?.close();
    source = null;
  };
  const onVisibility = () => {
    if (document.hidden) close();
    else if (!source) open();
  };
  document.addEventListener("visibilitychange", onVisibility);
  if (!document.hidden) open();
  return () => {
    document.removeEventListener("visibilitychange", onVisibility);
    close();
  };
}
