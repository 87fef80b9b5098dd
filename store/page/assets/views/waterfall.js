// The waterfall of a run: when each step waited, streamed and ended, in lanes, with what the agent did in between.
import { html, useEffect, useLayoutEffect, useMemo, useRef, useState } from "../core/html.js";
import { count, duration, money, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";

const LANE = 26;
const BAR = 14;
const AXIS = 20;
const LEAST = 2;
const LEAST_SPAN = 1;

/** Where a step ends on the drawing: one whose end was not seen ends with the last thing that was. */
export const stepEnd = (step) => step.end_ms ?? step.first_byte_ms ?? step.start_ms;

/** Round steps for the marks of the axis. */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-6)));
  const size = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
  const found = [];
  for (let at = Math.ceil(from / size) * size; at <= to && found.length < 40; at += size) found.push([at, exactly(at, size)]);
  return found;
}

const shortTime = (ms) => (ms === 0 ? "0" : duration(ms));

/** A time with as many digits as its neighbours at a distance of `size` need to differ from it. */
function exactly(ms, size) {
  if (size >= 1000 || ms < 1000) return shortTime(ms);
  const minutes = Math.floor(ms / 60_000);
  const seconds = ((ms % 60_000) / 1000).toFixed(Math.min(4, Math.ceil(-Math.log10(size / 1000) - 1e-9)));
  return `${minutes ? `${minutes} m ` : ""}${seconds} s`;
}

/** One path for many bars: the minimap of thousands of steps is three elements. */
function barsPath(bars, scale, y, height) {
  return bars.map((bar) => `M${scale(bar.from).toFixed(1)} ${y(bar).toFixed(1)}h${Math.max(1, scale(bar.to) - scale(bar.from)).toFixed(1)}v${height}h-${Math.max(1, scale(bar.to) - scale(bar.from)).toFixed(1)}z`).join("");
}

function Minimap({ timeline, total, zoom, moment, onZoom, width }) {
  const height = 26;
  const scale = (ms) => (ms / total) * width;
  const lanes = Math.max(1, timeline.lanes.length);
  const [fine, bad] = useMemo(() => {
    const bars = timeline.steps.map((step) => ({ from: step.start_ms, to: stepEnd(step), lane: step.lane, failed: step.failed }));
    const y = (bar) => 2 + (bar.lane * (height - 4)) / lanes;
    const thick = Math.max(1, (height - 4) / lanes - 1);
    return [barsPath(bars.filter((bar) => !bar.failed), scale, y, thick), barsPath(bars.filter((bar) => bar.failed), scale, y, thick)];
  }, [timeline, width, total]);
  const drag = useRef(null);
  const at = (event) => Math.min(total, Math.max(0, ((event.clientX - event.currentTarget.getBoundingClientRect().left) / width) * total));
  const move = (event) => {
    if (drag.current === null) return;
    const size = zoom[1] - zoom[0];
    const from = Math.min(total - size, Math.max(0, at(event) - size / 2));
    onZoom([from, from + size]);
  };
  const isWhole = zoom[0] <= 0 && zoom[1] >= total;
  return html`<svg class="minimap" width=${width} height=${height} aria-hidden="true"
    onPointerDown=${(event) => { if (isWhole) return; drag.current = true; event.currentTarget.setPointerCapture(event.pointerId); move(event); }}
    onPointerMove=${move} onPointerUp=${() => { drag.current = null; }}>
    <path class="mini-bars" d=${fine} /><path class="mini-bad" d=${bad} />
    ${timeline.gaps.map((gap, place) => html`<rect key=${place} class="mini-gap" x=${scale(gap.at_ms) - 1} y="0" width="2" height=${height} />`)}
    ${!isWhole && html`<rect class="mini-out" x="0" y="0" width=${Math.max(0, scale(zoom[0]))} height=${height} />
      <rect class="mini-out" x=${scale(zoom[1])} y="0" width=${Math.max(0, width - scale(zoom[1]))} height=${height} />
      <rect class="mini-view" x=${scale(zoom[0])} y="0.5" width=${Math.max(3, scale(zoom[1]) - scale(zoom[0]))} height=${height - 1} />`}
    ${moment !== null && html`<rect class="moment" x=${scale(moment)} y="0" width="1.5" height=${height} />`}
  </svg>`;
}

