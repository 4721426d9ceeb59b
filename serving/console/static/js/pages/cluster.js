// Overview of the cluster: traffic, brokers, bookies and their disks, repair, and the archive.

import { ask, get, getIfAny, path } from "../api.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { ago, byteRate, bytes, count, plural, rate, short } from "../format.js";
import { graph } from "../graph.js";
import { live } from "../live.js";
import { History, button, code, facts, meter, muted, panel, pill, table, tile, tiles } from "../parts.js";

export function cluster(root) {
  const curves = new History(), state = { minutes: 60, series: null, askedMs: 0 };
  const load = async (signal) => {
    const data = await get("/quire/v1/overview", { signal });
    if (Date.now() - state.askedMs >= HISTORY_EVERY_MS) {
      state.series = await getIfAny(`/quire/v1/overview/history?minutes=${state.minutes}`, { signal });
      state.askedMs = Date.now();
    }
    return data;
  };
  const choose = (minutes) => {
    Object.assign(state, { minutes, askedMs: 0 });
    shown.refresh();
  };
  const shown = live(root, load, (data) => view(data, curves, state, choose));
  return shown;
}

const HISTORY_EVERY_MS = 10_000;
const SPANS = [[60, "1 hour"], [480, "8 hours"]];

function traffic({ series, minutes }, choose) {
  const actions = SPANS.map(([one, text]) => button(text, () => choose(one), { "aria-pressed": String(one === minutes) }));
  if (!series || series.rates.messagesIn.length < 2) return panel("Traffic", el("p", { class: "empty" }, "The graph appears about 30 seconds after the brokers start, and covers up to eight hours."));
  const { rates, ...scale } = series;
  return panel("Traffic", el("div", { class: "pair graphs" }, [
    graph("Messages", [["in", rates.messagesIn], ["out", rates.messagesOut]], { ...scale, scale: (one) => (one ? rate(one) : "0/s") }),
    graph("Bytes", [["in", rates.bytesIn], ["out", rates.bytesOut]], { ...scale, scale: (one) => (one ? byteRate(one) : "0 B/s") }),
  ]), { actions });
}

function view(data, history, state, choose) {
  const sum = (name) => data.brokers.reduce((all, one) => all + (one.now?.[name] ?? 0), 0);
  const messages = sum("msgRateIn"), incoming = sum("msgThroughputIn");
  const writable = data.bookies.filter((one) => one.state === "up").length;
  const answering = data.brokers.filter((one) => one.now).length;
  return [
    el("h1", {}, "Cluster ", muted(data.cluster)),
    tiles(
      tile("Messages in", rate(messages), { curve: history.add("messages", messages) }),
      tile("Bytes in", byteRate(incoming), { curve: history.add("bytes", incoming) }),
      tile("Loaded topics", count(data.brokers.reduce((all, one) => all + one.topics, 0)), { note: plural(sum("connections"), "connection") }),
      tile("Brokers", `${answering}/${data.brokers.length}`, { note: "responding", kind: answering < data.brokers.length ? "warn" : "" }),
      tile("Bookies", `${writable}/${data.bookies.length}`, { note: "writable", kind: writable < data.bookies.length ? "warn" : "" }),
    ),
    warnings(data),
    traffic(state, choose),
    panel("Brokers", brokers(data.brokers)),
    panel("Bookies", bookies(data.bookies)),
    el("div", { class: "pair" }, repair(data.repair, data.bookies.length), archive(data.archive)),
  ];
}

function warnings(data) {
  const found = [
    ...data.silent,
    ...data.brokers.flatMap((one) => [...(one.now?.whyNotReady ?? []), ...(one.now?.warnings ?? [])].map((each) => `${one.broker}: ${each}`)),
  ];
  if (!found.length) return null;
  return el("div", { class: "notice warn", role: "alert" }, el("strong", {}, "Needs attention"), el("ul", {}, found.map((one) => el("li", {}, one))));
}

const brokers = (rows) =>
  table(
    "Brokers",
    [
      { title: "Broker", cell: (one) => el("strong", {}, one.broker) },
      { title: "State", cell: state },
      { title: "Messages in", kind: "num", cell: (one) => rate(one.now?.msgRateIn) },
      { title: "Bytes in", kind: "num", cell: (one) => byteRate(one.now?.msgThroughputIn) },
      { title: "Topics", kind: "num", cell: (one) => count(one.topics) },
      { title: "Bundles", kind: "num", cell: (one) => count(one.bundles) },
      { title: "Connections", kind: "num", cell: (one) => count(one.now?.connections) },
      { title: "Load", kind: "num", cell: (one) => short(one.load) },
      { title: "Version", cell: (one) => one.now?.version ?? "–" },
    ],
    rows,
    (one) => one.broker,
    "No brokers are registered.",
  );

