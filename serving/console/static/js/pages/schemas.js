// Topics of all namespaces that have a schema.

import { get, query as asQuery } from "../api.js";
import { el } from "../dom.js";
import { ago, count, plural } from "../format.js";
import { shortName, topicLink } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill, table } from "../parts.js";

const ROWS = 50;

export function schemas(root, _, query) {
  const state = { contains: query.get("contains") ?? "", page: Math.max(1, Number(query.get("page")) || 1) };
  let typing = 0;
  const change = (values) => {
    Object.assign(state, { page: 1 }, values);
    history.replaceState(null, "", `#/schemas${asQuery({ contains: state.contains, page: state.page === 1 ? "" : state.page })}`);
    shown.refresh();
  };
  const typed = (event) => {
    const contains = event.target.value;
    clearTimeout(typing);
    typing = setTimeout(() => change({ contains }), 200);
  };
  const load = (signal) => get(`/quire/v1/schemas${asQuery({ contains: state.contains, offset: (state.page - 1) * ROWS, limit: ROWS })}`, { signal });
  const shown = live(root, load, (page) => view(page, state, change, typed), { everyMs: 10_000 });
  return shown;
}

function view(page, state, change, typed) {
  const isLast = state.page * ROWS >= page.total;
  return [
    el("h1", {}, "Schemas ", muted(plural(page.total, "topic"))),
    el("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }, el("input", { type: "search", value: state.contains, placeholder: "Topic contains…", "aria-label": "Topic contains", oninput: typed, autocomplete: "off", spellcheck: "false" })),
    el(
      "section",
      { class: "panel" },
      table(
        "Schemas",
        [
          { title: "Topic", kind: "name", cell: (one) => el("a", { href: topicLink(one.topic, "schemas") }, shortName(one.topic)) },
          { title: "Type", cell: (one) => pill(one.type) },
          { title: "Versions", kind: "num", cell: (one) => count(one.versions) },
          { title: "Latest version", kind: "num", cell: (one) => one.version },
          { title: "Updated", cell: (one) => muted(ago(one.changedMs)) },
        ],
        page.schemas,
        (one) => one.topic,
        state.contains ? "No topic with a schema matches the filter." : "No topic that you can list has a schema.",
      ),
      page.total > ROWS ? el("div", { class: "pager" }, button("Previous", () => change({ page: state.page - 1 }), { disabled: state.page <= 1 }), button("Next", () => change({ page: state.page + 1 }), { disabled: isLast })) : null,
    ),
  ];
}
