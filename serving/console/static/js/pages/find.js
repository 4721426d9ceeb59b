// Search results: topics of all namespaces whose name contains a text.

import { topicsLike } from "../go_to.js";
import { el } from "../dom.js";
import { parts, shortName, topicLink } from "../links.js";
import { live } from "../live.js";
import { muted, table } from "../parts.js";

const ROWS = 200;

export function find(root, _, query) {
  const contains = query.get("contains") ?? "";
  return live(root, (signal) => topicsLike(contains, ROWS, { signal }), (names) => view(names, contains), { everyMs: 0 });
}

function view(names, contains) {
  const exact = contains.includes("/") && parts(contains);
  return [
    el("h1", {}, "Topics ", muted(`matching “${contains}”`)),
    el(
      "section",
      { class: "panel" },
      table(
        "Topics",
        [{ title: "Topic", kind: "name", cell: (one) => el("a", { href: topicLink(one) }, shortName(one)) }],
        names,
        (one) => one,
        "No persistent topic that you can list matches.",
      ),
    ),
    names.length === ROWS ? muted(`Showing the first ${ROWS} topics.`) : null,
    !names.length && exact ? el("p", {}, el("a", { href: topicLink(contains) }, "Open this topic anyway")) : null,
  ];
}
