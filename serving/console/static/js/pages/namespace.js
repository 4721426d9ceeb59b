// A namespace: tabs for its topics, permissions and policies.

import { el } from "../dom.js";
import { namespaceLink } from "../links.js";
import { button, crumbs, tabs } from "../parts.js";
import { permissionsOfNamespace } from "./permissions.js";
import { ofNamespace, policies } from "./policies.js";
import { create, topics } from "./topics.js";

const PARTS = [
  ["topics", "Topics", topics],
  ["permissions", "Permissions", permissionsOfNamespace],
  ["policies", "Policies", (root, place) => policies(root, ofNamespace(place))],
];

export function namespace(root, place, query) {
  const name = `${place.tenant}/${place.namespace}`;
  const part = PARTS.find(([key]) => key === place.part) ?? PARTS[0];
  const inside = el("div", { class: "inside" });
  root.append(
    el(
      "div",
      {},
      crumbs(["Namespaces", "#/topics"], [name]),
      el("div", { class: "head" }, el("h1", {}, name), el("div", { class: "actions" }, button("New topic", () => create(place)))),
      tabs("Parts of the namespace", PARTS.map(([key, title]) => [key, title, namespaceLink(place.tenant, place.namespace, key)]), part[0]),
      inside,
    ),
  );
  return part[2](inside, place, query);
}