/** What a step is in one sentence, for those who do not see the drawing. */
export function describeStep(step) {
  const words = [`Step ${step.step}`, visible(step.label), step.kind];
  if (step.failed) words.push(`failed${step.status ? ` with ${step.status}` : ""}`);
  words.push(`begins at ${shortTime(step.start_ms)}`, `takes ${duration(stepEnd(step) - step.start_ms)}`);
  if (step.tries > 1) words.push(`${step.tries} attempts`);
  return words.join(", ");
}

const TRUNK = 6;

/** Steps that are drawn one by one. More of them are drawn together, a path for each tone: they are too narrow for details. */
const MOST_SINGLE = 160;

const TONES = { model: "is-model", tool: "is-tool", retrieval: "is-tool", other: "is-other" };

function Crowd({ steps, scale, top, moment }) {
  const groups = new Map();
  const add = (tone, kind, bar) => {
    const key = `${tone}|${kind}`;
    if (!groups.has(key)) groups.set(key, []);
    groups.get(key).push(bar);
  };
  for (const step of steps) {
    const tone = `${step.failed ? "is-bad" : TONES[step.kind]}${moment !== null && step.start_ms > moment ? " is-dim" : ""}`;
    const end = stepEnd(step);
    const first = step.first_byte_ms === null ? end : Math.min(end, step.first_byte_ms);
    add(tone, "wait", { from: step.start_ms, to: first, lane: step.lane });
    if (first < end) add(tone, "stream", { from: first, to: end, lane: step.lane });
  }
  return html`<g class="crowd" aria-hidden="true">${[...groups].map(([key, bars]) => {
    const [tone, kind] = key.split("|");
    return html`<g key=${key} class="step ${tone}"><path class="bar-${kind}" d=${barsPath(bars, scale, (bar) => top(bar.lane) + (LANE - BAR) / 2, BAR)} /></g>`;
  })}</g>`;
}

/** The step at a place of the drawing: the one under it, else the nearest of the lane within some pixels. */
function stepAt(steps, lane, ms, reach) {
  let best = null;
  let distance = reach;
  for (const step of steps) {
    if (step.lane !== lane) continue;
    const away = ms < step.start_ms ? step.start_ms - ms : Math.max(0, ms - stepEnd(step));
    if (away < distance || (away === 0 && best === null)) { best = step; distance = away; }
    if (away === 0) break;
  }
  return best;
}

function StepBar({ step, scale, y, isSelected, isDim, place, count: size }) {
  const last = step.attempts[step.attempts.length - 1];
  const from = scale(step.start_ms);
  const to = Math.max(from + LEAST, scale(stepEnd(step)));
  const begun = last ? scale(last.start_ms) : from;
  const first = step.first_byte_ms === null ? to : Math.min(to, scale(step.first_byte_ms));
  const top = y + (LANE - BAR) / 2;
  const earlier = step.attempts.slice(0, -1);
  const text = to - from > 46 ? visible(step.label).slice(0, Math.floor((to - from - 10) / 6.2)) : "";
  const tone = step.failed ? "is-bad" : `is-${step.kind}`;
  return html`<g class="step ${tone} ${isSelected ? "is-selected" : ""} ${isDim ? "is-dim" : ""}" id="wf-${step.step}" role="option"
      aria-selected=${isSelected ? "true" : "false"} aria-posinset=${place + 1} aria-setsize=${size} aria-label=${describeStep(step)}>
    ${earlier.length > 0 && html`<line class="retry-line" x1=${from} x2=${begun} y1=${top + BAR / 2} y2=${top + BAR / 2} />`}
    ${earlier.map((one, place) => {
      const start = scale(one.start_ms);
      const end = scale(one.end_ms ?? one.first_byte_ms ?? one.start_ms);
      return html`<rect key=${place} class=${one.poll ? "bar-poll" : "bar-retry"} x=${start} y=${top + 2} width=${Math.max(LEAST, end - start)} height=${BAR - 4} rx="1.5" />`;
    })}
    <rect class="bar-wait" x=${begun} y=${top} width=${Math.max(first - begun, first === to ? LEAST : 0.5)} height=${BAR} rx="2" />
    ${first < to && html`<rect class="bar-stream" x=${first} y=${top} width=${Math.max(to - first, 1)} height=${BAR} rx="2" />`}
    ${step.tries > 1 && html`<text class="tries" aria-hidden="true" x=${begun + 3} y=${top - 1}>×${step.tries}</text>`}
    ${step.failed && html`<path class="fail-mark" d="M${to - 4} ${top - 3}h8l-4 6z" />`}
    ${step.end_ms === null && html`<path class="open-end" d="M${to} ${top}l4 ${BAR / 2}l-4 ${BAR / 2}" />`}
    ${text && html`<text class="bar-label" aria-hidden="true" x=${from + 5} y=${top + BAR - 3.5}>${text}</text>`}
    ${isSelected && html`<rect class="ring" x=${from - 2} y=${top - 2.5} width=${to - from + 4} height=${BAR + 5} rx="3.5" />`}
  </g>`;
}

