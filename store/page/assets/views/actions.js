// What can be done with a run: a menu, in the list and on the page of the run. `<${RunActions} run=${run} onChange=${…} />`, where
// `run` is as in `/v1/runs/{run}`; `onChange(change)` gets the run as it is now, or null once it is deleted.
import { html, useState } from "../core/html.js";
import { address, get, isOffline, patch, post, del } from "../core/api.js";
import { Link, path, runPath } from "../core/router.js";
import { count, exactTime, visible } from "../core/format.js";
import { allows, Badge, Command, Dialog, ErrorNote, Loaded, Menu, Time, useLoad, useMost, useSession } from "../core/parts.js";

const pathOf = (run) => path`/v1/runs/${run.id}`;
const quote = (text) => (/^[\w.:@-]+$/.test(text) && !text.startsWith("-") ? text : `'${text.replaceAll("'", "'\\''")}'`);

export const setPinned = (run, pinned) => patch(pathOf(run), { pinned });

export function RunActions({ run, onChange = () => {}, label = "Actions", isOpen, onClose }) {
  const [Shown, setDialog] = useState(null);
  const [error, setError] = useState(null);
  const session = useSession();
  if (isOffline) return null;
  const lacks = (scope) => !allows(session, scope);
  const attempt = (work) => () => work().then(onChange, setError);
  // A function as a state would be called.
  const open = (dialog) => () => setDialog(() => dialog);
  const items = [
    {
      label: run.pinned ? "Unpin" : "Pin", note: run.pinned ? "retention may remove it again" : "retention keeps it",
      isDisabled: lacks("runs:write"), run: attempt(() => setPinned(run, !run.pinned)),
    },
    { label: "Name and labels…", isDisabled: lacks("runs:write"), run: open(Labels) },
    {
      label: "End", note: run.ended_at ? "it has ended" : "nothing more is expected of it",
      isDisabled: lacks("runs:write") || run.ended_at, run: attempt(() => patch(pathOf(run), { ended: true })),
    },
    null,
    { label: "Verify…", note: "is it as it was recorded?", run: open(Verify) },
    { label: "Replay reports…", isDisabled: lacks("bodies:read") && lacks("replay"), run: open(Replays) },
    { label: "Fork…", note: "go on differently from a step", isDisabled: lacks("replay"), run: open(Fork) },
    { label: "Export…", isDisabled: lacks("bodies:read"), run: open(Export) },
    null,
    { label: "Delete…", isDangerous: true, isDisabled: lacks("admin"), run: open(Delete) },
  ];
  return html`<${Menu} label=${label} title="Actions for ${run.name || run.id}" items=${items} isOpen=${isOpen} onClose=${onClose} />
    ${Shown && html`<${Shown} run=${run} onClose=${() => setDialog(null)} onChange=${onChange} />`}
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
      <${ErrorNote} error=${error} />
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="primary">Save</button></footer>
    </form>
  </${Dialog}>`;
}

const VERDICTS = {
  verified: ["good", "Verified", "Everything in this run is as it was recorded."],
  unproven: ["warn", "Not proven", "Something has no record in the chain yet, or is not sealed. Sealing takes a minute at most."],
  failed: ["bad", "Altered", "Something is not as it was recorded."],
};

/** What is known of a run's proof without verifying it: [tone, text, explanation]. */
function proofOf(proof) {
  if (!proof) return null;
  const { verified, sealed_at: at, is_sealed: isSealed } = proof;
  if (verified) {
    const [tone, text] = VERDICTS[verified.verdict];
    return [tone, text, `the result of verifying it at ${verified.at}${verified.is_current ? "" : "; more was recorded since"}`];
  }
  if (isSealed) return ["", "Sealed", `what was recorded is covered by the checkpoint of ${at}; Actions, Verify compares it`];
  return at ? ["", "Partly sealed", `recorded since the checkpoint of ${at}: sealing takes a minute at most`]
    : ["", "Not sealed", "no signed checkpoint covers it yet"];
}

/** The same as a sign, for the list. */
export const ProofMark = ({ proof }) => {
  const [tone, text, explanation] = proofOf(proof) || ["", "No records", "it was stored without a proof"];
  const sign = { Verified: "✓", Altered: "✗", Sealed: "■", "Partly sealed": "◪" }[text] || "□";
  return html`<span class="mark ${tone}" title="${text}: ${explanation}"><span aria-hidden="true">${sign}</span><span class="visually-hidden">${text}</span></span>`;
};

export const ProofBadge = ({ proof }) => {
  const found = proofOf(proof);
  return found && html`<${Badge} tone=${found[0]} title=${found[2]}>${found[1].toLowerCase()}</${Badge}>`;
};

function Verify({ run, onClose, onChange }) {
  const verify = async () => {
    const found = await get(`${pathOf(run)}/verify`);
    const [marks] = (await get("/v1/marks", { run: run.id })).items;
    onChange({ ...run, marks });
    return found;
  };
  const found = useLoad(verify, [run.id]);
  const again = html`<button onClick=${found.reload}>Verify again</button>`;
  return html`<${Dialog} title="Is the run as it was recorded?" onClose=${onClose} actions=${again}>
    <${Loaded} of=${found} height="120px">${(data) => html`<${Verified} data=${data} />`}</${Loaded}>
    <p><small>The same in the terminal, without trusting this server:</small></p>
    <${Command} text=${`playhead verify ${quote(run.id)}`} />
  </${Dialog}>`;
}

