// The waterfall of a run: when each step waited, streamed and ended, in lanes, with what the agent did in between.
import { html, useEffect, useMemo, useRef, useState } from "../core/html.js";
import { count, duration, money, tokens, visible } from "../core/format.js";
import { useKeys } from "../core/keys.js";
import { useWidth } from "../core/parts.js";

const LANE = 26;
const BAR = 14;
const AXIS = 20;
const LEAST = 2;
const LEAST_SPAN = 1;
const MINIMAP = 26;

/** Steps that are drawn one by one. More of them are drawn together, a path for each tone: they are too narrow for details. */
const MOST_SINGLE = 160;

/** Where a step ends on the drawing: one whose end was not seen ends with the last thing that was. */
export const stepEnd = (step) => step.end_ms ?? step.first_byte_ms ?? step.start_ms;

const lastAttempt = (step) => step.attempts[step.attempts.length - 1];
const clamp = (value, least, most) => Math.min(most, Math.max(least, value));

/** Sizes of round steps from 10 seconds on, in seconds. */
const LONG_TICKS = [10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14_400, 43_200];

/** Round steps for the marks of the axis.
 * @returns {[number, string][]} */
function ticks(from, to, most) {
  const rough = (to - from) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(Math.max(rough, 1e-6)));
  const long = LONG_TICKS.map((seconds) => seconds * 1000);
  const size = (rough > 5000 ? long : [1, 2, 5, 10].map((one) => one * power)).find((one) => one >= rough) ?? Math.ceil(rough / 86_400_000) * 86_400_000;
  /** @type {[number, string][]} */
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

/** One path for many bars `{from, to, lane}`: thousands of steps are a few elements. */
function barsPath(bars, scale, top, height) {
  return bars.map(({ from, to, lane }) => {
    const width = Math.max(1, scale(to) - scale(from)).toFixed(1);
    return `M${scale(from).toFixed(1)} ${top(lane).toFixed(1)}h${width}v${height}h-${width}z`;
  }).join("");
}

const asBar = (step) => ({ from: step.start_ms, to: stepEnd(step), lane: step.lane });

function Minimap({ timeline, range, zoom, moment, onZoom, width }) {
  const size = range[1] - range[0];
  const scale = (ms) => ((ms - range[0]) / size) * width;
  const [fine, bad] = useMemo(() => {
    const lanes = Math.max(1, timeline.lanes.length);
    const top = (lane) => 2 + (lane * (MINIMAP - 4)) / lanes;
    const draw = (steps) => barsPath(steps.map(asBar), scale, top, Math.max(1, (MINIMAP - 4) / lanes - 1));
    return [draw(timeline.steps.filter((step) => !step.failed)), draw(timeline.steps.filter((step) => step.failed))];
  }, [timeline, width, range[0], range[1]]);
  const isDragging = useRef(false);
  const isWhole = zoom[0] <= range[0] && zoom[1] >= range[1];
  const move = (event) => {
    if (!isDragging.current) return;
    const shown = zoom[1] - zoom[0];
    const at = range[0] + ((event.clientX - event.currentTarget.getBoundingClientRect().left) / width) * size;
    const from = clamp(at - shown / 2, range[0], range[1] - shown);
    onZoom([from, from + shown]);
  };
  const begin = (event) => {
    if (isWhole) return;
    isDragging.current = true;
    event.currentTarget.setPointerCapture(event.pointerId);
    move(event);
  };
  const box = (name, from, to) => html`<rect class=${name} x=${from} y="0" width=${Math.max(0, to - from)} height=${MINIMAP} />`;
  const [from, to] = zoom.map(scale);
  return html`<svg class="minimap" width=${width} height=${MINIMAP} aria-hidden="true"
    onPointerDown=${begin} onPointerMove=${move} onPointerUp=${() => { isDragging.current = false; }}>
    <path class="mini-bars" d=${fine} /><path class="mini-bad" d=${bad} />
    ${timeline.gaps.map((gap) => box("mini-gap", scale(gap.at_ms) - 1, scale(gap.at_ms) + 1))}
    ${!isWhole && html`${box("mini-out", 0, from)}${box("mini-out", to, width)}${box("mini-view", from, Math.max(from + 3, to))}`}
    ${moment !== null && box("moment", scale(moment), scale(moment) + 1.5)}
  </svg>`;
}

