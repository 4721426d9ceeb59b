// Archive of the cluster: segments by state, failed uploads, and manual actions.

import { ask, getIfAny, get } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { live } from "../live.js";
import { button, code, facts, panel, pill, table, tile, tiles } from "../parts.js";

// Each request reads the segments of every topic, so it is sent rarely.
const EVERY_MS = 30_000;

export function archive(root) {
  const load = async (signal) => ({ status: await get("/quire/v1/archive/status", { signal }), tables: await getIfAny("/quire/v1/iceberg", { signal }) });
  return live(root, load, view, { everyMs: EVERY_MS });
}

function view({ status, tables }) {
  return [
    el("div", { class: "head" }, el("h1", {}, "Archive"), el("div", { class: "actions" }, button("Archive now", run), button("Verify", verify), button("Repair", repair))),
    tiles(
      tile("Archived", plural(status.archived, "segment"), { note: `${bytes(status.archived_bytes)} since the brokers started` }),
      tile("Waiting", count(status.waiting)),
      tile("Failing", count(status.failing.length), { kind: status.failing.length ? "bad" : "" }),
      tile("Released", plural(status.released, "segment"), { note: "by bookies, since the brokers started" }),
    ),
    status.failing.length ? el("div", { class: "notice bad", role: "alert" }, el("strong", {}, "Failed, will be retried"), el("ul", {}, status.failing.map((one) => el("li", {}, one)))) : null,
    panel(
      "Segments of all topics",
      table(
        "Segments by state",
        [
          { title: "State", cell: ([state]) => pill(state) },
          { title: "Segments", kind: "num", cell: ([, one]) => count(one.segments) },
          { title: "Bytes", kind: "num", cell: ([state, one]) => (state === "active" ? "–" : bytes(one.bytes)) },
        ],
        Object.entries(status.segments),
        ([state]) => state,
      ),
    ),
    status.running.length ? panel("In progress", el("ul", {}, status.running.map((one) => el("li", {}, code(one))))) : null,
    tables?.length ? panel("Iceberg tables", facts(tables.map((one) => [one.topic, `${one.catalog} ${one.namespace}.${one.table}`]))) : null,
  ];
}

const run = () =>
  question({
    title: "Archive everything now?",
    text: "All sealed segments of the cluster are archived immediately.",
    button: "Archive",
    fields: [{ name: "seal", label: "Seal and archive active segments too", kind: "check" }],
    act: async ({ seal }) => {
      const found = await ask("POST", `/quire/v1/archive/run?seal=${seal}`);
      return `${plural(found.archived, "segment")} archived, ${found.failed} failed`;
    },
  });

const verify = () =>
  question({
    title: "Verify the archive?",
    text: "Every object of the archive is read and verified, which can take a long time.",
    button: "Verify",
    act: async () => {
      const found = await ask("POST", "/quire/v1/archive/verify");
      return `${plural(found.damaged.length, "object")} damaged, ${plural(found.orphans.length, "orphan")}`;
    },
  });

const repair = () =>
  question({
    title: "Repair the archive?",
    text: "Damaged objects are uploaded again if bookies still store their segments.",
    button: "Repair",
    act: async () => `${plural((await ask("POST", "/quire/v1/archive/repair")).repaired, "segment")} repaired`,
  });
