// Subscriptions of a topic: backlog, consumers, the reason if nothing is dispatched, and actions that move the cursor.

import { ask, get, subscriptionPath } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { ago, bytes, count, duration, plural, rate, short } from "../format.js";
import { topicLink, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, facts, muted, panel, pill, table, waitPill, waiting } from "../parts.js";

export function subscriptions(root, place) {
  return live(root, (signal) => get(`${topicPath(place)}/stats`, { signal }), (stats) => view(stats, place));
}

function view(stats, place) {
  const all = Object.entries(stats.subscriptions).sort(([a], [b]) => (a < b ? -1 : 1));
  return [
    el("div", { class: "head" }, muted(plural(all.length, "subscription")), place.domain === "persistent" ? button("New subscription", () => create(place)) : null),
    all.length ? all.map(([name, one]) => subscription(name, one, place)) : el("section", { class: "panel" }, el("p", { class: "empty" }, "There are no subscriptions.")),
  ];
}

function subscription(name, one, place) {
  const marks = [
    pill(one.type),
    one.isDurable ? null : pill("non-durable"),
    one.blockedReason ? waitPill(one.blockedReason) : one.msgBacklog ? null : pill("caught up", "ok"),
  ];
  const shown = panel(name, [
    facts([
      one.blockedReason ? ["Not dispatching because", el("span", { class: waiting(one.blockedReason).isTrouble ? "warn-text" : "quiet" }, one.blockedReason)] : null,
      ["Backlog", `${one.msgBacklogExact === false ? "about " : ""}${plural(one.msgBacklog, "message")}, ${bytes(one.backlogSize)}`],
      one.oldestBacklogMessageAgeSeconds >= 0 ? ["Oldest message", `${duration(one.oldestBacklogMessageAgeSeconds)} old`] : null,
      ["Out", `${rate(one.msgRateOut)}${one.msgRateRedeliver ? `, including ${rate(one.msgRateRedeliver)} redelivered` : ""}`],
      ["Unacknowledged", count(one.unackedMessages)],
      one.msgDelayed ? ["Delayed", count(one.msgDelayed)] : null,
      one.lostMessages ? ["Lost", pill(plural(one.lostMessages, "message"), "bad")] : null,
      one.lastReadError ? ["Read error", el("span", { class: "bad-text" }, one.lastReadError)] : null,
    ]),
    consumers(one),
  ], { actions: [marks, one.isDurable === false ? null : acts(name, place)] });
  shown.dataset.key = `subscription ${name}`;
  return shown;
}

const consumers = (one) =>
  table(
    "Consumers",
    [
      { title: "Consumer", kind: "name", cell: (each) => [each.consumerName || muted("unnamed"), each.consumerName && each.consumerName === one.activeConsumerName ? [" ", pill("active", "ok")] : null] },
      { title: "Out", kind: "num", cell: (each) => rate(each.msgRateOut) },
      { title: "Permits", kind: "num", cell: (each) => short(each.availablePermits) },
      { title: "Unacknowledged", kind: "num", cell: (each) => count(each.unackedMessages) },
      { title: "Blocked reason", cell: (each) => each.blockedReason || "–" },
      { title: "Address", cell: (each) => each.address || "–" },
      { title: "Client", kind: "wide", cell: (each) => each.clientVersion || "–" },
      { title: "Connected", kind: "wide", cell: (each) => muted(ago(Date.parse(each.connectedSince))) },
    ],
    one.consumers,
    (each) => `${each.address} ${each.consumerName} ${each.connectedSince}`,
    "No consumers are connected.",
  );

function acts(name, place) {
  const where = topicPath(place) + subscriptionPath(name);
  return [
    el("a", { class: "button", href: `${topicLink(place.name, "messages")}?subscription=${encodeURIComponent(name)}` }, "Peek"),
    button("Seek", () => seek(name, where)),
    button("Skip", () => skip(name, where)),
    button("Delete", () =>
      question({
        title: `Delete subscription ${name}?`,
        text: "Its unacknowledged messages are no longer retained for it.",
        button: "Delete",
        danger: true,
        mustType: name,
        fields: [{ name: "force", label: "Force deletion while consumers are connected", kind: "check" }],
        act: ({ force }) => ask("DELETE", `${where}?force=${force}`),
      }),
    ),
  ];
}

const WHERE = [
  ["earliest", "Earliest"],
  ["latest", "Latest"],
  ["time", "Time"],
  ["place", "Message ID"],
];

const seek = (name, where) =>
  question({
    title: `Seek subscription ${name}?`,
    text: "Its consumers are disconnected and reconnect. Seeking backwards redelivers messages; seeking forwards skips them.",
    button: "Seek",
    fields: [
      { name: "to", label: "To", options: WHERE },
      { name: "time", label: "Time (UTC)", kind: "datetime-local" },
      { name: "place", label: "Message ID (LEDGER:ENTRY)" },
    ],
    act: ({ to, time, place }) => {
      if (to === "time") return ask("POST", `${where}/resetcursor/${moment(time)}`);
      return ask("POST", `${where}/resetcursor`, to === "place" ? position(place) : to);
    },
  });

function moment(text) {
  const ms = Date.parse(`${text}Z`);
  if (Number.isNaN(ms)) throw inputError("Enter a time");
  return ms;
}

function position(text) {
  const match = /^(\d+):(\d+)$/.exec(text.trim());
  if (!match) throw inputError("Enter a message ID as LEDGER:ENTRY, such as 12:340");
  return { ledgerId: match[1], entryId: match[2] };
}

const skip = (name, where) =>
  question({
    title: `Skip messages of ${name}?`,
    text: "Skipped messages count as acknowledged and are not delivered.",
    button: "Skip",
    danger: true,
    fields: [
      { name: "all", label: "Entire backlog", kind: "check" },
      { name: "number", label: "Number of messages", kind: "number", value: "1" },
    ],
    act: ({ all, number }) => {
      if (!all && !(Number(number) > 0)) throw inputError("Enter the number of messages");
      return ask("POST", all ? `${where}/skip_all` : `${where}/skip/${Math.floor(Number(number))}`);
    },
  });

const create = (place) =>
  question({
    title: `New subscription on ${place.topic}`,
    button: "Create",
    fields: [
      { name: "subscription", label: "Name", required: true },
      { name: "from", label: "Initial position", options: WHERE.slice(0, 2) },
    ],
    act: ({ subscription, from }) => ask("PUT", topicPath(place) + subscriptionPath(subscription), from),
  });
