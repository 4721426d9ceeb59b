// What holds for a topic, and where that comes from; a policy of the topic itself is set and removed here.

import { ask, get } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { quirePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, code, muted, pill, table } from "../parts.js";

export function policies(root, place) {
  return live(root, (signal) => get(`${quirePath(place)}/policies`, { signal }), (both) => view(both, topicPath(place)), { everyMs: 10_000 });
}

function view({ prescribed, applied }, where) {
  const words = Object.keys(applied).sort();
  return [
    muted("A topic's own policy comes before its namespace's, and that before the broker's settings."),
    el(
      "section",
      { class: "panel" },
      table(
        "Policies",
        [
          { title: "Policy", kind: "name", cell: (word) => el("strong", {}, word) },
          { title: "What holds", kind: "why", cell: (word) => code(said(applied[word])) },
          { title: "Said by", cell: (word) => (prescribed[word] === null ? muted("namespace or broker") : pill("this topic", "busy")) },
          { title: "", kind: "act", cell: (word) => (word === "backlogQuota" ? null : acts(word, prescribed[word] ?? applied[word], prescribed[word] !== null, where)) },
        ],
        words,
        (word) => word,
      ),
    ),
  ];
}

const said = (value) => (value === null ? "nothing" : typeof value === "string" ? value : JSON.stringify(value));

function acts(word, value, isOwn, where) {
  const set = () =>
    question({
      title: `Set ${word} of this topic`,
      button: "Set",
      fields: [{ name: "value", label: "Value, as JSON", kind: "area", value: JSON.stringify(value, null, 2) }],
      act: ({ value: text }) => ask("POST", `${where}/${word}`, parsed(text)),
    });
  const remove = () => question({ title: `Remove ${word} of this topic?`, text: "Then its namespace says it, or the broker.", button: "Remove", act: () => ask("DELETE", `${where}/${word}`) });
  return [button("Set", set), isOwn ? [" ", button("Remove", remove)] : null];
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw inputError(`This is no JSON: ${error.message}`);
  }
}
