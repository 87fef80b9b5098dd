// Why a replay missed: each request beside the recorded calls that are most like it, and the rules that would ignore how they differ.
import { html } from "../core/html.js";
import { get } from "../core/api.js";
import { Link, callPath, path as apiPath, runPath, setQuery } from "../core/router.js";
import { useKeys } from "../core/keys.js";
import { count, bytes, visible } from "../core/format.js";
import { Badge, Command, Copy, Dialog, Empty, ErrorNote, JsonLink, Loading, Tabs, Text, useLoad } from "../core/parts.js";
import { Differences } from "./differences.js";

const REASONS = {
  no_match: "not recorded", consumed: "recorded less often", incomplete: "answer incomplete", profile_changed: "rules changed",
  redaction_changed: "redaction changed", unknown_run: "no such recording", interrupted: "replay interrupted", client_left: "client left early",
};
const VERDICTS = { right: "good", diverged: "bad", unknown: "warn" };

export default function MissView({ params, query }) {
  const path = apiPath`/v1/replays/${params.replay}`;
  const { data, error, reload } = useLoad(() => get(path), [path]);
  if (error) return html`<${ErrorNote} error=${error} retry=${reload} as="h1" />`;
  if (!data) return html`<h1 class="cut">${visible(params.replay)}</h1><${Loading} />`;
  return html`<${Report} report=${data} path=${path} query=${query} />`;
}

function Report({ report, path, query }) {
  const misses = report.misses || [];
  // A recording that is a file has no run here to link to.
  const { data: run } = useLoad(() => get(apiPath`/v1/runs/${report.run}`).catch(() => null), [report.run]);
  const place = Math.max(0, misses.findIndex((one) => String(one.number) === query.request));
  const select = (next) => misses[next] && setQuery({ request: String(misses[next].number), near: null });
  useKeys({
    n: { label: "next miss", run: () => select(place + 1) }, p: { label: "previous miss", run: () => select(place - 1) },
    j: () => select(place + 1), k: () => select(place - 1),
  });
  return html`
    <div class="bar"><h1 class="cut">Replay of ${run ? html`<${Link} to=${runPath(report.run)}>${visible(report.run)}</${Link}>` : visible(report.run)}</h1>
      <${Badge} tone=${VERDICTS[report.verdict] || ""}>${report.verdict}</${Badge}>
      <span class="count">${["served", "missed", "unused", "live", "recorded"].map((name) => `${count(report[name])} ${name}`).join(" · ")}</span>
      <span class="grow"></span><small class="cut">${visible(report.id)}</small><${JsonLink} path=${path} /></div>
    ${misses.length === 0 ? html`<${Empty}
      title=${report.verdict === "right" ? "Every request was answered" : "No request was missed"}>
        <p>${report.unused ? `${count(report.unused)} recorded calls were not requested.` : "Nothing is left to explain."}</p></${Empty}>`
      : html`<div class="misses">
        <ol class="miss-list" aria-label="Missed requests">${misses.map((one, number) => html`<li key=${number}>
          <button class="miss-row" aria-current=${number === place ? "true" : undefined} onClick=${() => select(number)}>
            <span class="num">${one.number ?? "–"}</span><span class="cut">${visible((one.asked || one.detail || "").replace(/https:\/\//, ""))}</span><${Badge}
              tone="bad">${REASONS[one.reason] || one.reason}</${Badge}></button></li>`)}
          ${report.missed + report.live > misses.length && html`<li
            class="count">and ${count(report.missed + report.live - misses.length)} more, which mostly follow from these</li>`}
        </ol>
        <${Miss} key=${place} miss=${misses[place]} query=${query} run=${run && report.run} />
      </div>`}
    <${Unused} report=${report} />`;
}

