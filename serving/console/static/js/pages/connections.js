// Client connections of all brokers, with their producers, consumers and rates.

import { ask, get, query as asQuery } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { count, plural, rate } from "../format.js";
import { shortName, topicLink } from "../links.js";
import { live } from "../live.js";
import { button, muted, table } from "../parts.js";

const ROWS = 100;

export function connections(root, _, query) {
  const state = { contains: query.get("contains") ?? "" };
  let typing = 0;
  const typed = (event) => {
    state.contains = event.target.value;
    clearTimeout(typing);
    typing = setTimeout(() => {
      history.replaceState(null, "", `#/connections${asQuery(state)}`);
      shown.refresh();
    }, 200);
  };
  const load = (signal) => get(`/quire/v1/connections${asQuery({ ...state, limit: ROWS })}`, { signal });
  const shown = live(root, load, (page) => view(page, state, typed));
  return shown;
}

function view(page, state, typed) {
  return [
    el("h1", {}, "Connections ", muted(count(page.total))),
    el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, el("input", { type: "search", value: state.contains, placeholder: "Address, client, role or topic contains…", "aria-label": "Filter", oninput: typed, autocomplete: "off", spellcheck: "false" })),
    page.silent.length ? el("div", { class: "notice warn" }, el("strong", {}, "Some brokers did not respond"), el("p", {}, page.silent.join("; "))) : null,
    el(
      "section",
      { class: "panel" },
      table(
        "Connections",
        [
          { title: "Connection", kind: "name", cell: (one) => [el("strong", {}, one.name), one.role ? muted(` ${one.role}`) : null] },
          { title: "Client", cell: (one) => one.clientVersion || "–" },
          { title: "Broker", kind: "wide", cell: (one) => one.broker || "–" },
          { title: "Producers", kind: "num", cell: (one) => count(one.producers) },
          { title: "In", kind: "num", cell: (one) => rate(one.msgRateIn) },
          { title: "Consumers", kind: "num", cell: (one) => count(one.consumers) },
          { title: "Out", kind: "num", cell: (one) => rate(one.msgRateOut) },
          { title: "Topics", kind: "why", cell: topics },
          { title: "", kind: "act", cell: (one) => button("Close", () => close(one)) },
        ],
        page.connections,
        (one) => `${one.broker} ${one.name}`,
        state.contains ? "No connection matches the filter." : "No clients are connected.",
      ),
    ),
    page.total > page.connections.length ? muted(`Showing the busiest ${plural(page.connections.length, "connection")}.`) : null,
  ];
}

const TOPICS_SHOWN = 3;

function topics(one) {
  if (!one.topics.length) return "–";
  const links = one.topics.slice(0, TOPICS_SHOWN).map((name) => el("p", {}, el("a", { href: topicLink(name) }, shortName(name))));
  return [links, one.topics.length > TOPICS_SHOWN ? muted("and more") : null];
}

const close = (one) =>
  question({
    title: `Close connection ${one.name}?`,
    text: "The client reconnects unless it is stopped or rejected. Messages without a receipt or an acknowledgement are sent again.",
    button: "Close",
    danger: true,
    act: () => ask("DELETE", `/quire/v1/connections${asQuery({ broker: one.broker, name: one.name })}`),
  });
