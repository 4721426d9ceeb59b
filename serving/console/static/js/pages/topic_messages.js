// Message browser. Messages are decoded by their schemas and never consumed.
//
// It shows pages from the newest or oldest message, a position, an index or a time; a live tail; search results; and
// the first unacknowledged messages of a subscription. A search requests one bounded slice after another, so it shows
// its progress and can be stopped.

import { get, query as asQuery, subscriptionPath } from "../api.js";
import { tell } from "../dialogs.js";
import { el, fill, save } from "../dom.js";
import { count, plural } from "../format.js";
import { quirePath, topicLink, topicPath } from "../links.js";
import { live, problem } from "../live.js";
import { button, muted } from "../parts.js";
import { after, card, line } from "./message.js";

const TAIL_MS = 1_000, TAIL_ROWS_MAX = 500, TAIL_COUNT = 100;
const HITS_MAX = 200, SLICE_COUNT = 100;
const SAVED_MAX = 10_000, SAVED_CHARS_MAX = 64e6;
const CONDITIONS = ["key", "value", "property", "since", "until"];

export function messages(root, place, query) {
  return query.get("subscription") ? waiting(root, place, query.get("subscription")) : browser(root, place, query);
}

function waiting(root, place, subscription) {
  const load = (signal) => get(`${quirePath(place)}${subscriptionPath(subscription)}/messages`, { signal });
  const view = (looks) => [
    el("div", { class: "head" }, el("p", {}, "The first unacknowledged messages of subscription ", el("strong", {}, subscription), ". ", el("a", { href: topicLink(place.name, "messages") }, "Show all")), button("Refresh", () => shown.refresh())),
    looks.length ? looks.map(card) : nothing("There are no unacknowledged messages."),
  ];
  const shown = live(root, load, view, { everyMs: 0 });
  return shown;
}

const nothing = (text) => el("section", { class: "panel" }, el("p", { class: "empty" }, text));

/** Parse a time in UTC. Return null if the text does not begin with a date. */
function moment(text) {
  const ms = /^\d{4}-/.test(text) ? Date.parse(text.endsWith("Z") ? text : `${text.replace(" ", "T")}Z`) : NaN;
  return Number.isNaN(ms) ? null : ms;
}