function Miss({ miss, query, run }) {
  const near = Math.min(Number(query.near) || 0, Math.max(0, (miss.candidates || []).length - 1));
  const candidates = miss.candidates?.length ? miss.candidates : miss.nearest ? [{ ...miss.nearest, rules: [] }] : [];
  const candidate = candidates[near];
  const rules = new Map((candidate?.rules || []).map((one) => [one.pointer, one]));
  const rule = rules.get(query.rule);
  const differences = (candidate?.differences || []).map((one) => ({
    pointer: one.pointer, a: one.recorded, b: one.now, words: one.words, only: one.only && { recorded: "a", now: "b" }[one.only],
  }));
  const ignore = (one) => rules.has(one.pointer) && html`<button class="quiet ignore" onClick=${() => setQuery({ rule: one.pointer })}>Ignore this field…</button>`;
  return html`<article class="miss">
    <h2 class="wrap miss-asked">${visible(miss.asked || "A request")}</h2>
    ${differences.length === 0 && html`<p class="muted wrap">${visible(miss.detail)}</p>`}
    ${candidate && html`<h3>Nearest recordings</h3>
      <${Tabs} label="Nearest recordings" active=${String(near)} panel="near" onSelect=${(id) => setQuery({ near: id })}
        tabs=${candidates.map((one, place) => ({ id: String(place), label: `Step ${one.step}`, badge: one.differences.length + (one.more || 0) }))} />
      <div id="near" role="tabpanel" class="near">
        <p class="count wrap">${candidate.asked && visible(candidate.asked)}
          ${run && html` · <${Link} to=${callPath(run, candidate.call)}>open the call</${Link}>`}${candidate.profile ? ` · profile ${candidate.profile}` : ""}</p>
        ${differences.length ? html`<${Differences} differences=${differences} isSideBySide names=${["the recording", "the request"]} actions=${ignore} />` : html`<p
          class="muted">Only the raw bytes differ.</p>`}
        ${candidate.more > 0 && html`<p class="count">and ${count(candidate.more)} more places</p>`}
      </div>`}
    <h3>To fix it</h3>
    <ul class="fixes">${String(miss.fix || "").split("; or ").filter(Boolean).map((way, place) => html`<li key=${place}><${Fix} way=${way} /></li>`)}</ul>
    ${miss.request && html`<details class="sent"><summary>The request that missed <span class="count">${bytes(miss.request.size)}</span></summary>
      <p class="wrap"><strong>${visible(miss.request.method)}</strong> ${visible(miss.request.url)} ${miss.request.content_type && html`<span
        class="chip">${visible(miss.request.content_type)}</span>`}</p>
      <${Text} text=${miss.request.body} className="code" /></details>`}
    ${rule && html`<${RuleDialog} rule=${rule} onClose=${() => setQuery({ rule: null })} />`}
  </article>`;
}

/** A way to fix it: what it does, and a command to copy where it has one. */
function Fix({ way }) {
  const at = way.search(/(playhead|pytest) \S|\[\[profile\]\]/);
  if (at < 0) return visible(way);
  return html`<span>${visible(way.slice(0, at).replace(/:\s*$/, ""))}</span><${Command} text=${way.slice(at)} />`;
}

function RuleDialog({ rule, onClose }) {
  return html`<${Dialog} title="Ignore ${visible(rule.pointer)}" onClose=${onClose} isWide actions=${rule.rule && html`<${Copy} text=${rule.rule}
    label="Copy the rule" />`}>
    ${rule.note && html`<div class="note ${rule.rule ? "warn" : "info"}"><p class="sentence">${visible(rule.note)}.</p></div>`}
    ${rule.rule && html`<p>Add this to <code>playhead.toml</code>. Nothing was written.</p>
      <div class="copied-text" tabindex="0" role="region" aria-label="The rule"><${Text} text=${rule.rule} className="code" /></div>
      <p class="muted">The recording stays as it is: its keys are made again with the rule at the next replay.</p>`}
  </${Dialog}>`;
}

function Unused({ report }) {
  const steps = report.unused_steps || [];
  if (!steps.length || report.allow_unused) return null;
  return html`<details class="sent"><summary>Recorded calls that were not requested <span class="count">${count(report.unused)}</span></summary>
    <ol class="unused">${steps.map((one) => html`<li key=${one.step} value=${one.step} class="wrap">${visible(one.asked || "")}</li>`)}</ol></details>`;
}