/** What a step is in one sentence, for those who do not see the drawing. */
function describeStep(step) {
  const words = [`Step ${step.step}`, visible(step.label), step.kind];
  if (step.failed) words.push(`failed${step.status ? ` with ${step.status}` : ""}`);
  words.push(`begins at ${shortTime(step.start_ms)}`, `takes ${duration(stepEnd(step) - step.start_ms)}`);
  if (step.tries > 1) words.push(`${step.tries} attempts`);
  return words.join(", ");
}

const toneOf = (step) => (step.failed ? "is-bad" : `is-${step.kind === "retrieval" ? "tool" : step.kind}`);

/** The time until the first byte, and the time from it on: each `[from, to]`. */
function phasesOf(step) {
  const end = stepEnd(step);
  const first = step.first_byte_ms === null ? end : Math.min(end, step.first_byte_ms);
  return { wait: [lastAttempt(step)?.start_ms ?? step.start_ms, first], stream: [first, end] };
}

function Crowd({ steps, scale, top, moment }) {
  const groups = new Map();
  for (const step of steps) {
    const tone = `${toneOf(step)}${moment !== null && step.start_ms > moment ? " is-dim" : ""}`;
    for (const [kind, [from, to]] of Object.entries(phasesOf(step))) {
      if (kind === "stream" && from >= to) continue;
      const key = `${tone}|${kind}`;
      groups.set(key, groups.get(key) || []);
      groups.get(key).push({ from, to, lane: step.lane });
    }
  }
  return html`<g class="crowd" aria-hidden="true">${[...groups].map(([key, bars]) => {
    const [tone, kind] = key.split("|");
    return html`<g key=${key} class="step ${tone}"><path class="bar-${kind}" d=${barsPath(bars, scale, (lane) => top(lane) + (LANE - BAR) / 2, BAR)} /></g>`;
  })}</g>`;
}

/** The step at a place of the drawing: the one under it, else the nearest of the lane within some pixels. */
function stepAt(steps, lane, ms, reach) {
  let best = null;
  let distance = reach;
  for (const step of steps) {
    if (step.lane !== lane) continue;
    const away = Math.max(0, step.start_ms - ms, ms - stepEnd(step));
    if (away < distance) { best = step; distance = away; }
    if (away === 0) return step;
  }
  return best;
}

function StepBar({ step, scale, y, isSelected, isDim, place, count: size }) {
  const { wait, stream } = phasesOf(step);
  const from = scale(step.start_ms);
  const to = Math.max(from + LEAST, scale(stepEnd(step)));
  const [begun, first] = [scale(wait[0]), Math.min(to, scale(wait[1]))];
  const top = y + (LANE - BAR) / 2;
  const hasStream = stream[0] < stream[1];
  const attempt = (one, at) => {
    const [start, end] = [scale(one.start_ms), scale(one.end_ms ?? one.first_byte_ms ?? one.start_ms)];
    return html`<rect key=${at} class=${one.poll ? "bar-poll" : "bar-retry"} x=${start} y=${top + 2} width=${Math.max(LEAST, end - start)} height=${BAR - 4} rx="1.5" />`;
  };
  return html`<g class="step ${toneOf(step)} ${isSelected ? "is-selected" : ""} ${isDim ? "is-dim" : ""}" id="wf-${step.step}" role="option"
      aria-selected=${isSelected} aria-posinset=${place + 1} aria-setsize=${size} aria-label=${describeStep(step)}>
    ${step.attempts.length > 1 && html`<line class="retry-line" x1=${from} x2=${begun} y1=${top + BAR / 2} y2=${top + BAR / 2} />`}
    ${step.attempts.slice(0, -1).map(attempt)}
    <rect class="bar-wait" x=${begun} y=${top} width=${Math.max(first - begun, hasStream ? 0.5 : LEAST)} height=${BAR} rx="2" />
    ${hasStream && html`<rect class="bar-stream" x=${first} y=${top} width=${Math.max(to - first, 1)} height=${BAR} rx="2" />`}
    ${step.failed && html`<path class="fail-mark" d="M${to - 4} ${top - 3}h8l-4 6z" />`}
    ${step.end_ms === null && html`<path class="open-end" d="M${to} ${top}l4 ${BAR / 2}l-4 ${BAR / 2}" />`}
    ${isSelected && html`<rect class="ring" x=${from - 2} y=${top - 2.5} width=${to - from + 4} height=${BAR + 5} rx="3.5" />`}
  </g>`;
}

