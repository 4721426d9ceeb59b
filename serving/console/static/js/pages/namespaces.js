// Namespaces that the user may see.

import { ask, get, path } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { byteRate, bytes, count, rate, short } from "../format.js";
import { namespaceLink } from "../links.js";
import { live } from "../live.js";
import { button, pill, table } from "../parts.js";
import { newTenant } from "./tenants.js";

export function namespaces(root, _, query, who) {
  return live(root, (signal) => get("/quire/v1/namespaces", { signal }), (rows) => view(rows, who), { everyMs: 5_000 });
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
          { title: "Namespace", kind: "name", cell: (one) => el("a", { href: namespaceLink(...split(one)) }, one.namespace) },
          { title: "Topics", kind: "num", cell: (one) => count(one.topics) },
          { title: "Loaded", kind: "num", cell: (one) => (one.numbers.topicsLoaded ? count(one.numbers.topicsLoaded) : "–") },
          { title: "In", kind: "num", cell: (one) => rate(one.numbers.msgRateIn) },
          { title: "Bytes in", kind: "num wide", cell: (one) => byteRate(one.numbers.msgThroughputIn) },
          { title: "Out", kind: "num", cell: (one) => rate(one.numbers.msgRateOut) },
          { title: "Backlog", kind: "num", cell: (one) => (one.numbers.backlog ? short(one.numbers.backlog) : "–") },
          { title: "Stored", kind: "num wide", cell: (one) => (one.numbers.storageSize ? bytes(one.numbers.storageSize) : "–") },
          { title: "Access", kind: "wide", cell: (one) => (one.mayAdminister ? pill("admin", "ok") : pill("limited")) },
          { title: "", kind: "act", cell: (one) => (one.mayAdminister ? button("Delete", () => remove(one)) : null) },
        ],
        rows,
        (one) => one.namespace,
        "There are no namespaces that you can access.",
      ),
    ),
  ];
}

const newNamespace = () =>
  question({
    title: "New namespace",
    button: "Create",
    fields: [
      { name: "tenant", label: "Tenant", value: "public", required: true },
      { name: "namespace", label: "Name", required: true },
    ],
    act: async ({ tenant, namespace }) => {
      await ask("PUT", path`/admin/v2/namespaces/${tenant}/${namespace}`);
      return `Namespace ${tenant}/${namespace} was created`;
    },
  });

const remove = (one) =>
  question({
    title: `Delete namespace ${one.namespace}?`,
    text: "The namespace must be empty; delete its topics first.",
    button: "Delete",
    danger: true,
    mustType: one.namespace,
    act: () => ask("DELETE", path`/admin/v2/namespaces/${split(one)[0]}/${split(one)[1]}`),
  });