function Tip({ hover, width }) {
  const { step, x, y } = hover;
  const waited = step.first_byte_ms === null ? null : step.first_byte_ms - (step.attempts[step.attempts.length - 1]?.start_ms ?? step.start_ms);
  const all = stepEnd(step) - step.start_ms;
  const row = (label, value) => value !== null && html`<div><dt>${label}</dt><dd>${value}</dd></div>`;
  return html`<div class="tip" role="presentation" style=${{ left: `${Math.max(4, Math.min(x + 12, width - 268))}px`, top: `${y + 18}px` }}>
    <strong>${step.step}. ${visible(step.label)}</strong>
    ${step.failed && html`<p class="tip-bad">${step.status ?? "no response"}${step.error ? `: ${visible(step.error).slice(0, 160)}` : ""}</p>`}
    <dl>
      ${row("begins", shortTime(step.start_ms))}
      ${row("takes", duration(all))}
      ${row("to first byte", waited === null ? null : duration(waited))}
      ${row("thinking before", step.thinking_ms >= 1 ? duration(step.thinking_ms) : null)}
      ${row("attempts", step.tries > 1 ? String(step.tries) : null)}
      ${row("tokens", step.usage.input_tokens === null ? null : `${tokens(step.usage.input_tokens)} in, ${tokens(step.usage.output_tokens)} out`)}
      ${row("cost", step.kind !== "model" ? null : step.unpriced ? "unknown" : money(step.cost_usd))}
    </dl>
  </div>`;
}

const LEGEND = [["wait", "waits"], ["stream", "receives"], ["think", "agent thinks"], ["tool", "tool"], ["bad", "failed"], ["gap", "not recorded"]];

