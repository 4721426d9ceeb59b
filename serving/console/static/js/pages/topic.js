// A topic: an overview, and tabs for its segments, subscriptions, messages, schemas, permissions and policies.

import { ask, get } from "../api.js";
import { question, tell } from "../dialogs.js";
import { el } from "../dom.js";
import { ago, byteRate, bytes, count, plural, rate, short } from "../format.js";
import { namespaceLink, quirePath, topicLink, topicPath } from "../links.js";
import { live } from "../live.js";
import { History, button, crumbs, facts, muted, panel, pill, table, tabs, tile, tiles, waiting } from "../parts.js";
import { permissionsOfTopic } from "./permissions.js";
import { ofTopic, policies } from "./policies.js";
import { messages } from "./topic_messages.js";
import { publish } from "./publish.js";
import { schemas } from "./topic_schemas.js";
import { segments } from "./topic_segments.js";
import { subscriptions } from "./topic_subscriptions.js";

const PARTS = [
  ["overview", "Overview", overview],
  ["segments", "Segments", segments],
  ["subscriptions", "Subscriptions", subscriptions],
  ["messages", "Messages", messages],
  ["schemas", "Schemas", schemas],
  ["permissions", "Permissions", permissionsOfTopic],
  ["policies", "Policies", (root, place) => policies(root, ofTopic(place))],
];

export function topic(root, place, query) {
  const name = `${place.domain}://${place.tenant}/${place.namespace}/${place.topic}`;
  const part = PARTS.find(([key]) => key === place.part) ?? PARTS[0];
  const inside = el("div", { class: "inside" });
  root.append(
    el(
      "div",
      {},
      crumbs(["Namespaces", "#/topics"], [`${place.tenant}/${place.namespace}`, namespaceLink(place.tenant, place.namespace)], [place.topic]),
      el("div", { class: "head" }, el("h1", { title: place.topic }, place.topic), el("div", { class: "actions" }, actions(place, name))),
      tabs("Parts of the topic", PARTS.map(([key, title]) => [key, title, topicLink(name, key)]), part[0]),
      inside,
    ),
  );
  return part[2](inside, { ...place, name }, query);
}

function actions(place, name) {
  const where = topicPath(place);
  const unload = () =>
    question({
      title: `Unload ${place.topic}?`,
      text: "The broker closes the topic, and the cluster assigns it again on its next use. Clients notice a short pause.",
      button: "Unload",
      act: () => ask("PUT", `${where}/unload`),
    });
  const seal = () =>
    question({
      title: `Seal the active segment of ${place.topic}?`,
      text: "New messages go to a new segment, and the sealed one can be archived.",
      button: "Seal",
      act: () => ask("PUT", `${quirePath(place)}/seal`),
    });
  const remove = () =>
    question({
      title: `Delete ${place.topic}?`,
      text: "All its messages and subscriptions are deleted, including archived data.",
      button: "Delete",
      danger: true,
      mustType: place.topic,
      fields: [{ name: "force", label: "Force deletion while clients are connected", kind: "check" }],
      act: async ({ force }) => {
        const parted = await get(`${where}/partitions`);
        await ask("DELETE", `${where}${parted.partitions ? "/partitions" : ""}?force=${force}`);
        location.hash = namespaceLink(place.tenant, place.namespace);
        return `Topic ${place.topic} was deleted`;
      },
    });
  const copy = async () => {
    await navigator.clipboard.writeText(name);
    tell("Full name copied");
  };
  return [
    place.domain === "persistent" ? button("Publish", () => publish(place, name), { class: "primary" }) : null,
    navigator.clipboard ? button("Copy name", copy) : null,
    button("Unload", unload),
    place.domain === "persistent" ? button("Seal", seal) : null,
    button("Delete", remove, { class: "warned" }),
  ];
}

function overview(root, place) {
  const history = new History();
  return live(root, (signal) => get(`${topicPath(place)}/stats`, { signal }), (stats) => view(stats, place, history));
}

