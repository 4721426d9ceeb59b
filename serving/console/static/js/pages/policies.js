// What holds for a topic or in a namespace, and who says so; what this level says itself is set and removed here.

import { ask, get, query } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { namespacePath, quireNamespacePath, quirePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill, table } from "../parts.js";
import { FORMS, QUOTAS, fieldsOf, shown, valueOf } from "./policy_forms.js";

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

/** A row for each policy, and one for each quota of a backlog. */
function rows({ prescribed, applied }) {
  const words = Object.keys(applied).filter((word) => word !== "backlogQuota");
  const found = words.map((word) => ({ word, path: word, form: FORMS[word], own: prescribed[word], applied: applied[word] }));
  for (const [type, form] of Object.entries(QUOTAS)) {
    const own = prescribed.backlogQuota?.[type] ?? null;
    found.push({ word: `backlogQuota ${type}`, path: `backlogQuota${query({ backlogQuotaType: type })}`, form, own, applied: own ?? applied.backlogQuota?.[type] ?? null });
  }
  return found.sort((a, b) => (a.word < b.word ? -1 : 1));
}

function view(both, level) {
  return [
    muted(level.text),
    el(
      "section",
      { class: "panel" },
      table(
        "Policies",
        [
          { title: "Policy", kind: "name", cell: (one) => el("strong", {}, one.word) },
          { title: "What holds", kind: "why", cell: (one) => (one.form ? shown(one.form, one.applied) : [JSON.stringify(one.applied)]).map((line) => el("p", {}, line)) },
          { title: "Said by", cell: (one) => (one.own === null ? muted(level.above) : pill(level.name, "busy")) },
          { title: "", kind: "act", cell: (one) => acts(one, level) },
        ],
        rows(both),
        (one) => one.word,
      ),
    ),
  ];
}

function acts(one, { name, above, where }) {
  const value = one.own ?? one.applied;
  const set = () =>
    question({
      title: `Set ${one.word} of ${name}`,
      text: one.own === null ? `Now it is said by: ${above}.` : "",
      button: "Set",
      fields: one.form ? fieldsOf(one.form, value) : [{ name: "value", label: "Value, as JSON", kind: "area", value: JSON.stringify(value, null, 2) }],
      act: (values) => ask("POST", `${where}/${one.path}`, one.form ? valueOf(one.form, values) : parsed(values.value)),
    });
  const remove = () => question({ title: `Remove ${one.word} of ${name}?`, text: `Then it is said by: ${above}.`, button: "Remove", act: () => ask("DELETE", `${where}/${one.path}`) });
  return [button("Set", set), one.own === null ? null : [" ", button("Remove", remove)]];
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw inputError(`This is no JSON: ${error.message}`);
  }
}
