// Topics of a namespace, sorted and paginated by the broker.

import { ask, get, path, query as asQuery } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { byteRate, bytes, count, plural, rate, short } from "../format.js";
import { namespaceLink, topicLink, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill, table, waitPill } from "../parts.js";

const ROWS = 50;
const ORDERS = [
  ["name", "By name"],
  ["in", "By rate in"],
  ["out", "By rate out"],
  ["backlog", "By backlog"],
  ["size", "By size"],
];

export function topics(root, place, query) {
  const state = {
    contains: query.get("contains") ?? "",
    sort: query.get("sort") ?? "name",
    domain: query.get("domain") ?? "persistent",
    page: Math.max(1, Number(query.get("page")) || 1),
  };
  const load = (signal) =>
    get(
      path`/quire/v1/namespaces/${place.tenant}/${place.namespace}/topics` +
        asQuery({ contains: state.contains, sort: state.sort, domain: state.domain, offset: (state.page - 1) * ROWS, limit: ROWS }),
      { signal },
    );
  const shown = live(root, load, (data) => view(data, place, state, change));

  /** Store the filter in the address, for bookmarks and links, without restarting the page. */
  function change(values) {
    Object.assign(state, { page: 1 }, values);
    history.replaceState(null, "", here(place, state));
    shown.refresh();
  }
  return shown;
}

function here(place, state) {
  const { contains, sort, domain, page } = state;
  return namespaceLink(place.tenant, place.namespace) +
    asQuery({ contains, sort: sort === "name" ? "" : sort, domain: domain === "persistent" ? "" : domain, page: page === 1 ? "" : page });
}

function view(data, place, state, change) {
  return [
    filters(state, change),
    data.silent.length ? el("div", { class: "notice warn" }, el("strong", {}, "Some brokers did not respond"), el("p", {}, data.silent.join("; "))) : null,
    el("section", { class: "panel" }, rows(data.topics, place, state), pager(data, state, change)),
  ];
}

let typing = 0;

function filters(state, change) {
  const typed = (event) => {
    const contains = event.target.value;
    clearTimeout(typing);
    typing = setTimeout(() => change({ contains }), 200);
  };
  return el(
    "form",
    { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() },
    el("input", { type: "search", name: "contains", value: state.contains, placeholder: "Name contains…", "aria-label": "Name contains", oninput: typed, autocomplete: "off", spellcheck: "false" }),
    choice("Sort order", ORDERS, state.sort, (sort) => change({ sort })),
    choice("Domain", [["persistent", "persistent"], ["non-persistent", "non-persistent"]], state.domain, (domain) => change({ domain })),
  );
}

function choice(label, options, value, act) {
  return el("select", { "aria-label": label, onchange: (event) => act(event.target.value) }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, text)));
}

function rows(topics, place, state) {
  const empty = state.contains
    ? `No topic's name contains “${state.contains}”.`
    : state.sort !== "name"
      ? "No topics are loaded."
      : "There are no topics yet. Clients create topics on first use.";
  return table(
    "Topics",
    [
      { title: "Topic", kind: "name", cell: (one) => name(one, place) },
      { title: "In", kind: "num", cell: (one) => rate(one.msgRateIn) },
      { title: "Bytes in", kind: "num wide", cell: (one) => byteRate(one.msgThroughputIn) },
      { title: "Out", kind: "num", cell: (one) => rate(one.msgRateOut) },
      { title: "Stored", kind: "num", cell: (one) => bytes(one.storageSize) },
      { title: "Backlog", kind: "num", cell: (one) => (one.backlog ? short(one.backlog) : "–") },
      { title: "Producers", kind: "num wide", cell: (one) => count(one.producers) },
      { title: "Consumers", kind: "num wide", cell: (one) => count(one.consumers) },
      { title: "State", cell: state_ },
    ],
    topics,
    (one) => one.topic,
    empty,
  );
}

function name(one, place) {
  const local = one.topic.slice(one.topic.indexOf("://") + 3 + place.tenant.length + place.namespace.length + 2);
  return [el("a", { href: topicLink(one.topic), title: local }, local), one.partitions ? muted(` ${plural(one.partitions, "partition")}`) : null];
}

function state_(one) {
  if (!one.isLoaded) return muted("not loaded");
  if (one.blockedReason) return waitPill(one.blockedReason);
  return pill("loaded", "ok");
}

function pager(data, state, change) {
  const last = Math.max(1, Math.ceil(data.total / ROWS)), first = (state.page - 1) * ROWS;
  const to = (page) => () => change({ page });
  return el(
    "div",
    { class: "pager" },
    el("span", { class: "quiet" }, data.total ? `${count(first + 1)}–${count(Math.min(first + ROWS, data.total))} of ${count(data.total)}` : "none"),
    button("Previous", to(state.page - 1), { disabled: state.page <= 1 }),
    button("Next", to(state.page + 1), { disabled: state.page >= last }),
  );
}

export const create = (place) =>
  question({
    title: `New topic in ${place.tenant}/${place.namespace}`,
    button: "Create",
    fields: [
      { name: "topic", label: "Name", required: true },
      { name: "partitions", label: "Partitions", kind: "number", value: "0", hint: "0 creates a non-partitioned topic" },
    ],
    act: async ({ topic, partitions }) => {
      const where = topicPath({ domain: "persistent", ...place, topic });
      if (Number(partitions) > 0) await ask("PUT", `${where}/partitions`, Number(partitions));
      else await ask("PUT", where);
      location.hash = topicLink(`persistent://${place.tenant}/${place.namespace}/${topic}`);
      return `Topic ${topic} was created`;
    },
  });
