// What can be done with a run: a menu, in the list and on the page of the run. `<${RunActions} run=${run} onChange=${…} />`, where
// `run` is as in `/v1/runs/{run}`; `onChange(change)` gets the run as it is now, or null once it is deleted.
import { html, useState } from "../core/html.js";
import { address, get, isOffline, patch, post, del } from "../core/api.js";
import { navigate } from "../core/router.js";
import { count, exactTime, visible } from "../core/format.js";
import { allows, Badge, Command, Dialog, ErrorNote, Loading, Menu, Time, useLoad, useSession } from "../core/parts.js";

const pathOf = (run) => `/v1/runs/${encodeURIComponent(run.id)}`;
const quote = (text) => (/^[\w.:@-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const setPinned = (run, pinned) => patch(pathOf(run), { pinned });

export function RunActions({ run, onChange = () => {}, label = "Actions", isOpen, onClose }) {
  const [dialog, setDialog] = useState(null);
  const [error, setError] = useState(null);
  const session = useSession();
  if (isOffline) return null;
  const may = { write: allows(session, "runs:write"), read: allows(session, "bodies:read"), replay: allows(session, "replay"), admin: allows(session, "admin") };
  const attempt = async (work) => {
    try {
      onChange(await work());
    } catch (problem) {
      setError(problem);
    }
  };
  const open = (name) => () => setDialog(name);
  const items = [
    { label: run.pinned ? "Unpin" : "Pin", note: run.pinned ? "retention may remove it again" : "retention keeps it", isDisabled: !may.write, run: () => attempt(() => setPinned(run, !run.pinned)) },
    { label: "Name and labels…", isDisabled: !may.write, run: open("labels") },
    { label: "End", note: run.ended_at ? "it has ended" : "nothing more is expected of it", isDisabled: !may.write || Boolean(run.ended_at), run: () => attempt(() => patch(pathOf(run), { ended: true })) },
    null,
    { label: "Verify…", note: "is it as it was recorded?", run: open("verify") },
    { label: "Replay reports…", isDisabled: !may.read && !may.replay, run: open("replays") },
    { label: "Fork…", note: "go on differently from a step", isDisabled: !may.replay, run: open("fork") },
    { label: "Export…", isDisabled: !may.read, run: open("export") },
    null,
    { label: "Delete…", isDangerous: true, isDisabled: !may.admin, run: open("delete") },
  ];
  const close = () => setDialog(null);
  const show = { labels: Labels, verify: Verify, replays: Replays, fork: Fork, export: Export, delete: Delete }[dialog];
  return html`<${Menu} label=${label} title="Actions for ${run.name || run.id}" items=${items} isOpen=${isOpen} onClose=${onClose} />
    ${show && html`<${show} run=${run} onClose=${close} onChange=${onChange} />`}
    ${error && html`<${Dialog} title="This did not work" onClose=${() => setError(null)}><${ErrorNote} error=${error} /></${Dialog}>`}`;
}

function Labels({ run, onClose, onChange }) {
  const [name, setName] = useState(run.name || "");
  const [pairs, setPairs] = useState([...Object.entries(run.labels), ["", ""]]);
  const [error, setError] = useState(null);
  const change = (place, part, value) => {
    const next = pairs.map((pair, at) => (at === place ? (part ? [pair[0], value] : [value, pair[1]]) : pair));
    setPairs(next[next.length - 1][0] ? [...next, ["", ""]] : next);
  };
  const save = async (event) => {
    event.preventDefault();
    const labels = Object.create(null);
    for (const old of Object.keys(run.labels)) labels[old] = null;
    for (const [key, value] of pairs) if (key.trim()) labels[key.trim()] = value;
    try {
      onChange(await patch(pathOf(run), { ...(name ? { name } : {}), labels: { ...labels } }));
      onClose();
    } catch (problem) {
      setError(problem);
    }
  };
  return html`<${Dialog} title="Name and labels" onClose=${onClose}>
    <form class="stack" onSubmit=${save}>
      <label>Name<input type="text" value=${name} maxlength="1000" placeholder=${run.id} onInput=${(event) => setName(event.target.value)} /></label>
      <fieldset><legend>Labels</legend>
        ${pairs.map(([key, value], place) => html`<div class="pair" key=${place}>
          <input type="text" aria-label="Label ${place + 1}: name" placeholder="name" value=${key} onInput=${(event) => change(place, 0, event.target.value)} />
          <input type="text" aria-label="Label ${place + 1}: value" placeholder="value" value=${value} onInput=${(event) => change(place, 1, event.target.value)} />
        </div>`)}
        <small>Empty the name of a label to remove it.</small>
      </fieldset>
      ${error && html`<${ErrorNote} error=${error} />`}
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary">Save</button></footer>
    </form>
  </${Dialog}>`;
}

const VERDICTS = {
  verified: ["good", "Verified", "Everything in this run is as it was recorded."],
  unproven: ["warn", "Not proven", "Something has no record in the chain yet, or is not sealed. Sealing takes a minute at most."],
  failed: ["bad", "Altered", "Something is not as it was recorded."],
};

function Verify({ run, onClose }) {
  const { data, error, reload } = useLoad(() => get(`${pathOf(run)}/verify`), [run.id]);
  const [tone, title, text] = VERDICTS[data?.verdict] || ["", data?.verdict, ""];
  return html`<${Dialog} title="Is the run as it was recorded?" onClose=${onClose} actions=${html`<button onClick=${reload}>Verify again</button>`}>
    ${error ? html`<${ErrorNote} error=${error} retry=${reload} />` : !data ? html`<${Loading} height="120px" />` : html`
      <p><${Badge} tone=${tone}>${title}</${Badge}> ${text}</p>
      <dl class="facts">
        <div><dt>Elements proven</dt><dd>${count(data.proven)}</dd></div>
        <div><dt>Not proven yet</dt><dd>${count(data.unproven)}</dd></div>
        ${data.erased.length > 0 && html`<div><dt>Erased on purpose</dt><dd>${count(data.erased.length)}</dd></div>`}
        ${data.seals.map((seal) => html`<div key=${seal.chain}><dt>Sealed</dt><dd>${seal.signed_at ? html`<${Time} at=${seal.signed_at} />` : "not yet"}${seal.origin && html` by <span class="mono">${visible(seal.origin)}</span>`}</dd></div>`)}
      </dl>
      ${data.findings.length > 0 && html`<ul class="findings">${data.findings.slice(0, 200).map((one, place) => html`<li key=${place}><strong>${one.change}</strong> ${visible(one.element)}: ${visible(one.detail || "")}</li>`)}</ul>`}`}
    <p><small>The same in the terminal, without trusting this server:</small></p>
    <${Command} text=${`playhead verify ${quote(run.id)}`} />
  </${Dialog}>`;
}

const REPLAY_TONES = { right: "good", diverged: "bad", unknown: "" };

function Replays({ run, onClose }) {
  const { data, error } = useLoad(() => get("/v1/marks", { run: run.id }), [run.id]);
  const replays = data?.items[0]?.replays || [];
  return html`<${Dialog} title="Replays of this run" onClose=${onClose}>
    ${error ? html`<${ErrorNote} error=${error} />` : !data ? html`<${Loading} height="80px" />` : replays.length === 0 ? html`<p class="muted">There is no replay of it among the newest 200.</p>`
      : html`<ul class="plain">${replays.map((one) => html`<li key=${one.id}><button class="quiet" onClick=${() => { onClose(); navigate(`/misses/${encodeURIComponent(one.id)}`); }}>${one.id}</button> <${Badge} tone=${REPLAY_TONES[one.verdict] || ""}>${one.verdict || "running"}</${Badge}></li>`)}</ul>`}
    <p><small>Replay it with the agent:</small></p>
    <${Command} text=${`playhead replay ${quote(run.id)} -- python agent.py`} />
  </${Dialog}>`;
}

export function Fork({ run, onClose, from = 1 }) {
  const [step, setStep] = useState(from);
  const steps = Math.max(1, run.calls);
  return html`<${Dialog} title="Fork from a step" onClose=${onClose}>
    <p>Steps 1 to ${step} are answered from the record; from then on the agent talks to the real services, and is recorded as a run of its own.</p>
    <label class="row-label">Last step from the record <input type="number" min="1" max=${steps} value=${step} onInput=${(event) => setStep(Math.min(steps, Math.max(1, Number(event.target.value) || 1)))} /> of ${count(run.calls)}</label>
    <${Command} text=${`playhead fork ${quote(run.id)} --after-step ${step} -- python agent.py`} />
  </${Dialog}>`;
}

function Export({ run, onClose }) {
  const link = (path, params, label, note) => html`<li><a href=${address(path, params)} download>${label}</a> <small>${note}</small></li>`;
  return html`<${Dialog} title="Export" onClose=${onClose}>
    <ul class="plain">
      ${link(`${pathOf(run)}/bundle`, {}, "Bundle (JSON Lines)", "everything, with the proof that it was not altered")}
      ${link(`${pathOf(run)}/bundle`, { proof: "false" }, "Bundle without proof", "depends on nothing but what was recorded")}
      ${link(`${pathOf(run)}/spans`, {}, "OpenTelemetry trace", "OTLP as protobuf, without content")}
      ${link(`${pathOf(run)}/calls`, { fields: "*", limit: 500 }, "Calls as JSON", "as in the REST API")}
    </ul>
    <p><small>One page that opens offline, or another format:</small></p>
    <${Command} text=${`playhead export ${quote(run.id)} --format html -o ${quote(`${run.id.replace(/[^\w.-]/g, "_")}.html`)}`} />
  </${Dialog}>`;
}

function Delete({ run, onClose, onChange }) {
  const { data, error } = useLoad(() => post("/v1/erasures", { run: run.id, dry_run: true }), [run.id]);
  const [typed, setTyped] = useState("");
  const [fault, setFault] = useState(null);
  const [report, setReport] = useState(null);
  const [isBusy, setBusy] = useState(false);
  const erase = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      setReport(await del(pathOf(run)));
      onChange(null);
    } catch (problem) {
      setFault(problem);
    }
    setBusy(false);
  };
  if (report) {
    return html`<${Dialog} title="Deleted" onClose=${onClose}><p>The run and its ${count(report.exchanges?.length ?? 0)} exchanges are erased.</p>
      ${report.remains?.length > 0 && html`<div class="note warn"><strong>What may still have it</strong><ul>${report.remains.map((one, place) => html`<li key=${place}>${typeof one === "string" ? one : JSON.stringify(one)}</li>`)}</ul></div>`}</${Dialog}>`;
  }
  return html`<${Dialog} title="Delete this run" onClose=${onClose}>
    ${error && html`<${ErrorNote} error=${error} />`}
    <div class="note bad"><strong>${run.name || run.id}</strong>
      <p>${data ? `${count(data.exchanges?.length ?? run.exchanges)} exchanges with their bodies` : "…"}, ${count(run.calls)} calls, since <time title=${exactTime(run.started_at)}>${run.started_at.slice(0, 16).replace("T", " ")} UTC</time>.</p>
      <p>It is erased from tables, spools, replays and the search index. This cannot be undone. Backups keep it; forks of it stay.${run.pinned ? " It is pinned." : ""}</p></div>
    <form class="stack" onSubmit=${erase}>
      <label>To confirm, type <code>${run.id}</code><input type="text" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
      ${fault && html`<${ErrorNote} error=${fault} />`}
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="danger" disabled=${typed !== run.id || isBusy}>Delete for good</button></footer>
    </form>
  </${Dialog}>`;
}
