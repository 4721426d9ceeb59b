// Components of pages: tables, tiles, status pills, meters, sparklines.

import { el, svg } from "./dom.js";

/** Status pill with a text. `kind` is ok, warn, bad, busy or none; it sets only the colour and adds no information. */
export const pill = (text, kind = "none") => el("span", { class: `pill ${kind}` }, text);

const WAITS = [
  ["no consumer is connected", "no consumer"],
  ["delayed", "delayed"],
  ["rate limited", "rate limited"],
  ["a read is in progress", "reading"],
];

/** Return the short form of a `blockedReason`, and whether it needs an operator's attention. */
export function waiting(reason) {
  const known = WAITS.find(([text]) => reason.startsWith(text));
  return known ? { word: known[1], isTrouble: false } : { word: "blocked", isTrouble: true };
}

export function waitPill(reason) {
  const { word, isTrouble } = waiting(reason);
  return el("span", { class: `pill ${isTrouble ? "warn" : "none"}`, title: reason }, word);
}

export const muted = (...children) => el("span", { class: "quiet" }, children);

export const code = (text) => el("code", {}, text);

export function button(text, act, attributes = {}) {
  return el("button", { type: "button", onclick: act, ...attributes }, text);
}

/** Table of `columns` `{ title, cell(row), kind }`; a `kind` of `wide` is hidden on phones. `key(row)` is unique. */
export function table(caption, columns, rows, key, empty = "There is nothing to show.") {
  if (!rows.length) return el("p", { class: "empty" }, empty);
  return el(
    "div",
    { class: "scroll", tabindex: 0, role: "group", "aria-label": caption },
    el(
      "table",
      {},
      el("caption", { class: "unseen" }, caption),
      el("thead", {}, el("tr", {}, columns.map((one) => el("th", { scope: "col", class: one.kind }, one.title)))),
      el(
        "tbody",
        {},
        rows.map((row) =>
          el(
            "tr",
            { "data-key": `row ${key(row)}` },
            columns.map((one) => {
              const shown = one.cell(row);
              return el("td", { class: `${one.kind ?? ""}${shown === "–" ? " nothing" : ""}`, "data-title": one.title }, shown);
            }),
          ),
        ),
      ),
    ),
  );
}

/** Key figure, with a sparkline of its recent values. */
export function tile(title, value, { note = "", curve = null, kind = "" } = {}) {
  return el(
    "div",
    { class: `tile ${kind}` },
    el("div", { class: "tile-title" }, title),
    el("div", { class: "tile-value" }, value),
    note ? el("div", { class: "tile-note" }, note) : null,
    curve ? sparkline(curve) : null,
  );
}

export const tiles = (...children) => el("div", { class: "tiles" }, children);

export function panel(title, body, { actions = [], note = "" } = {}) {
  return el(
    "section",
    { class: "panel" },
    el("div", { class: "panel-head" }, el("h2", {}, title), el("div", { class: "actions" }, actions)),
    note ? el("p", { class: "quiet panel-note" }, note) : null,
    body,
  );
}

/** List of names and values; null pairs are omitted. */
export function facts(pairs) {
  const shown = pairs.filter((pair) => pair);
  return el("dl", { class: "facts" }, shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** Usage bar; `share` is from 0 to 1. */
export function meter(share, label) {
  const width = Math.max(0, Math.min(1, share || 0)) * 100;
  return el(
    "span",
    { class: "meter-row" },
    svg(
      "svg",
      { class: `meter ${share > 0.95 ? "bad" : share > 0.85 ? "warn" : ""}`, viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { class: "meter-back", width: 100, height: 8 }),
      svg("rect", { class: "meter-front", width, height: 8 }),
    ),
    el("span", {}, label),
  );
}

const WIDTH = 120, HEIGHT = 28;

export function sparkline(values) {
  const most = Math.max(...values, 1e-9), step = WIDTH / Math.max(1, LENGTH - 1), from = LENGTH - values.length;
  const points = values.map((one, at) => `${((from + at) * step).toFixed(1)},${(HEIGHT - 2 - (one / most) * (HEIGHT - 4)).toFixed(1)}`);
  return svg(
    "svg",
    { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", "aria-hidden": "true" },
    values.length > 1 ? svg("polyline", { points: points.join(" ") }) : null,
  );
}

const LENGTH = 60;

/** Recent values of named numbers, kept while a page is open. */
export class History {
  #values = new Map();

  add(name, value) {
    const known = this.#values.get(name) ?? [];
    known.push(value);
    if (known.length > LENGTH) known.shift();
    this.#values.set(name, known);
    return known;
  }
}

/** Tabs of a page; the current one has `aria-current`. */
export function tabs(label, entries, current) {
  return el(
    "nav",
    { class: "tabs", "aria-label": label },
    entries.map(([name, title, href]) =>
      el("a", { href, "data-key": `tab ${name}`, "aria-current": name === current ? "page" : null }, title),
    ),
  );
}

export function crumbs(...entries) {
  return el(
    "nav",
    { class: "crumbs", "aria-label": "Breadcrumb" },
    entries.map(([title, href]) => (href ? el("a", { href }, title) : el("span", { "aria-current": "page" }, title))),
  );
}
