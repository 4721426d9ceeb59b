// The namespaces that the user may see.

import { ask, get, path } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { namespaceLink } from "../links.js";
import { live } from "../live.js";
import { button, pill, table } from "../parts.js";

export function namespaces(root, _, query, who) {
  return live(root, (signal) => get("/quire/v1/namespaces", { signal }), (rows) => view(rows, who));
}

const split = (one) => one.namespace.split("/");

function view(rows, who) {
  return [
    el("div", { class: "head" }, el("h1", {}, "Namespaces"), el("div", { class: "actions" }, who?.isSuperuser ? button("New tenant", newTenant) : null, button("New namespace", newNamespace))),
    el(
      "section",
      { class: "panel" },
      table(
        "Namespaces",
        [
          { title: "Namespace", cell: (one) => el("a", { href: namespaceLink(...split(one)) }, one.namespace) },
          { title: "You may", cell: (one) => (one.mayAdminister ? pill("administer", "ok") : pill("use it")) },
          { title: "", kind: "act", cell: (one) => (one.mayAdminister ? button("Delete", () => remove(one)) : null) },
        ],
        rows,
        (one) => one.namespace,
        "There is no namespace whose topics you may list.",
      ),
    ),
  ];
}

const newTenant = () =>
  question({
    title: "New tenant",
    button: "Make it",
    fields: [{ name: "tenant", label: "Name", required: true }],
    act: async ({ tenant }) => {
      await ask("PUT", path`/admin/v2/tenants/${tenant}`, {});
      return `Tenant ${tenant} is there`;
    },
  });

const newNamespace = () =>
  question({
    title: "New namespace",
    button: "Make it",
    fields: [
      { name: "tenant", label: "Tenant", value: "public", required: true },
      { name: "namespace", label: "Name", required: true },
    ],
    act: async ({ tenant, namespace }) => {
      await ask("PUT", path`/admin/v2/namespaces/${tenant}/${namespace}`);
      return `Namespace ${tenant}/${namespace} is there`;
    },
  });

const remove = (one) =>
  question({
    title: `Delete namespace ${one.namespace}?`,
    text: "It must be empty: topics are deleted one by one.",
    button: "Delete",
    danger: true,
    mustType: one.namespace,
    act: () => ask("DELETE", path`/admin/v2/namespaces/${split(one)[0]}/${split(one)[1]}`),
  });
