// Stacked bars over time, drawn as SVG. A drag zooms, the keys + - and arrows do the same; a table has the same numbers.
import { html, useEffect, useRef, useState } from "../core/html.js";
import { shortDay, shortTime, visible } from "../core/format.js";
import { useWidth } from "../core/parts.js";

const HEIGHT = 260;
const PAD = { left: 64, right: 8, top: 10 };
const DRAWN = 226; // of the height, by bars
export const COLOURS = 8;

/** Round steps of an axis from 0 to at least `max`. */
export function ticks(max, wanted = 4) {
  if (!(max > 0)) return [0, 1];
  const rough = max / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= rough);
  return Array.from({ length: Math.ceil(max / step - 1e-9) + 1 }, (_, place) => place * step);
}

/**
 * `buckets`: `[{at, values: Map(name → number)}]` in the order of time, none left out. `series`: names, the largest first.
 * `onZoom(first, last)` gets the times of the first and the last bucket of a drag.
 */
export function StackedBars({ buckets, series, format, onZoom, label, isHourly }) {
  const root = useRef(null);
  const width = useWidth(root, 800);
  const [drag, setDrag] = useState(null);
  const [hover, setHover] = useState(null);
  const inner = Math.max(10, width - PAD.left - PAD.right);
  const step = inner / buckets.length;
  const totals = buckets.map((bucket) => [...bucket.values.values()].reduce((sum, value) => sum + value, 0));
  const axis = ticks(Math.max(0, ...totals));
  const top = axis[axis.length - 1];
  const y = (value) => PAD.top + DRAWN * (1 - value / top);
  const placeOf = (event) => Math.max(0, Math.min(buckets.length - 1, Math.floor((event.clientX - root.current.getBoundingClientRect().left - PAD.left) / step)));
  const finish = (event) => {
    const drawn = [drag[0], placeOf(event)];
    if (drawn[0] !== drawn[1]) onZoom(buckets[Math.min(...drawn)].at, buckets[Math.max(...drawn)].at);
    setDrag(null);
  };
  useEffect(() => {
    if (!drag) return;
    addEventListener("pointerup", finish);
    return () => removeEventListener("pointerup", finish);
  });
  const nameOf = ({ at }) => (isHourly ? shortTime(at) : shortDay(at, "UTC"));
  const every = Math.max(1, Math.ceil(buckets.length / Math.max(2, Math.floor(inner / 90))));
  const shown = hover === null ? null : buckets[hover];
  return html`<figure class="chart" ref=${root} onPointerLeave=${() => setHover(null)}>
    <svg width=${width} height=${HEIGHT} role="img" aria-label=${label} onPointerDown=${(event) => event.button === 0 && setDrag([placeOf(event), placeOf(event)])}
      onPointerMove=${(event) => { const place = placeOf(event); setHover(place); if (drag) setDrag([drag[0], place]); }}>
      ${axis.map((value) => html`<g key=${value}><line class="grid" x1=${PAD.left} x2=${PAD.left + inner} y1=${y(value)} y2=${y(value)} /><text
        class="tick-y" x=${PAD.left - 8} y=${y(value) + 4}>${format(value)}</text></g>`)}
      ${buckets.map((bucket, place) => {
        let base = 0;
        const x = PAD.left + place * step + Math.min(2, step * 0.1);
        const bar = Math.max(1, step - Math.min(4, step * 0.2));
        return html`<g key=${bucket.at}>
          ${series.map((name, colour) => {
            const value = bucket.values.get(name) || 0;
            if (!value) return null;
            const start = base;
            base += value;
            return html`<rect key=${name} class="s${Math.min(colour, COLOURS) + 1}" x=${x} width=${Math.min(bar, 64)} y=${y(base)}
              height=${Math.max(0.5, y(start) - y(base))} />`;
          })}
          ${place % every === 0 && html`<text class="tick-x" x=${x} y=${HEIGHT - 7}>${nameOf(bucket)}</text>`}
        </g>`;
      })}
      ${hover !== null && html`<rect class="hover" x=${PAD.left + hover * step} width=${step} y=${PAD.top} height=${DRAWN} />`}
      ${drag && html`<rect class="zoom" x=${PAD.left + Math.min(...drag) * step} width=${(Math.abs(drag[1] - drag[0]) + 1) * step} y=${PAD.top}
        height=${DRAWN} />`}
    </svg>
    ${shown && shown.values.size > 0 && html`<figcaption
      class="tip ${hover > buckets.length / 2 ? "is-left" : ""}"><strong>${nameOf(shown)}</strong> ${format(totals[hover])}
      ${series.map((name, colour) => [name, colour, shown.values.get(name)]).filter(([, , value]) => value)
        .sort((a, b) => b[2] - a[2]).slice(0, 8)
        .map(([name, colour, value]) => html`<div key=${name}>
          <span class="swatch s${Math.min(colour, COLOURS) + 1}"></span><span class="cut">${visible(name)}</span><span class="num">${format(value)}</span></div>`)}</figcaption>`}
  </figure>`;
}

/** The colours of the series that have something. */
export const Legend = ({ series, totals, format }) => html`<ul class="legend">${series.map((name, colour) => totals.get(name) > 0 && html`<li key=${name}><span
  class="swatch s${Math.min(colour, COLOURS) + 1}"></span>${visible(name)} <span class="count">${format(totals.get(name))}</span></li>`)}</ul>`;