function view(stats, place, history) {
  const all = Object.values(stats.subscriptions);
  const backlog = Math.max(0, ...all.map((one) => one.msgBacklog));
  return [
    tiles(
      tile("Messages in", rate(stats.msgRateIn), { curve: history.add("in", stats.msgRateIn) }),
      tile("Bytes in", byteRate(stats.msgThroughputIn), { curve: history.add("bytes", stats.msgThroughputIn) }),
      tile("Messages out", rate(stats.msgRateOut), { curve: history.add("out", stats.msgRateOut) }),
      tile("Stored", bytes(stats.storageSize), { note: `${bytes(stats.offloadedStorageSize)} in the archive` }),
      tile("Largest backlog", short(backlog), { note: plural(all.length, "subscription"), kind: all.some(isStuck) ? "warn" : "" }),
    ),
    troubles(stats),
    stats.partitions && Object.keys(stats.partitions).length ? panel("Partitions", partitions(stats.partitions)) : null,
    panel("Producers", producers(stats.publishers)),
    panel(
      "Details",
      facts([
        ["Published since load", `${plural(stats.msgInCounter, "message")}, ${bytes(stats.bytesInCounter)}`],
        ["Dispatched since load", `${plural(stats.msgOutCounter, "message")}, ${bytes(stats.bytesOutCounter)}`],
        stats.topicCreationTimeStamp ? ["Created", ago(stats.topicCreationTimeStamp)] : null,
        stats.lastPublishTimeStamp ? ["Last message", ago(stats.lastPublishTimeStamp)] : null,
        stats.deduplicationStatus ? ["Deduplication", stats.deduplicationStatus] : null,
        stats.publishRateLimitedTimes ? ["Publish rate limit hits", count(stats.publishRateLimitedTimes)] : null,
        stats.msgDropCounter ? ["Dropped", plural(stats.msgDropCounter, "message")] : null,
      ]),
    ),
  ];
}

const isStuck = (one) => one.blockedReason && waiting(one.blockedReason).isTrouble;

function troubles(stats) {
  const found = [
    ...(stats.lostForGood ?? []),
    ...(stats.damagedSegments ?? []).map((one) => `segment ${one.ledgerId} of ${one.topic}: ${one.damage}`),
    ...Object.entries(stats.subscriptions).filter(([, one]) => isStuck(one)).map(([name, one]) => `subscription ${name} is blocked: ${one.blockedReason}`),
  ];
  if (!found.length) return null;
  return el("div", { class: "notice warn" }, el("strong", {}, "Needs attention"), el("ul", {}, found.map((one) => el("li", {}, one))));
}

const partitions = (all) =>
  table(
    "Partitions",
    [
      { title: "Partition", kind: "name", cell: ([name]) => el("a", { href: topicLink(name) }, name.slice(name.lastIndexOf("/") + 1)) },
      { title: "In", kind: "num", cell: ([, one]) => rate(one.msgRateIn) },
      { title: "Out", kind: "num", cell: ([, one]) => rate(one.msgRateOut) },
      { title: "Stored", kind: "num", cell: ([, one]) => bytes(one.storageSize) },
      { title: "Producers", kind: "num wide", cell: ([, one]) => count(one.publishers.length) },
    ],
    Object.entries(all),
    ([name]) => name,
  );

const producers = (all) =>
  table(
    "Producers",
    [
      { title: "Producer", kind: "name", cell: (one) => one.producerName },
      { title: "In", kind: "num", cell: (one) => rate(one.msgRateIn) },
      { title: "Address", cell: (one) => one.address || "–" },
      { title: "Client", cell: (one) => one.clientVersion || "–" },
      { title: "Access", cell: (one) => (one.accessMode ? pill(one.accessMode) : "–") },
      { title: "Connected", cell: (one) => (one.connectedSince ? muted(ago(Date.parse(one.connectedSince))) : "–") },
    ],
    all,
    (one) => `${one.producerId} ${one.producerName}`,
    "No producers are connected.",
  );
