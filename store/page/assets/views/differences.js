// Differences of two values, field by field and word by word. The server compares; nothing is compared here.
import { html, useState } from "../core/html.js";
import { visible } from "../core/format.js";

const MOST = 40;

/** `differences`: `[{pointer, a, b, only, words}]`, as the API has them. `actions(difference, place)` returns what stands beside each. */
export function Differences({ differences, isSideBySide = false, names = ["A", "B"], actions }) {
  const [most, setMost] = useState(MOST);
  return html`<div class="differences ${isSideBySide ? "is-side" : ""}">
    ${differences.slice(0, most).map((one, place) => html`<div class="difference" key=${place}>
      <div class="difference-head"><code class="pointer">${visible(one.pointer || "(all of it)")}</code>
        ${one.only && html`<span class="count">only in ${one.only === "a" ? names[0] : names[1]}</span>`}${actions && actions(one, place)}</div>
      ${isSideBySide ? html`<div class="sides"><${Side} one=${one} side="a" /><${Side} one=${one} side="b" /></div>` : html`<${Unified} one=${one} />`}
    </div>`)}
    ${differences.length > most && html`<button class="quiet"
      onClick=${() => setMost(most + 200)}>Show ${Math.min(200, differences.length - most)} more of ${differences.length}</button>`}
  </div>`;
}

const written = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

function Unified({ one }) {
  if (one.words) return html`<div class="words" dir="auto">${one.words.map(([fate, text], place) => html`<${Word} key=${place} fate=${fate} text=${text} />`)}</div>`;
  return html`${one.only !== "b" && html`<${Side} one=${one} side="a" />`}${one.only !== "a" && html`<${Side} one=${one} side="b" />`}`;
}

function Side({ one, side }) {
  const isAbsent = one.only && one.only !== side;
  if (isAbsent) return html`<div class="diff-side is-absent">absent</div>`;
  const shown = { a: ["same", "gone"], b: ["same", "come"] }[side];
  return html`<div class="diff-side ${side === "a" ? "is-gone" : "is-come"}" dir="auto">
    <span class="sign">${side === "a" ? "−" : "+"}<span class="visually-hidden">${side === "a" ? " before: " : " after: "}</span></span>
    ${one.words
      ? one.words.filter(([fate]) => shown.includes(fate)).map(([fate, text], place) => html`<${Word} key=${place} fate=${fate} text=${text} />`)
      : visible(written(one[side]))}
  </div>`;
}

function Word({ fate, text }) {
  if (fate === "gone") return html`<del>${visible(text)}</del>`;
  return fate === "come" ? html`<ins>${visible(text)}</ins>` : html`<span>${visible(text)}</span>`;
}
