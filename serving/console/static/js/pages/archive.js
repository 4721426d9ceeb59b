// The archive of the whole cluster: how many segments are in which state, what fails; and what is done to it by hand.

import { ask, getIfAny, get } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { bytes, count, plural } from "../format.js";
import { live } from "../live.js";
import { button, code, facts, panel, pill, table, tile, tiles } from "../parts.js";

// It looks at every topic's segments, so it is asked for seldom.
const EVERY_MS = 30_000;

export function archive(root) {
  const load = async (signal) => ({ status: await get("/quire/v1/archive/status", { signal }), tables: await getIfAny("/quire/v1/iceberg", { signal }) });
  return live(root, load, view, { everyMs: EVERY_MS });
}

function view({ status, tables }) {
  return [
    el("div", { class: "head" }, el("h1", {}, "Archive"), el("div", { class: "actions" }, button("Archive now", run), button("Verify", verify), button("Repair", repair))),
    tiles(
      tile("Archived", plural(status.archived, "segment"), { note: `${bytes(status.archived_bytes)} since the brokers began` }),
      tile("Waiting", count(status.waiting)),
      tile("Failing", count(status.failing.length), { kind: status.failing.length ? "bad" : "" }),
      tile("Released", plural(status.released, "segment"), { note: "by bookies, since the brokers began" }),
    ),
    status.failing.length ? el("div", { class: "notice bad", role: "alert" }, el("strong", {}, "This fails, and is tried again"), el("ul", {}, status.failing.map((one) => el("li", {}, one)))) : null,
    panel(
      "Segments of all topics",
      table(
        "Segments by their states",
        [
          { title: "State", cell: ([state]) => pill(state) },
          { title: "Segments", kind: "num", cell: ([, one]) => count(one.segments) },
          { title: "Bytes", kind: "num", cell: ([state, one]) => (state === "active" ? "–" : bytes(one.bytes)) },
        ],
        Object.entries(status.segments),
        ([state]) => state,
      ),
    ),
    status.running.length ? panel("Under way", el("ul", {}, status.running.map((one) => el("li", {}, code(one))))) : null,
    tables?.length ? panel("Iceberg tables that are kept fresh", facts(tables.map((one) => [one.topic, `${one.catalog} ${one.namespace}.${one.table}`]))) : null,
  ];
}

const run = () =>
  question({
    title: "Archive everything now?",
    text: "All sealed segments of the cluster are archived, without waiting.",
    button: "Archive",
    fields: [{ name: "seal", label: "Also what is written now: its segments are sealed", kind: "check" }],
    act: async ({ seal }) => {
      const found = await ask("POST", `/quire/v1/archive/run?seal=${seal}`);
      return `${plural(found.archived, "segment")} archived, ${found.failed} failed`;
    },
  });

const verify = () =>
  question({
    title: "Read every object back?",
    text: "Each object of the archive is read and compared. That may take long.",
    button: "Verify",
    act: async () => {
      const found = await ask("POST", "/quire/v1/archive/verify");
      return `${plural(found.damaged.length, "object")} damaged, ${plural(found.orphans.length, "orphan")}`;
    },
  });

const repair = () =>
  question({
    title: "Repair the archive?",
    text: "What is damaged there and still on bookies is uploaded again.",
    button: "Repair",
    act: async () => `${plural((await ask("POST", "/quire/v1/archive/repair")).repaired, "segment")} repaired`,
  });
