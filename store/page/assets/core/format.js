// Write numbers and times. A missing value is "–", never "0" or "null".
const NONE = "–";
const locale = "en-GB";

const number = new Intl.NumberFormat(locale);

/** 1,234,567 */
export const count = (value) => (value == null ? NONE : number.format(value));

/** $0.0123: two digits from a dollar on, two significant ones below. */
export function money(value) {
  if (value == null) return NONE;
  if (value === 0) return "$0";
  if (value >= 1) return `$${value.toLocaleString(locale, { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  if (value < 0.000001) return "<$0.000001";
  return `$${value.toFixed(Math.min(8, Math.max(2, 1 - Math.floor(Math.log10(value)))))}`;
}

/** 812 · 12.3k · 4.1M */
export function tokens(value) {
  if (value == null) return NONE;
  if (value < 1000) return String(value);
  if (value < 999_950) return `${(value / 1000).toFixed(value < 99_950 ? 1 : 0)}k`;
  return `${(value / 1_000_000).toFixed(value < 99_950_000 ? 1 : 0)}M`;
}

/** 38 ms · 1.24 s · 2 m 05 s · 3 h 12 m */
export function duration(ms) {
  if (ms == null || Number.isNaN(ms)) return NONE;
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 999.5) return `${Math.round(ms)} ms`;
  if (ms < 59_995) return `${(ms / 1000).toFixed(ms < 9995 ? 2 : 1)} s`;
  const seconds = Math.round(ms / 1000);
  const two = (value) => String(value).padStart(2, "0");
  if (seconds < 3600) return `${Math.floor(seconds / 60)} m ${two(seconds % 60)} s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${two(Math.floor((seconds % 3600) / 60))} m` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** @type {[string, number][]} */
const UNITS = [["GB", 1 << 30], ["MB", 1 << 20], ["KB", 1 << 10]];

/** 812 B · 4.2 KB · 5.0 MB */
export function bytes(value) {
  if (value == null) return NONE;
  for (const [unit, size] of UNITS) {
    if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  }
  return `${value} B`;
}

/** 12.3 % of a part between 0 and 1. */
export const percent = (part) => (part == null ? NONE : `${(part * 100).toFixed(part < 0.1 ? 1 : 0)} %`);

const clock = new Intl.DateTimeFormat(locale, { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayClock = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" });
const yearDay = new Intl.DateTimeFormat(locale, { day: "numeric", month: "short", year: "numeric" });

/** A time in the reader's zone: 14:03:12 today, 24 Nov 14:03 this year, 24 Nov 2025 before. */
export function time(text, now = new Date()) {
  if (!text) return NONE;
  const when = new Date(text);
  if (when.toDateString() === now.toDateString()) return clock.format(when);
  return when.getFullYear() === now.getFullYear() ? dayClock.format(when).replace(",", "") : yearDay.format(when);
}

/** A day; one that the API sums up is one of "UTC", wherever the reader is. */
export const shortDay = (text, timeZone) => new Date(text).toLocaleDateString(locale, { day: "numeric", month: "short", timeZone });

/** A time without its seconds. */
export const shortTime = (text) => time(text).replace(/(:..):..$/, "$1");

/** "12 s ago", for times of today. */
export function ago(text, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - Date.parse(text)) / 1000));
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  return seconds < 86_400 ? `${Math.floor(seconds / 3600)} h ago` : `${Math.floor(seconds / 86_400)} d ago`;
}

/** The exact value, for the title of a time. */
export const exactTime = (text) => (text ? `${text} (UTC)` : "");

/** Milliseconds between two RFC 3339 times. */
export const between = (start, end) => (start && end ? Date.parse(end) - Date.parse(start) : null);

const CONTROLS = /[\u0000-\u0008\u000b-\u001f\u007f\u0080-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\u{e0000}-\u{e007f}]/gu;

/** Make characters visible that are not: controls, and marks that change the direction or hide text. */
export const visible = (text) =>
  text.replace(CONTROLS, (char) => {
    const code = char.codePointAt(0);
    if (char === "\r") return "␍";
    return code < 0x20 ? String.fromCharCode(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });

/** What became of an answer that is not whole or not the API's; an empty text for any other. `playhead show` has the same words. */
export function outcomeWord({ outcome, status, failed, complete, answer_state: state }) {
  if (failed && outcome === "completed" && (status ?? 400) < 400) return "failed";
  if (outcome === "refused" || !complete) return outcome === "completed" ? "truncated" : outcome.replace("_", " ");
  return state === "partial" ? "partial" : "";
}
