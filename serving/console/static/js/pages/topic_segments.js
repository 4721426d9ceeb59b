// Diagram of a topic's segments with their locations and the cursors, and a table of the reasons why each is kept.

import { get } from "../api.js";
import { el, svg } from "../dom.js";
import { ago, bytes, count, plural, time } from "../format.js";
import { quirePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { muted, panel, pill, table } from "../parts.js";

const WIDTH = 1000, HEIGHT = 92, GAP = 3, LEAST = 10, DRAWN_MAX = 120;
const STATES = { active: "busy", sealed: "warn", flushed: "warn", archived: "ok", released: "ok" };

export function segments(root, place) {
  const load = async (signal) => {
    const [stats, why, plan] = await Promise.all([
      get(`${topicPath(place)}/internalStats`, { signal }),
      get(`${quirePath(place)}/explain`, { signal }),
      get(`${quirePath(place)}/segments`, { signal }).catch((error) => (error.status === 403 ? null : Promise.reject(error))),
    ]);
    return { stats, why, plan };
  };
  return live(root, load, view);
}

function view({ stats, why, plan }) {
  const reasons = new Map(why.segments.map((one) => [one.ledgerId, one]));
  const ledgers = stats.ledgers;
  const gone = ledgers[0]?.firstIndex ?? 0;
  return [
    panel("Segments, oldest first", [picture(ledgers, stats.cursors, gone), legend(gone)], {
      note: `${plural(ledgers.length, "segment")}, ${plural(stats.numberOfMessages, "message")}, ${bytes(stats.totalSize)}; last confirmed entry ${stats.lastConfirmedEntry}`,
    }),
    panel("Why segments are kept", rows([...ledgers].reverse(), reasons, why.nowMs)),
    plan ? panel("Spark read plan", spark(plan)) : null,
  ];
}

/** Draw two lanes, copies on bookies and in the archive, with a mark at each durable cursor's position. */
function picture(all, cursors, gone) {
  const ledgers = all.slice(-DRAWN_MAX);
  const left = gone || all.length > ledgers.length ? 40 : 0;
  const total = ledgers.reduce((sum, one) => sum + one.size, 0) || 1;
  const room = WIDTH - left - ledgers.length * (GAP + LEAST);
  const drawn = svg("svg", { class: "segments", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": plural(all.length, "segment") });
  if (left) drawn.append(svg("rect", { class: "gone", x: 0, y: 22, width: left - 6, height: 60, rx: 3 }, svg("title", {}, `${plural(gone, "message")} deleted`)));
  const at = new Map();
  let x = left;
  for (const one of ledgers) {
    const width = Math.max(2, LEAST + (room * one.size) / total);
    at.set(one.ledgerId, [x, width, one.entries]);
    const said = `segment ${one.ledgerId}, ${one.state}: ${plural(one.messages, "message")}, ${bytes(one.size)}`;
    const lane = (there, y, kind) => svg("rect", { class: there ? kind : "none", x, y, width, height: 28, rx: 3 }, svg("title", {}, said));
    drawn.append(lane(one.onBookies, 22, one.state === "active" ? "active" : one.state), lane(one.archive !== null, 54, "archived"));
    x += width + GAP;
  }
  for (const [name, cursor] of Object.entries(cursors)) {
    const [ledger, entry] = cursor.markDeletePosition.split(":").map(Number);
    const [start, width, entries] = at.get(ledger) ?? [ledger < (ledgers[0]?.ledgerId ?? 0) ? left : x, 0, 0];
    const mark = Math.min(WIDTH - 6, Math.max(6, start + (entries ? (width * (entry + 1)) / entries : 0)));
    drawn.append(svg("path", { class: "mark", d: `M${mark - 5} 6h10l-5 10z` }, svg("title", {}, `${name} has acknowledged up to ${cursor.markDeletePosition}`)));
  }
  return el("div", { class: "picture" }, drawn);
}

function legend(gone) {
  const entry = (kind, text) => el("span", {}, svg("svg", { class: "segments key", viewBox: "0 0 14 14", "aria-hidden": "true" }, svg("rect", { class: kind, width: 14, height: 14, rx: 3 })), text);
  return el(
    "p",
    { class: "legend quiet" },
    entry("active", "active"),
    entry("sealed", "sealed"),
    entry("flushed", "flushed"),
    entry("archived", "archived"),
    entry("none", "no copy"),
    gone ? entry("gone", "deleted") : null,
    el("span", {}, "upper row: bookies · lower row: archive · ▾ subscription"),
  );
}

const rows = (ledgers, reasons, nowMs) =>
  table(
    "Segments, newest first",
    [
      { title: "Segment", kind: "name", cell: (one) => [el("strong", {}, one.ledgerId), muted(` created ${time(one.createdMs)}`)] },
      { title: "State", cell: (one) => [pill(one.state, STATES[one.state] ?? "none"), one.damage ? pill("damaged", "bad") : null, one.lostMessages ? pill(`${count(one.lostMessages)} lost`, "bad") : null] },
      { title: "Messages", kind: "num", cell: (one) => count(one.messages) },
      { title: "Size", kind: "num", cell: (one) => bytes(one.size) },
      { title: "Kept because", kind: "why", cell: (one) => because(reasons.get(one.ledgerId)?.keptBy, nowMs) },
      { title: "Copies", kind: "why", cell: (one) => because([reasons.get(one.ledgerId)?.bookies].filter(Boolean), nowMs) },
    ],
    ledgers,
    (one) => one.ledgerId,
    "There are no segments yet.",
  );

function because(all, nowMs) {
  if (!all?.length) return muted("not retained; deletion is due");
  return all.map((one) => el("p", {}, one.why, one.untilMs ? muted(`; ${one.untilMs > nowMs ? ago(one.untilMs, nowMs) : "due"}`) : null));
}

function spark(plan) {
  if (!plan.segments.length) return el("p", { class: "empty" }, "There is no data to read yet.");
  const from = (where) => plan.segments.filter((one) => (one.archive !== null) === where);
  const sum = (some) => `${plural(some.length, "segment")}, ${bytes(some.reduce((all, one) => all + one.bytes, 0))}`;
  return el("p", { class: "panel-text" }, `Archive: ${sum(from(true))}; bookies, through the broker: ${sum(from(false))}; up to ${plan.end.ledger}:${plan.end.entry}.`);
}