/** What is written on a bar, in the longer of its two tones: as much of its name as there is room for, and its attempts. It is no part of the
    option, whose name is the whole. */
function BarText({ step, scale, y, width }) {
  const { wait, stream } = phasesOf(step);
  const [waits, streams] = [wait, stream].map((times) => times.map((ms) => clamp(scale(ms), 0, width)));
  const isStream = streams[1] - streams[0] > waits[1] - waits[0];
  const [from, to] = isStream ? streams : waits;
  const room = Math.floor((to - from - 8) / 6.2);
  const label = visible(step.label);
  const top = y + (LANE - BAR) / 2;
  return html`
    ${step.tries > 1 && html`<text class="tries" x=${scale(wait[0]) + 3} y=${top - 1}>×${step.tries}</text>`}
    ${room >= 8 && html`<text class="bar-label ${isStream ? "on-stream" : ""}" x=${from + 5} y=${top + BAR - 3.5}>${label.length > room ? `${label.slice(0, room - 1)}…` : label}</text>`}`;
}

function Tip({ hover: { step, x, y }, width }) {
  const waited = step.first_byte_ms === null ? null : step.first_byte_ms - (lastAttempt(step)?.start_ms ?? step.start_ms);
  const { input_tokens: input, output_tokens: output } = step.usage;
  const rows = {
    begins: shortTime(step.start_ms),
    takes: duration(stepEnd(step) - step.start_ms),
    "to first byte": waited !== null && duration(waited),
    "thinking before": step.thinking_ms >= 1 && duration(step.thinking_ms),
    attempts: step.tries > 1 && step.tries,
    tokens: input !== null && `${tokens(input)} in, ${tokens(output)} out`,
    cost: step.kind === "model" && (step.unpriced ? "unknown" : money(step.cost_usd)),
  };
  return html`<div class="tip" role="presentation" style=${{ left: `${clamp(x + 12, 4, width - 268)}px`, top: `${y + 18}px` }}>
    <strong>${step.step}. ${visible(step.label)}</strong>
    ${step.failed && html`<p class="tip-bad">${step.status ?? "no response"}${step.error ? `: ${visible(step.error).slice(0, 160)}` : ""}</p>`}
    <dl>${Object.entries(rows).map(([label, value]) => value !== false && html`<div key=${label}><dt>${label}</dt><dd>${value}</dd></div>`)}</dl>
  </div>`;
}

const LEGEND = { wait: "waits", stream: "receives", think: "agent thinks", tool: "tool", bad: "failed", gap: "not recorded" };

/** An arrow from the end of a step to the beginning of another; nothing where there is no room for one. */
function Arrow({ from, to, scale, top }) {
  const [x1, y1, x2, y2] = [scale(stepEnd(from)), top(from.lane) + LANE / 2, scale(to.start_ms), top(to.lane) + LANE / 2];
  if (y1 === y2 && x2 - x1 < 18) return null;
  const lift = y1 === y2 ? LANE * 0.75 : 0;
  return html`<path class="arrow" marker-end="url(#tip-of-arrow)" d="M${x1} ${y1}C${x1 + 12} ${y1 - lift} ${x2 - 12} ${y2 - lift} ${x2} ${y2}" />`;
}

