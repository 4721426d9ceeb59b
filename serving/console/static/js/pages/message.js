// A message as a card and as a line of a download.

import { el } from "../dom.js";
import { bytes, time } from "../format.js";
import { muted, pill } from "../parts.js";

export function card(one) {
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
    one.isCut ? muted("… truncated; a download contains the full value") : null,
    properties.length ? el("dl", { class: "facts" }, properties.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])) : null,
  );
}

/** Format a message as one line of JSON. A JSON value is copied as text, because parsing would round large numbers. */
export function line(one) {
  const { position, publishTimeMs, eventTimeMs, text, form, ...rest } = one;
  const head = JSON.stringify({ messageId: position, publishTimeMs, eventTimeMs, ...rest, form });
  const value = text !== null && form === "json" && !one.isCut ? text.replace(/\n */g, "") : JSON.stringify(text);
  return `${head.slice(0, -1)},"value":${value}}\n`;
}

/** Return the position after a message or an entry. */
export function after(position) {
  const parts = position.split(":");
  parts.push(BigInt(parts.pop()) + 1n);
  return parts.join(":");
}
