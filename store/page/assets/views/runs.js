// The list of runs.
import { html } from "../core/html.js";
import { get } from "../core/api.js";
import { Link } from "../core/router.js";
import { ErrorNote, JsonLink, Loading, useLoad } from "../core/parts.js";

export default function Runs({ query }) {
  const { data, error } = useLoad(() => get("/v1/runs", { limit: 50 }), [JSON.stringify(query)]);
  if (error) return html`<${ErrorNote} error=${error} />`;
  if (!data) return html`<${Loading} />`;
  return html`<h1>Runs</h1><${JsonLink} path="/v1/runs" /><ul>${data.items.map((run) => html`<li key=${run.id}><${Link} to="/runs/${encodeURIComponent(run.id)}">${run.name || run.id}</${Link}></li>`)}</ul>`;
}