function state(one) {
  if (!one.now) return pill("not responding", "bad");
  return one.now.whyNotReady.length ? pill("not ready", "warn") : pill("ready", "ok");
}

const KINDS = { up: "ok", "read-only": "warn", draining: "busy", "draining, absent": "warn", absent: "bad", lost: "bad", "given up": "none" };

const bookies = (rows) =>
  table(
    "Bookies",
    [
      { title: "Bookie", cell: (one) => [el("strong", {}, one.address || "in this process"), one.rack ? muted(` ${one.rack}`) : null] },
      { title: "State", cell: (one) => pill(one.state, KINDS[one.state] ?? "none") },
      { title: "Disk", cell: disk },
      { title: "Damaged copies", kind: "num", cell: (one) => count(one.damagedCopies) },
      { title: "Ledgers to move", kind: "num", cell: (one) => count(one.ledgersLeft) },
      { title: "Note", cell: (one) => el("span", { class: "note" }, one.note || "–") },
      { title: "", kind: "act", cell: bookieActions },
    ],
    rows,
    (one) => one.uuid,
    "No bookies are registered.",
  );

function disk(one) {
  if (!one.totalBytes) return "–";
  return meter(1 - one.freeBytes / one.totalBytes, `${bytes(one.freeBytes)} free of ${bytes(one.totalBytes)}`);
}

const nameOf = (one) => (one.address ? `bookie ${one.address}` : "the bookie in this process");

function bookieActions(one) {
  if (!one.address) return null; // it runs in the broker's process
  const act = (what) => () => ask("PUT", path`/quire/v1/bookies/${one.uuid}/` + what);
  if (one.state.startsWith("draining") || one.state === "given up")
    return button("Keep", () => question({ title: `Keep ${nameOf(one)}?`, text: "The bookie accepts new entries again. Copies already made on other bookies are kept.", button: "Keep", act: act("keep") }));
  if (one.state === "absent" || one.state === "lost")
    return button("Recover", () =>
      question({ title: `Recover ${nameOf(one)}?`, text: "Its ledgers are replicated immediately from their remaining copies. Use this only if the bookie will not come back.", button: "Recover", danger: true, act: act("recover") }));
  return button("Decommission", () =>
    question({ title: `Decommission ${nameOf(one)}?`, text: "The bookie accepts no new entries. Its ledgers are copied to other bookies, and then it leaves the cluster.", button: "Decommission", danger: true, act: act("decommission") }));
}

function repair(one, bookieCount) {
  const leaving = Object.values(one.left ?? {}).reduce((all, each) => all + each, 0);
  if (!one.coordinator) return panel("Repair", el("p", { class: "empty" }, bookieCount ? "No ledgers have been checked yet." : "No bookies are registered, so there is nothing to repair."));
  const lost = Object.keys(one.lostLedgers ?? {});
  return panel(
    "Repair",
    facts([
      ["State", pill(one.state, one.state === "idle" ? "ok" : "busy")],
      ["Coordinator", one.coordinator || "–"],
      ["Checked", `${count(one.checked)} of ${plural(one.ledgers, "ledger")}`],
      ["Repaired", `${plural(one.repaired, "ledger")}, ${bytes(one.bytesCopied)}`],
      leaving ? ["Still to move", plural(leaving, "ledger")] : null,
      one.unplaced ? ["Lacking a bookie", pill(plural(one.unplaced, "ledger"), "warn")] : null,
      one.failed ? ["Failed", el("span", { class: "bad-text" }, `${plural(one.failed, "ledger")}: ${one.error}`)] : null,
      ["Lost ledgers", lost.length ? pill(plural(lost.length, "ledger"), "bad") : "none"],
      ["Updated", ago(one.updatedMs)],
    ]),
    { actions: button("Check all ledgers", checkAll) },
  );
}

const checkAll = () =>
  question({
    title: "Check all ledgers now?",
    text: "The coordinator checks that each ledger has all its copies, and creates missing ones.",
    button: "Check",
    act: () => ask("POST", "/quire/v1/repair/run"),
  });

function archive(one) {
  if (!one) return panel("Archive", el("p", { class: "empty" }, "No archive is configured."));
  return panel(
    "Archive",
    facts([
      ["Archived by this broker since its start", `${plural(one.archived, "segment")}, ${bytes(one.archived_bytes)}`],
      ["Waiting", count(one.waiting)],
      ["Failing", one.failing?.length ? el("ul", {}, one.failing.map((each) => el("li", {}, code(String(each))))) : "none"],
    ]),
  );
}