/** `range` and `zoom` are `[from, to]` in milliseconds, of all steps and of those in sight (or null); `moment` is a time or null. */
export function Waterfall({ timeline, range, selected, moment, zoom, links, onSelect, onOpen, onZoom }) {
  const { steps, gaps } = timeline;
  const root = useRef(null);
  const width = useWidth(root) && Math.max(240, root.current.clientWidth);
  const [hover, setHover] = useState(null);
  const [band, setBand] = useState(null);
  useKeys({ Escape: zoom ? { label: "show the whole run", run: () => onZoom(null) } : undefined });
  const view = zoom || range;
  const span = Math.max(LEAST_SPAN, view[1] - view[0]);
  const scale = (ms) => ((ms - view[0]) / span) * width;
  const lanes = Math.max(1, timeline.lanes.length);
  const hasActors = timeline.lanes.some((lane) => lane.actor !== null);
  // The name of an actor stands above the bars of its lane.
  const head = hasActors ? 13 : 0;
  const pitch = LANE + head;
  const height = AXIS + lanes * pitch + 4;
  const top = (lane) => AXIS + lane * pitch + head;
  const numbers = useMemo(() => new Map(steps.map((step, at) => [step.step, at])), [timeline]);
  const drawn = [timeline, view[0], view[1], width];
  const inView = useMemo(() => steps.filter((step) => stepEnd(step) >= view[0] && step.start_ms - step.thinking_ms <= view[1]), drawn);
  // Thousands of thinking times on a few hundred pixels are one path.
  const thinking = useMemo(() => {
    const long = inView.filter((step) => (step.thinking_ms / span) * width >= 1.5);
    const bars = long.map((step) => ({ from: step.start_ms - step.thinking_ms, to: step.start_ms, lane: step.lane }));
    return barsPath(bars, scale, (lane) => top(lane) + 5, LANE - 10);
  }, drawn);
  const isCrowd = inView.length > MOST_SINGLE;
  const crowd = useMemo(() => isCrowd && html`<${Crowd} steps=${inView} scale=${scale} top=${top} moment=${moment} />`, [...drawn, moment]);
  const placeOf = (event) => clamp(event.clientX - root.current.getBoundingClientRect().left, 0, width);
  const under = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const lane = Math.floor((event.clientY - box.top - AXIS) / pitch);
    return stepAt(inView, lane, view[0] + ((event.clientX - box.left) / width) * span, (6 / width) * span);
  };
  const begin = (event) => {
    if (event.button === 0 && event.pointerType !== "touch") setBand({ from: placeOf(event), to: placeOf(event) });
  };
  const move = (event) => {
    if (band) {
      if (Math.abs(placeOf(event) - band.from) > 5) event.currentTarget.setPointerCapture(event.pointerId);
      setBand({ ...band, to: placeOf(event) });
      setHover(null);
      return;
    }
    const box = root.current.getBoundingClientRect();
    const step = under(event);
    if (step || hover) setHover(step && { step, x: event.clientX - box.left, y: event.clientY - box.top });
  };
  const end = (event) => {
    const [from, to] = band ? [band.from, band.to].sort((one, other) => one - other) : [0, 0];
    setBand(null);
    if (to - from < 6) {
      const step = under(event);
      if (step) onSelect(step.step);
    } else if (((to - from) / width) * span >= LEAST_SPAN) {
      onZoom([from, to].map((x) => view[0] + (x / width) * span));
    }
  };
  const onKeyDown = (event) => {
    const by = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!by || !steps.length) return;
    event.preventDefault();
    onSelect(steps[clamp((numbers.get(selected) ?? -1) + by, 0, steps.length - 1)].step);
  };
  const arrows = links.map((pair) => pair.map((step) => steps[numbers.get(step)])).filter(([one, other]) => one && other);
  const isInView = (ms) => ms >= view[0] && ms <= view[1];
  const single = isCrowd ? inView.filter((step) => step.step === selected) : inView;
  const drawing = () => html`
    <svg class="wf" role="none" width=${width} height=${height} onPointerDown=${begin} onPointerMove=${move} onPointerUp=${end}
      onPointerCancel=${() => setBand(null)} onPointerLeave=${() => setHover(null)}
      onDblClick=${(event) => { const step = under(event); if (step) onOpen(step); }}>
      <defs>
        <pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect class="hatch" width="1.4" height="5" /></pattern>
        <marker id="tip-of-arrow" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" orient="auto"><path
          class="arrow-tip" d="M0 0l6 3l-6 3z" /></marker>
      </defs>
      <g aria-hidden="true">
        ${Array.from({ length: lanes }, (_, lane) => html`<rect key=${lane} class="lane ${lane % 2 ? "is-odd" : ""}" x="0" y=${top(lane) - head} width=${width}
          height=${pitch} />`)}
        ${ticks(view[0], view[1], width / 110).map(([at, label]) => html`<g key=${at}>
          <line class="tick" x1=${scale(at)} x2=${scale(at)} y1=${AXIS - 5} y2=${height} />${scale(at) + label.length * 6 < width
            && html`<text class="tick-label" x=${scale(at) + 3} y="12">${label}</text>`}</g>`)}
        <path class="think" d=${thinking} />
      </g>
      ${crowd}
      ${single.map((step) => html`<${StepBar} key=${step.step} step=${step}
        scale=${scale} y=${top(step.lane)} isSelected=${step.step === selected} isDim=${moment !== null && step.start_ms > moment}
        place=${numbers.get(step.step)} count=${steps.length} />`)}
      <g aria-hidden="true">
        ${single.map((step) => html`<${BarText} key=${step.step} step=${step} scale=${scale} y=${top(step.lane)} width=${width} />`)}
        ${arrows.map(([from, to]) => html`<${Arrow} key=${`${from.step}-${to.step}`} from=${from} to=${to} scale=${scale} top=${top} />`)}
        ${gaps.filter((gap) => isInView(gap.at_ms)).map((gap, at) => html`<g key=${at} class="gap">
          <line x1=${scale(gap.at_ms)} x2=${scale(gap.at_ms)} y1=${AXIS - 6} y2=${height} /><path d="M${scale(gap.at_ms) - 5} ${AXIS - 8}h10l-5 7z" />
          <title>${`${count(gap.count)} not recorded: ${visible(gap.reason)}`}</title></g>`)}
        ${moment !== null && isInView(moment) && html`<line class="moment" x1=${scale(moment)} x2=${scale(moment)} y1="0" y2=${height} />`}
        ${hasActors && timeline.lanes.map(({ actor }, at) => actor !== null && html`<text key=${at}
          class="lane-label" x="3" y=${top(at) - 1}>${visible(actor).slice(0, 40)}</text>`)}
        ${band && html`<rect class="band" x=${Math.min(band.from, band.to)} y="0" width=${Math.abs(band.to - band.from)} height=${height} />`}
      </g>
    </svg>`;
  return html`<section class="waterfall" aria-label="When each step ran">
    <div class="wf-legend">
      ${Object.entries(LEGEND).map(([tone, label]) => html`<span key=${tone}>
        <svg width="14" height="10" aria-hidden="true"><rect class="key-${tone}" width="14" height="10" rx="2" /></svg>${label}</span>`)}
      <span class="grow"></span>
      ${zoom ? html`<button class="quiet" onClick=${() => onZoom(null)}>${zoom.map((ms) => exactly(ms, span / 10)).join(" – ")} <kbd>Esc</kbd></button>`
        : html`<small class="wide">drag to zoom</small>`}
    </div>
    <div class="wf-root" ref=${root}>
      ${width > 0 && html`
        <${Minimap} timeline=${timeline} range=${range} zoom=${view} moment=${moment} onZoom=${onZoom} width=${width} />
        <div class="wf-scroll" tabindex="0" role="listbox" aria-label="Steps" aria-activedescendant=${selected ? `wf-${selected}` : undefined} onKeyDown=${onKeyDown}>
          ${drawing()}
        </div>
        ${hover && html`<${Tip} hover=${hover} width=${width} />`}`}
    </div>
  </section>`;
}

