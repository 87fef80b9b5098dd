// Log in with a token of the API, or with the code in a link of `playhead token --login-url`.
import { html, useEffect, useState } from "../core/html.js";
import { get, post } from "../core/api.js";
import { Command, ErrorNote, JsonLink, Loading } from "../core/parts.js";

/** Where to go on: an address of this page only. What looks like a path may not be one: `/\t/host` leads to another host. */
function nextAddress(next) {
  try {
    const url = new URL(next ?? "/", location.origin);
    if (url.origin === location.origin && url.pathname !== "/login") return url.href;
  } catch {
    // no address, or none at all
  }
  return location.origin;
}

export default function Login({ query }) {
  const [token, setToken] = useState("");
  const [error, setError] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const [code] = useState(() => new URLSearchParams(location.hash.slice(1)).get("code"));
  const logIn = async (body) => {
    setBusy(true);
    setError(null);
    try {
      await post("/v1/session", body);
      location.replace(nextAddress(query.next));
    } catch (problem) {
      setError(problem);
      setBusy(false);
    }
  };
  useEffect(() => {
    if (code) {
      // It is of no use a second time, and need not stay in the history.
      history.replaceState(null, "", location.pathname + location.search);
      logIn({ code });
    } else {
      // A server without tokens needs no login, and a session may be open.
      get("/v1/session").then(() => location.replace(nextAddress(query.next)), () => {});
    }
  }, []);
  if (code && isBusy) return html`<${Loading} />`;
  return html`<section class="login">
    <h1>Log in to this Playhead</h1>
    <form onSubmit=${(event) => { event.preventDefault(); logIn({ token: token.trim() }); }}>
      <label for="token">API token</label>
      <input id="token" type="password" autocomplete="current-password" required autofocus value=${token}
        onInput=${(event) => setToken(event.target.value)} aria-describedby="token-help" />
      <${ErrorNote} error=${error} />
      <button class="primary" disabled=${isBusy || !token.trim()}>Log in</button>
    </form>
    <div id="token-help" class="muted"><p>On the machine where Playhead runs, this prints a link that logs you in once:</p>
    <${Command} text="playhead token --login-url" />
    <p>This prints the token itself, and <code>playhead token create</code> makes one that allows less:</p>
    <${Command} text="playhead token" /></div>
    <p class="muted">The browser gets a session cookie for 12 hours, not the token. <${JsonLink} path="/v1/session" /></p>
  </section>`;
}