function browser(root, place, query) {
  const state = { from: query.get("from") || "latest", count: query.get("count") || "20", partition: query.get("partition") || "0" };
  for (const name of CONDITIONS) state[name] = query.get(name) ?? "";
  let where = place, doing = new AbortController(), timer = 0, shown = [], stopped = false, isTailing = false, isSearch = false;
  const status = el("div", { class: "search-status", role: "status" }), list = el("div", { class: "stack" });
  const tail = button("Live", () => (isTailing ? end() : follow()), { "aria-pressed": "false" });
  const older = button("Older", () => turn({ before: shown.at(-1)?.position }, "older"));
  const newer = button("Newer", () => turn({ from: shown.length ? after(shown[0].position) : "earliest" }, "newer"));
  const form = controls(state, { look, search, download, tail });
  const choice = el("div", { class: "choice" });
  fill(root, el("div", {}, choice, form, status, list, el("div", { class: "pager plain" }, older, newer)));

  /** Cancel the current operation. Its late results are discarded. */
  function end() {
    clearTimeout(timer);
    doing.abort();
    doing = new AbortController();
    isTailing = false;
    tail.setAttribute("aria-pressed", "false");
    fill(status);
    return doing.signal;
  }

  function remember() {
    const { from, partition } = state;
    const kept = Object.fromEntries(CONDITIONS.map((name) => [name, state[name]]));
    history.replaceState(null, "", topicLink(place.name, "messages") + asQuery({ from: from === "latest" ? "" : from, count: state.count === "20" ? "" : state.count, partition: partition === "0" ? "" : partition, ...kept }));
  }

  /** Show messages, newest first. */
  function show(looks) {
    shown = looks;
    fill(list, looks.length ? looks.map(card) : nothing("There are no messages at this position."));
    older.disabled = newer.disabled = !looks.length;
  }

  async function attempt(work) {
    const signal = end();
    try {
      await work(signal);
    } catch (error) {
      if (stopped || signal.aborted || error.name === "AbortError") return;
      if (error.status === 401) return dispatchEvent(new CustomEvent("quire:log-in"));
      if (error.status === undefined) console.error(error);
      isTailing = false;
      tail.setAttribute("aria-pressed", "false");
      fill(status, problem(error, shown.length > 0));
    }
  }

  const ask = async (values, signal) => (await get(`${quirePath(where)}/messages${asQuery({ count: state.count, ...values })}`, { signal })).reverse();

  function look() {
    isSearch = false;
    remember();
    const ms = moment(state.from);
    return attempt(async (signal) => show(await ask(ms === null ? { from: state.from } : { time: ms }, signal)));
  }

  const turn = (values, word) =>
    attempt(async (signal) => {
      const looks = await ask(values, signal);
      if (looks.length) show(looks);
      else fill(status, muted(`There are no ${word} messages.`));
    });

  const follow = () =>
    attempt(async (signal) => {
      isTailing = true;
      tail.setAttribute("aria-pressed", "true");
      show(await ask({ from: "latest" }, signal));
      fill(status, muted("New messages appear here while this tab is visible."));
      while (!signal.aborted) {
        await new Promise((done) => (timer = setTimeout(done, TAIL_MS)));
        if (document.visibilityState === "visible") await fetchNew(signal);
      }
    });

  async function fetchNew(signal) {
    let looks;
    do {
      looks = await ask({ from: shown.length ? after(shown[0].position) : "earliest", count: TAIL_COUNT }, signal);
      if (!looks.length) return;
      const kept = shown.slice(0, TAIL_ROWS_MAX - looks.length);
      for (const one of [...list.children].slice(kept.length)) one.remove();
      list.prepend(...looks.map(card));
      shown = [...looks, ...kept];
    } while (looks.length === TAIL_COUNT && !signal.aborted);
  }

  /** Return the search conditions as REST's parameters. */
  function conditions() {
    const { from, key, value, property, since, until } = state;
    return { key, value, property, sinceMs: (since && moment(since)) || moment(from), untilMs: until && moment(until) };
  }

  /** Fetch slices from position `from` on, until `take(slice)` returns false or the topic ends. */
  async function slices(from, values, signal, take) {
    while (from !== null) {
      const slice = await get(`${quirePath(where)}/search${asQuery({ ...conditions(), from, count: SLICE_COUNT, ...values })}`, { signal });
      if (signal.aborted) return;
      from = slice.isEnd ? null : slice.next;
      if (take(slice) === false) return;
    }
  }

  const begin = () => (state.from === "latest" || moment(state.from) !== null ? "earliest" : state.from);

  /** Show a progress bar with a text and a stop button. Return the function that updates it. */
  function progress(signal) {
    const bar = el("progress", { max: 1, value: 0 }), text = el("span", {}), stop = button("Stop", end);
    fill(status, el("div", { class: "progress" }, bar, text, stop));
    return (slice, found) => {
      if (signal.aborted) return;
      const all = slice.endIndex - slice.firstIndex;
      bar.value = all ? (slice.index - slice.firstIndex) / all : 1;
      text.textContent = `${count(slice.index - slice.firstIndex)} of ${plural(all, "message")}, ${count(found)} found`;
    };
  }

  function search(from = begin()) {
    isSearch = true; // a message published by this page must not replace the results
    remember();
    return attempt(async (signal) => {
      const tick = progress(signal), found = [];
      let last = null;
      show([]);
      fill(list);
      await slices(from, {}, signal, (slice) => {
        last = slice;
        found.push(...slice.messages);
        list.append(...slice.messages.map(card));
        tick(slice, found.length);
        return found.length < HITS_MAX;
      });
      if (signal.aborted) return;
      const rest = last.isEnd ? null : button("Continue", () => search(last.next));
      fill(status, el("div", { class: "progress" }, el("span", {}, `${plural(found.length, "message")} found, oldest first${last.isEnd ? "" : "; there may be more"}`), rest));
    });
  }

  function download() {
    return attempt(async (signal) => {
      const tick = progress(signal), lines = [];
      let chars = 0, isAll = true;
      await slices(begin(), { whole: true }, signal, (slice) => {
        for (const one of slice.messages) {
          lines.push(line(one));
          chars += lines.at(-1).length;
        }
        tick(slice, lines.length);
        isAll = slice.isEnd;
        return lines.length < SAVED_MAX && chars < SAVED_CHARS_MAX;
      });
      if (signal.aborted) return;
      save(`${where.topic.replace(/[^\w.-]+/g, "_")}.ndjson`, "application/x-ndjson", lines);
      fill(status);
      tell(`${plural(lines.length, "message")} saved${isAll ? "" : "; narrow the search to save the rest"}`);
    });
  }

  async function start() {
    try {
      const { partitions } = await get(`${topicPath(place)}/partitions`);
      if (partitions) {
        const choose = () => (where = { ...place, topic: `${place.topic}-partition-${state.partition}` });
        choose();
        const change = (event) => {
          state.partition = event.target.value;
          choose();
          look();
        };
        const options = Array.from({ length: partitions }, (_, at) => el("option", { value: at, selected: String(at) === state.partition }, at));
        fill(choice, el("div", { class: "filters" }, el("label", {}, muted("Partition "), el("select", { "aria-label": "Partition", onchange: change }, options))));
      }
    } catch (error) {
      if (error.status === 401) return dispatchEvent(new CustomEvent("quire:log-in"));
    }
    if (stopped) return;
    if (CONDITIONS.some((name) => state[name])) search();
    else look();
  }

  start();
  return {
    refresh: () => !isTailing && !isSearch && look(),
    stop() {
      stopped = true;
      end();
    },
  };
}