/** `zoom` is `[from, to]` in milliseconds or null; `moment` a time or null. */
export function Waterfall({ timeline, total, selected, moment, zoom, links, onSelect, onOpen, onZoom }) {
  const root = useRef(null);
  const [width, setWidth] = useState(0);
  const [hover, setHover] = useState(null);
  const [band, setBand] = useState(null);
  useLayoutEffect(() => {
    const measure = () => root.current && setWidth(Math.max(240, Math.floor(root.current.clientWidth)));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(root.current);
    return () => observer.disconnect();
  }, []);
  useKeys({ Escape: zoom ? { label: "show the whole run", run: () => onZoom(null) } : undefined });
  const view = zoom || [0, total];
  const span = Math.max(LEAST_SPAN, view[1] - view[0]);
  const scale = (ms) => ((ms - view[0]) / span) * width;
  const lanes = Math.max(1, timeline.lanes.length);
  const height = AXIS + lanes * LANE + 4;
  const top = (lane) => AXIS + lane * LANE;
  const inView = useMemo(
    () => timeline.steps.filter((step) => stepEnd(step) >= view[0] && step.start_ms - step.thinking_ms <= view[1]),
    [timeline, view[0], view[1]],
  );
  // Thousands of thinking times on a few hundred pixels are one path.
  const thinking = useMemo(() => {
    const bars = inView.filter((step) => (step.thinking_ms / span) * width >= 1.5);
    return barsPath(bars.map((step) => ({ from: step.start_ms - step.thinking_ms, to: step.start_ms, lane: step.lane })), scale, (bar) => top(bar.lane) + 5, LANE - 10);
  }, [inView, view[0], view[1], width]);
  const isCrowd = inView.length > MOST_SINGLE;
  const numbers = useMemo(() => new Map(timeline.steps.map((step, at) => [step.step, at])), [timeline]);
  const crowd = useMemo(() => isCrowd && html`<${Crowd} steps=${inView} scale=${scale} top=${top} moment=${moment} />`, [isCrowd, inView, view[0], view[1], width, moment]);
  const place = (event) => Math.min(width, Math.max(0, event.clientX - root.current.getBoundingClientRect().left));
  const begin = (event) => {
    if (event.button !== 0 || event.pointerType === "touch") return;
    setBand({ from: place(event), to: place(event), id: event.pointerId });
  };
  const move = (event) => {
    if (!band) return onHover(event);
    if (Math.abs(place(event) - band.from) > 5 && !root.current.hasPointerCapture?.(band.id)) event.currentTarget.setPointerCapture(band.id);
    setBand({ ...band, to: place(event) });
    return setHover(null);
  };
  const end = (event) => {
    const [from, to] = band ? [Math.min(band.from, band.to), Math.max(band.from, band.to)] : [0, 0];
    setBand(null);
    if (to - from < 6) {
      const step = under(event);
      if (step) onSelect(step.step);
      return;
    }
    const ms = (x) => view[0] + (x / width) * span;
    if (ms(to) - ms(from) >= LEAST_SPAN) onZoom([ms(from), ms(to)]);
  };
  const under = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - AXIS) / LANE);
    return stepAt(inView, lane, view[0] + ((event.clientX - box.left) / width) * span, (6 / width) * span);
  };
  const onHover = (event) => {
    const step = band ? null : under(event);
    if (!step) return hover && setHover(null);
    const box = root.current.getBoundingClientRect();
    return setHover({ step, x: event.clientX - box.left, y: event.clientY - box.top });
  };
  const onKeyDown = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    const all = timeline.steps;
    if (!step || !all.length) return;
    event.preventDefault();
    const now = all.findIndex((one) => one.step === selected);
    onSelect(all[Math.min(all.length - 1, Math.max(0, now + step))].step);
  };
  const byStep = useMemo(() => new Map(timeline.steps.map((step) => [step.step, step])), [timeline]);
  const arrows = (links || []).map(([from, to]) => [byStep.get(from), byStep.get(to)]).filter(([one, other]) => one && other);
  const hasActors = timeline.lanes.some((lane) => lane.actor !== null);
  return html`<section class="waterfall" aria-label="When each step ran">
    <div class="wf-legend">
      ${LEGEND.map(([tone, label]) => html`<span key=${tone}><svg width="14" height="10" aria-hidden="true"><rect class="key-${tone}" width="14" height="10" rx="2" /></svg>${label}</span>`)}
      <span class="grow"></span>
      ${zoom ? html`<button class="quiet" onClick=${() => onZoom(null)}>${exactly(zoom[0], span / 10)} – ${exactly(zoom[1], span / 10)} <kbd>Esc</kbd></button>` : html`<small class="wide">drag to zoom</small>`}
    </div>
    <div class="wf-root" ref=${root}>
      ${width > 0 && html`
      <${Minimap} timeline=${timeline} total=${total} zoom=${view} moment=${moment} onZoom=${onZoom} width=${width} />
      <div class="wf-scroll" tabindex="0" role="listbox" aria-label="Steps" aria-activedescendant=${selected ? `wf-${selected}` : undefined} onKeyDown=${onKeyDown}>
        <svg class="wf" role="none" width=${width} height=${height} onPointerDown=${begin} onPointerMove=${move} onPointerUp=${end} onPointerCancel=${() => setBand(null)} onPointerLeave=${() => setHover(null)}
          onDblClick=${(event) => { const step = under(event); if (step) onOpen(step); }}>
          <defs>
            <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="1.4" height="5" /></pattern>
            <marker id="tip-of-arrow" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto"><path class="arrow-tip" d="M0 0l6 3l-6 3z" /></marker>
          </defs>
          <g aria-hidden="true">
            ${Array.from({ length: lanes }, (_, lane) => html`<rect key=${lane} class="lane ${lane % 2 ? "is-odd" : ""}" x="0" y=${top(lane)} width=${width} height=${LANE} />`)}
            ${ticks(view[0], view[1], width / 110).map(([at, label]) => html`<g key=${at}><line class="tick" x1=${scale(at)} x2=${scale(at)} y1=${AXIS - 5} y2=${height} /><text class="tick-label" x=${scale(at) + 3} y="12">${label}</text></g>`)}
            <path class="think" d=${thinking} />
          </g>
          ${isCrowd && crowd}
          ${(isCrowd ? inView.filter((step) => step.step === selected) : inView).map((step) => html`<${StepBar} key=${step.step} step=${step} scale=${scale} y=${top(step.lane)} isSelected=${step.step === selected}
            isDim=${moment !== null && step.start_ms > moment} place=${numbers.get(step.step)} count=${timeline.steps.length} />`)}
          <g aria-hidden="true">
            ${arrows.map(([from, to]) => {
              const [x1, y1, x2, y2] = [scale(stepEnd(from)), top(from.lane) + LANE / 2, scale(to.start_ms), top(to.lane) + LANE / 2];
              const lift = y1 === y2 ? LANE * 0.75 : 0;
              // Between neighbours there is no room for an arrow.
              if (y1 === y2 && x2 - x1 < 18) return null;
              return html`<path key=${`${from.step}-${to.step}`} class="arrow" marker-end="url(#tip-of-arrow)" d="M${x1} ${y1}C${x1 + TRUNK * 2} ${y1 - lift} ${x2 - TRUNK * 2} ${y2 - lift} ${x2} ${y2}" />`;
            })}
            ${timeline.gaps.filter((gap) => gap.at_ms >= view[0] && gap.at_ms <= view[1]).map((gap, at) => html`<g key=${at} class="gap">
              <line x1=${scale(gap.at_ms)} x2=${scale(gap.at_ms)} y1=${AXIS - 6} y2=${height} /><path d="M${scale(gap.at_ms) - 5} ${AXIS - 8}h10l-5 7z" />
              <title>${`${count(gap.count)} not recorded: ${visible(gap.reason)}`}</title></g>`)}
            ${moment !== null && moment >= view[0] && moment <= view[1] && html`<line class="moment" x1=${scale(moment)} x2=${scale(moment)} y1="0" y2=${height} />`}
            ${hasActors && timeline.lanes.map((lane, at) => lane.actor !== null && html`<text key=${at} class="lane-label" x=${width - 6} y=${top(at) + 10}>${visible(lane.actor).slice(0, 40)}</text>`)}
            ${band && html`<rect class="band" x=${Math.min(band.from, band.to)} y="0" width=${Math.abs(band.to - band.from)} height=${height} />`}
          </g>
        </svg>
      </div>
      ${hover && html`<${Tip} hover=${hover} width=${width} />`}`}
    </div>
  </section>`;
}

