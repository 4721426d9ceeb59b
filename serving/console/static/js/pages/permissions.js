// Permissions of roles on a topic or on all topics of a namespace.

import { ask, get, path } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { namespacePath, topicPath } from "../links.js";
import { live } from "../live.js";
import { button, muted, pill, table } from "../parts.js";

const WORDS = ["produce", "consume", "functions"];

export const permissionsOfTopic = (root, place) =>
  permissions(root, { name: "this topic", where: topicPath(place), text: "A role has the permissions granted on the namespace and those granted on the topic. Both are listed." });

export const permissionsOfNamespace = (root, place) =>
  permissions(root, { name: "this namespace", where: namespacePath(place), text: "Permissions apply to all topics of the namespace. Superusers and the tenant's admin roles have all permissions." });

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
          { title: "Permissions", kind: "why", cell: ([, words]) => (words.length ? words.map((one) => [pill(one, "ok"), " "]) : "–") },
          { title: "", kind: "act", cell: ([role, words]) => [button("Change", () => grant(level, role, words)), " ", button("Revoke", () => revoke(level, role))] },
        ],
        Object.entries(granted).sort(([a], [b]) => (a < b ? -1 : 1)),
        ([role]) => role,
        "No permissions are granted here.",
      ),
    ),
  ];
}

const grant = (level, role = "", words = []) =>
  question({
    title: role ? `Permissions of ${role} on ${level.name}` : `Grant permissions on ${level.name}`,
    button: "Grant",
    fields: [
      role ? null : { name: "role", label: "Role", required: true, hint: "may begin or end with *, which matches any characters" },
      ...WORDS.map((one) => ({ name: one, label: one, kind: "check", value: words.includes(one) })),
    ].filter(Boolean),
    act: (values) => {
      const chosen = WORDS.filter((one) => values[one]);
      if (!chosen.length) throw inputError("Select at least one permission, or revoke those that the role has");
      return ask("POST", level.where + path`/permissions/${role || values.role}`, chosen);
    },
  });

const revoke = (level, role) =>
  question({ title: `Revoke all permissions of ${role} on ${level.name}?`, text: "The role's clients are disconnected.", button: "Revoke", danger: true, act: () => ask("DELETE", level.where + path`/permissions/${role}`) });