/** A slider through time. The address follows when the hand rests: browsers limit how often it may change. */
export function Scrubber({ range: [least, most], moment, steps, onMoment }) {
  const [value, setValue] = useState(moment ?? most);
  const timer = useRef(0);
  useEffect(() => setValue(moment ?? most), [moment, most]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const change = (ms) => {
    setValue(ms);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => onMoment(ms >= most ? null : ms), 120);
  };
  const begun = steps.filter((step) => step.start_ms <= value).length;
  const jump = (by) => {
    const places = steps.flatMap((step) => [step.start_ms, stepEnd(step)]).sort((one, other) => one - other);
    const next = by > 0 ? places.find((at) => at > value + 1e-6) : places.findLast((at) => at < value - 1e-6);
    change(next ?? (by > 0 ? most : least));
  };
  const button = (by, label, mark) => html`<button class="quiet" onClick=${() => jump(by)} aria-label=${label} title=${label}>${mark}</button>`;
  return html`<div class="scrubber">
    ${button(-1, "To the event before", "◂")}
    <input type="range" min=${least} max=${most} step=${Math.max((most - least) / 1000, 0.001)} value=${value} aria-label="Moment of the run"
      aria-valuetext=${`${duration(value)}, ${begun} of ${steps.length} steps begun`} onInput=${(event) => change(Number(event.currentTarget.value))} />
    ${button(1, "To the next event", "▸")}
    <output>${value >= most ? html`<span>end · ${duration(most)}</span>` : html`<span>${duration(value)} · ${begun}/${steps.length} steps</span>`}</output>
    ${value < most && html`<button class="quiet" onClick=${() => change(most)}>to the end</button>`}
  </div>`;
}
