// What holds for a topic or in a namespace, and who says so; what this level says itself is set and removed here.

import { ask, get } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { namespacePath, quireNamespacePath, quirePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, code, muted, pill, table } from "../parts.js";

export const ofTopic = (place) => ({
  name: "this topic",
  above: "namespace or broker",
  text: "A topic's own policy comes before its namespace's, and that before the broker's settings.",
  both: `${quirePath(place)}/policies`,
  where: topicPath(place),
});

export const ofNamespace = (place) => ({
  name: "this namespace",
  above: "broker",
  text: "What a namespace says holds for each of its topics that says nothing itself, and comes before the broker's settings.",
  both: `${quireNamespacePath(place)}/policies`,
  where: namespacePath(place),
});

export function policies(root, level) {
  return live(root, (signal) => get(level.both, { signal }), (both) => view(both, level), { everyMs: 10_000 });
}

function view({ prescribed, applied }, level) {
  return [
    muted(level.text),
    el(
      "section",
      { class: "panel" },
      table(
        "Policies",
        [
          { title: "Policy", kind: "name", cell: (word) => el("strong", {}, word) },
          { title: "What holds", kind: "why", cell: (word) => code(said(applied[word])) },
          { title: "Said by", cell: (word) => (prescribed[word] === null ? muted(level.above) : pill(level.name, "busy")) },
          { title: "", kind: "act", cell: (word) => (word === "backlogQuota" ? null : acts(word, prescribed[word] ?? applied[word], prescribed[word] !== null, level)) },
        ],
        Object.keys(applied).sort(),
        (word) => word,
      ),
    ),
  ];
}

const said = (value) => (value === null ? "nothing" : typeof value === "string" ? value : JSON.stringify(value));

function acts(word, value, isOwn, { name, above, where }) {
  const set = () =>
    question({
      title: `Set ${word} of ${name}`,
      button: "Set",
      fields: [{ name: "value", label: "Value, as JSON", kind: "area", value: JSON.stringify(value, null, 2) }],
      act: ({ value: text }) => ask("POST", `${where}/${word}`, parsed(text)),
    });
  const remove = () => question({ title: `Remove ${word} of ${name}?`, text: `Then it is said by: ${above}.`, button: "Remove", act: () => ask("DELETE", `${where}/${word}`) });
  return [button("Set", set), isOwn ? [" ", button("Remove", remove)] : null];
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw inputError(`This is no JSON: ${error.message}`);
  }
}
