// Effective policies of a topic or namespace, with the level that sets each. This level's own can be set and removed.

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
  text: "A topic's own policy overrides its namespace's, which overrides the broker's settings.",
  both: `${quirePath(place)}/policies`,
  where: topicPath(place),
});

export const ofNamespace = (place) => ({
  name: "this namespace",
  above: "broker",
  text: "A namespace's policies override the broker's settings, and apply to each topic that does not set its own.",
  both: `${quireNamespacePath(place)}/policies`,
  where: namespacePath(place),
});

export function policies(root, level) {
  return live(root, (signal) => get(level.both, { signal }), (both) => view(both, level), { everyMs: 10_000 });
}

/** Return a row for each policy and each type of backlog quota. */
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
          { title: "Effective value", kind: "why", cell: (one) => (one.form ? shown(one.form, one.applied) : [JSON.stringify(one.applied)]).map((line) => el("p", {}, line)) },
          { title: "Set by", cell: (one) => (one.own === null ? muted(level.above) : pill(level.name, "busy")) },
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
      title: `Set ${one.word} for ${name}`,
      text: one.own === null ? `The current value is inherited from the ${above}.` : "",
      button: "Set",
      fields: one.form ? fieldsOf(one.form, value) : [{ name: "value", label: "Value (JSON)", kind: "area", value: JSON.stringify(value, null, 2) }],
      act: (values) => ask("POST", `${where}/${one.path}`, one.form ? valueOf(one.form, values) : parsed(values.value)),
    });
  const remove = () => question({ title: `Remove ${one.word} from ${name}?`, text: `The value will be inherited from the ${above}.`, button: "Remove", act: () => ask("DELETE", `${where}/${one.path}`) });
  return [button("Set", set), one.own === null ? null : [" ", button("Remove", remove)]];
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw inputError(`The value is not valid JSON: ${error.message}`);
  }
}
