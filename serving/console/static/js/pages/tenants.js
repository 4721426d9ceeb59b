// Tenants and their admin roles.

import { ask, get, path } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { live } from "../live.js";
import { button, pill, table } from "../parts.js";

const TENANTS_MAX = 200;

export function tenants(root) {
  const load = async (signal) => {
    const names = await get("/admin/v2/tenants", { signal });
    const shown = names.slice(0, TENANTS_MAX);
    return { all: names.length, rows: await Promise.all(shown.map(async (name) => ({ name, ...(await get(path`/admin/v2/tenants/${name}`, { signal })) }))) };
  };
  return live(root, load, view, { everyMs: 10_000 });
}

function view({ all, rows }) {
  return [
    el("div", { class: "head" }, el("h1", {}, "Tenants"), el("div", { class: "actions" }, button("New tenant", newTenant))),
    el(
      "section",
      { class: "panel" },
      table(
        "Tenants",
        [
          { title: "Tenant", kind: "name", cell: (one) => el("strong", {}, one.name) },
          { title: "Admin roles", kind: "why", cell: (one) => (one.adminRoles.length ? one.adminRoles.map((role) => [pill(role), " "]) : "–") },
          { title: "Clusters", cell: (one) => one.allowedClusters.join(", ") || "–" },
          { title: "", kind: "act", cell: (one) => [button("Edit", () => edit(one)), " ", button("Delete", () => remove(one))] },
        ],
        rows,
        (one) => one.name,
        "There are no tenants.",
      ),
    ),
    all > rows.length ? el("p", { class: "quiet" }, `Showing the first ${rows.length} of ${all} tenants.`) : null,
  ];
}

const ROLES = { name: "roles", label: "Admin roles", kind: "area", rows: 3, hint: "one per line; superusers always have access" };
const lines = (text) => text.split("\n").map((one) => one.trim()).filter(Boolean);

export const newTenant = () =>
  question({
    title: "New tenant",
    button: "Create",
    fields: [{ name: "tenant", label: "Name", required: true }, ROLES],
    act: async ({ tenant, roles }) => {
      await ask("PUT", path`/admin/v2/tenants/${tenant}`, { adminRoles: lines(roles) });
      return `Tenant ${tenant} was created`;
    },
  });

const edit = (one) =>
  question({
    title: `Edit tenant ${one.name}`,
    button: "Save",
    fields: [{ ...ROLES, value: one.adminRoles.join("\n") }],
    act: ({ roles }) => ask("POST", path`/admin/v2/tenants/${one.name}`, { adminRoles: lines(roles), allowedClusters: one.allowedClusters }),
  });

const remove = (one) =>
  question({
    title: `Delete tenant ${one.name}?`,
    text: "The tenant must have no namespaces.",
    button: "Delete",
    danger: true,
    mustType: one.name,
    act: () => ask("DELETE", path`/admin/v2/tenants/${one.name}`),
  });
