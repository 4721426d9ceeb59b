// Time-series graph with a scale: the rates of the last hours.

import { el, svg } from "./dom.js";

const WIDTH = 600, HEIGHT = 120;

/** Draw `series`: `[name, values]` pairs of equal lengths, oldest value first. `scale(number)` formats a number. */
export function graph(title, series, { endMs, stepS, scale }) {
  const length = Math.max(...series.map(([, values]) => values.length));
  const most = Math.max(...series.flatMap(([, values]) => values), 1e-9);
  const x = (at) => (length > 1 ? (at * WIDTH) / (length - 1) : 0);
  const y = (value) => HEIGHT - 2 - (value / most) * (HEIGHT - 6);
  const lines = series.map(([, values], at) => svg("polyline", { class: `curve-${at}`, points: values.map((one, step) => `${x(step).toFixed(1)},${y(one).toFixed(1)}`).join(" ") }));
  const clock = (ms) => new Date(ms).toISOString().slice(11, 16);
  const startMs = endMs - (length - 1) * stepS * 1000;
  return el(
    "figure",
    { class: "graph" },
    el("figcaption", {}, el("strong", {}, title), series.map(([name, values], at) => el("span", { class: `curve-key curve-${at}` }, `${name} ${scale(values.at(-1) ?? 0)}`))),
    el("div", { class: "graph-scale" }, el("span", {}, `max ${scale(most)}`)),
    svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${title}, ${clock(startMs)} to ${clock(endMs)} UTC, max ${scale(most)}` }, lines),
    el("div", { class: "graph-scale" }, el("span", {}, `${clock(startMs)}Z`), el("span", {}, `${clock(endMs)}Z`)),
  );
}