function controls(state, { look, search, download, tail }) {
  const from = el("input", { value: state.from, "aria-label": "From", list: "from-where", autocomplete: "off", spellcheck: "false" });
  const number = el("input", { type: "number", min: 1, max: 100, value: state.count, "aria-label": "Number of messages" });
  const field = (name, label, attributes) => {
    const input = el("input", { "data-name": name, "aria-label": label, value: state[name], autocomplete: "off", spellcheck: "false", ...attributes });
    return input;
  };
  const when = { placeholder: "2026-03-01 12:00" };
  const inputs = [
    field("key", "Key"),
    field("value", "Value contains"),
    field("property", "Property", { placeholder: "NAME or NAME=VALUE" }),
    field("since", "Published from", { ...when, title: "UTC" }),
    field("until", "Published before", { ...when, title: "UTC" }),
  ];
  const read = () => {
    state.from = from.value.trim() || "latest";
    state.count = number.value || "20";
    for (const one of inputs) state[one.dataset.name] = one.value;
  };
  const clear = () => {
    for (const one of inputs) one.value = "";
  };
  const doing = (act) => (event) => {
    event.preventDefault();
    for (const one of inputs.slice(3)) {
      const isWrong = one.value.trim() && moment(one.value.trim()) === null;
      one.setCustomValidity(isWrong ? "Enter a time such as 2026-03-01 12:00" : "");
      if (isWrong) return one.reportValidity();
    }
    act();
  };
  const isOpen = CONDITIONS.some((name) => state[name]);
  return el(
    "div",
    { class: "stack" },
    el(
      "form",
      { class: "filters", onsubmit: doing(() => (clear(), read(), look())) },
      from,
      el("datalist", { id: "from-where" }, ["latest", "earliest", "index:0"].map((one) => el("option", { value: one }))),
      number,
      el("button", { type: "submit" }, "Show"),
      tail,
      muted("latest, earliest, index:NUMBER, LEDGER:ENTRY, or a time in UTC such as 2026-03-01 12:00"),
    ),
    el(
      "details",
      { class: "panel search", open: isOpen },
      el("summary", {}, "Search and download"),
      el(
        "form",
        { class: "conditions", onsubmit: doing(() => (read(), search())) },
        inputs.map((one) => el("label", { class: "field" }, el("span", { class: "hint" }, one.getAttribute("aria-label")), one)),
        el("div", { class: "actions" }, el("button", { type: "submit", class: "primary" }, "Search"), button("Download", doing(() => (read(), download()))), muted("Matching messages starting at “From”, oldest first. A download contains full values, one JSON object per line.")),
      ),
    ),
  );
}
