// What roles may do with a topic, or with all topics of a namespace.

import { ask, get, path } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { namespacePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill, table } from "../parts.js";

const WORDS = ["produce", "consume", "functions"];

export const permissionsOfTopic = (root, place) =>
  permissions(root, { name: "this topic", where: topicPath(place), text: "A role may do what its namespace grants it, and what the topic grants it in addition. Both are shown." });

export const permissionsOfNamespace = (root, place) =>
  permissions(root, { name: "this namespace", where: namespacePath(place), text: "They hold for all topics of the namespace. Superusers, and the roles that administer the tenant, may do everything." });

function permissions(root, level) {
  return live(root, (signal) => get(`${level.where}/permissions`, { signal }), (granted) => view(granted, level), { everyMs: 10_000 });
}

function view(granted, level) {
  return [
    el("div", { class: "head" }, muted(level.text), el("div", { class: "actions" }, button("Grant", () => grant(level)))),
    el(
      "section",
      { class: "panel" },
      table(
        "Permissions",
        [
          { title: "Role", kind: "name", cell: ([role]) => el("strong", {}, role) },
          { title: "May", kind: "why", cell: ([, words]) => (words.length ? words.map((one) => [pill(one, "ok"), " "]) : "–") },
          { title: "", kind: "act", cell: ([role, words]) => [button("Change", () => grant(level, role, words)), " ", button("Revoke", () => revoke(level, role))] },
        ],
        Object.entries(granted).sort(([a], [b]) => (a < b ? -1 : 1)),
        ([role]) => role,
        "No role was granted anything here.",
      ),
    ),
  ];
}

const grant = (level, role = "", words = []) =>
  question({
    title: role ? `What may ${role} do with ${level.name}?` : `Grant a role something of ${level.name}`,
    button: "Grant",
    fields: [
      role ? null : { name: "role", label: "Role", required: true, hint: "it may begin or end with *, which stands for any characters" },
      ...WORDS.map((one) => ({ name: one, label: one, kind: "check", value: words.includes(one) })),
    ].filter(Boolean),
    act: (values) => {
      const chosen = WORDS.filter((one) => values[one]);
      if (!chosen.length) throw inputError("Choose what it may do, or revoke what it has");
      return ask("POST", level.where + path`/permissions/${role || values.role}`, chosen);
    },
  });

const revoke = (level, role) =>
  question({ title: `Revoke what ${role} may do with ${level.name}?`, text: "Its clients are disconnected.", button: "Revoke", danger: true, act: () => ask("DELETE", level.where + path`/permissions/${role}`) });