/** A range to step through time. The address follows when the hand rests: browsers limit how often it may change. */
export function Scrubber({ total, moment, steps, onMoment }) {
  const [value, setValue] = useState(moment ?? total);
  const timer = useRef(0);
  useEffect(() => setValue(moment ?? total), [moment, total]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (ms) => {
    setValue(ms);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onMoment(ms >= total ? null : ms), 120);
  };
  const begun = steps.filter((step) => step.start_ms <= value).length;
  const size = Math.max(total / 1000, 0.001);
  const jump = (by) => {
    const places = [...new Set(steps.flatMap((step) => [step.start_ms, stepEnd(step)]))].sort((one, other) => one - other);
    const next = by > 0 ? places.find((at) => at > value + 1e-6) : places.filter((at) => at < value - 1e-6).pop();
    change(next ?? (by > 0 ? total : 0));
  };
  return html`<div class="scrubber">
    <button class="quiet" onClick=${() => jump(-1)} aria-label="To the event before" title="To the event before">◂</button>
    <input type="range" min="0" max=${total} step=${size} value=${value} aria-label="Moment of the run" aria-valuetext=${`${duration(value)}, ${begun} of ${steps.length} steps begun`}
      onInput=${(event) => change(Number(event.currentTarget.value))} />
    <button class="quiet" onClick=${() => jump(1)} aria-label="To the next event" title="To the next event">▸</button>
    <output>${value >= total ? html`<span>end · ${duration(total)}</span>` : html`<span>${duration(value)} · ${begun}/${steps.length} steps</span>`}</output>
    ${value < total && html`<button class="quiet" onClick=${() => change(total)}>to the end</button>`}
  </div>`;
}
