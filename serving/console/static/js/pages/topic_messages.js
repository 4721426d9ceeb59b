// Messages, decoded by their schemas and left where they are: the last, the first, from a place or a time, or what a
// subscription waits for. They are asked for by hand, not every few seconds.

import { get, query as asQuery, subscriptionPath } from "../api.js";
import { el } from "../dom.js";
import { bytes, time } from "../format.js";
import { quirePath, topicLink } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill } from "../parts.js";

export function messages(root, place, query) {
  const subscription = query.get("subscription") ?? "";
  const state = { from: query.get("from") ?? "latest", count: query.get("count") ?? "20" };
  const load = (signal) =>
    subscription
      ? get(quirePath(place) + subscriptionPath(subscription) + "/messages" + asQuery({ count: state.count }), { signal })
      : get(`${quirePath(place)}/messages${asked(state)}`, { signal });
  const shown = live(root, load, (looks) => view(looks, place, subscription, state, shown), { everyMs: 0 });
  return shown;
}

/** A text that begins like a date is a time. */
function asked({ from, count }) {
  const ms = /^\d{4}-/.test(from) ? Date.parse(from.endsWith("Z") ? from : `${from.replace(" ", "T")}Z`) : NaN;
  return asQuery(Number.isNaN(ms) ? { from, count } : { time: ms, count });
}

function view(looks, place, subscription, state, shown) {
  const newestFirst = !subscription && state.from === "latest";
  return [
    controls(place, subscription, state, shown),
    looks.length ? (newestFirst ? [...looks].reverse() : looks).map(message) : el("section", { class: "panel" }, el("p", { class: "empty" }, subscription ? "It waits for nothing." : "There are no messages there.")),
  ];
}

function controls(place, subscription, state, shown) {
  if (subscription)
    return el("div", { class: "head" }, el("p", {}, "The first messages that ", el("strong", {}, subscription), " has yet to acknowledge. ", el("a", { href: topicLink(place.name, "messages") }, "Show all")), button("Look again", shown.refresh));
  const from = el("input", { value: state.from, "aria-label": "From", list: "from-where", autocomplete: "off", spellcheck: "false" });
  const number = el("input", { type: "number", min: 1, max: 100, value: state.count, "aria-label": "How many" });
  const look = (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    state.from = form.querySelector("[aria-label=From]").value.trim() || "latest";
    state.count = form.querySelector("[type=number]").value || "20";
    history.replaceState(null, "", `${topicLink(place.name, "messages")}${asQuery({ from: state.from, count: state.count })}`);
    shown.refresh();
  };
  return el(
    "form",
    { class: "filters", onsubmit: look },
    from,
    el("datalist", { id: "from-where" }, ["latest", "earliest"].map((one) => el("option", { value: one }))),
    number,
    el("button", { type: "submit" }, "Look"),
    muted("latest, earliest, LEDGER:ENTRY, or a time such as 2026-03-01 12:00"),
  );
}

function message(one) {
  const properties = Object.entries(one.properties);
  return el(
    "article",
    { class: "panel message", "data-key": `message ${one.position}` },
    el(
      "div",
      { class: "message-head" },
      el("strong", {}, one.position),
      one.publishTimeMs ? muted(time(one.publishTimeMs)) : null,
      one.key === null ? null : el("span", {}, muted("key "), el("code", {}, one.key)),
      muted(bytes(one.size)),
      one.schemaVersion === null ? null : pill(`schema ${one.schemaVersion}`),
      one.producer ? muted(`by ${one.producer}`) : null,
    ),
    one.problem ? el("p", { class: "warn-text" }, one.problem) : null,
    one.text === null ? (one.problem ? null : muted("null")) : el("pre", { class: one.form, tabindex: 0 }, one.text),
    one.isCut ? muted("… the rest is not shown") : null,
    properties.length ? el("dl", { class: "facts" }, properties.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : null,
  );
}