function Verified({ data }) {
  const [tone, title, text] = VERDICTS[data.verdict] || ["", data.verdict, ""];
  const [findings, more] = useMost(data.findings, 200);
  const fact = (name, value) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`;
  return html`<p><${Badge} tone=${tone}>${title}</${Badge}> ${text}</p>
    <dl class="facts">
      ${fact("Elements proven", count(data.proven))}
      ${fact("Not proven yet", count(data.unproven))}
      ${data.erased.length > 0 && fact("Erased on purpose", count(data.erased.length))}
      ${data.seals.map((seal) => fact("Sealed", html`${seal.signed_at ? html`<${Time} at=${seal.signed_at} />` : "not yet"}
        ${seal.origin && html` by <span class="mono">${visible(seal.origin)}</span>`}`))}
    </dl>
    ${findings.length > 0 && html`<ul class="findings">${findings.map((one, place) => html`<li key=${place}>
      <strong>${one.change}</strong> ${visible(one.element)}: ${visible(one.detail || "")}</li>`)}</ul>`}${more}`;
}

const REPLAY_TONES = { right: "good", diverged: "bad" };

function Replays({ run, onClose }) {
  const found = useLoad(() => get("/v1/marks", { run: run.id }), [run.id]);
  const row = (one) => html`<li key=${one.id}><${Link} to=${path`/misses/${one.id}`}>${one.id}</${Link}>
    <${Badge} tone=${REPLAY_TONES[one.verdict] || ""}>${one.verdict || "running"}</${Badge}></li>`;
  return html`<${Dialog} title="Replays of this run" onClose=${onClose}>
    <${Loaded} of=${found} height="80px">${({ items: [{ replays }] }) => (replays.length
      ? html`<ul class="plain">${replays.map(row)}</ul>`
      : html`<p class="muted">There is no replay of it among the newest 200.</p>`)}</${Loaded}>
    <p><small>Replay it with the agent:</small></p>
    <${Command} text=${`playhead replay ${quote(run.id)} -- python agent.py`} />
  </${Dialog}>`;
}

export function Fork({ run, onClose, from = 1 }) {
  const [step, setStep] = useState(from);
  const [outcome, setOutcome] = useState(/** @type {{fork?: any, error?: any, isBusy?: boolean}} */ ({}));
  const agent = useSession()?.fork_agent;
  const steps = Math.max(1, run.calls);
  const { fork, error, isBusy } = outcome;
  const start = () => {
    setOutcome({ isBusy: true });
    post(`${pathOf(run)}/forks`, { from: step, start: true }).then((made) => setOutcome({ fork: made }), (problem) => setOutcome({ error: problem }));
  };
  return html`<${Dialog} title="Fork from a step" onClose=${onClose}>
    <p>Steps 1 to ${step} are answered from the record; from then on the agent talks to the real services, and is recorded as a run of its own.</p>
    <label class="row-label">Last step from the record <input type="number" min="1" max=${steps} value=${step}
      onInput=${(event) => setStep(Math.min(steps, Math.max(1, Number(event.target.value) || 1)))} /> of ${count(run.calls)}</label>
    <${Command} text=${`playhead fork ${quote(run.id)} --after-step ${step} -- python agent.py`} />
    ${agent && html`<p>Or have the agent at <code>${visible(agent)}</code> start it:</p>
      <p><button class="primary" disabled=${isBusy || fork} onClick=${start}>${isBusy ? "Starting…" : "Start the fork there"}</button></p>`}
    ${fork && html`<p role="status">The agent answered ${fork.agent.status}. <${Link} to=${runPath(fork.id)}>Open the fork ${visible(fork.id)}</${Link}></p>`}
    <${ErrorNote} error=${error} />
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
  const remains = report?.remains || [];
  if (report) {
    return html`<${Dialog} title="Deleted" onClose=${onClose}>
      <p>The run and its ${count(report.exchanges?.length ?? 0)} exchanges are erased.</p>
      ${remains.length > 0 && html`<div class="note warn"><strong>What may still have it</strong><ul>${remains.map((one, place) => html`
        <li key=${place}>${typeof one === "string" ? one : JSON.stringify(one)}</li>`)}</ul></div>`}</${Dialog}>`;
  }
  return html`<${Dialog} title="Delete this run" onClose=${onClose}>
    <${ErrorNote} error=${error} />
    <div class="note bad"><strong>${visible(run.name || run.id)}</strong>
      <p>${data ? `${count(data.exchanges?.length ?? run.exchanges)} exchanges with their bodies` : "…"}, ${count(run.calls)} calls, since <time
        title=${exactTime(run.started_at)}>${run.started_at.slice(0, 16).replace("T", " ")} UTC</time>.</p>
      <p>It is erased from tables, spools, replays and the search index. This cannot be undone. Backups keep it; forks of it stay.${run.pinned ? " It is pinned." : ""}</p></div>
    <form class="stack" onSubmit=${erase}>
      <label>To confirm, type <code>${run.id}</code><input type="text" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></label>
      <${ErrorNote} error=${fault} />
      <footer><button type="button" onClick=${onClose}>Cancel</button><button class="danger" disabled=${typed !== run.id || isBusy}>Delete for good</button></footer>
    </form>
  </${Dialog}>`;
}
