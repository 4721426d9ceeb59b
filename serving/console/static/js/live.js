// A page that is kept fresh: what it shows is asked for again every few seconds, while somebody can see it.

import { el, fill, morph } from "./dom.js";

const EVERY_MS = 3_000;
const PATIENCE_MS = 200; // before it is said that something loads: most answers are quicker, and nothing flashes

/**
 * Show `view(await load(signal))` in `root`, again and again. Returns `{ refresh, stop }`.
 *
 * While nothing was ever shown an error takes its place; later it is told above what was shown last.
 */
export function live(root, load, view, { everyMs = EVERY_MS } = {}) {
  let timer = 0, turn = 0, shown = null, aborting = new AbortController(), stopped = false;
  const notice = el("div", { class: "notice-place" });
  const place = el("div", {});
  fill(root, notice, place);
  const patience = setTimeout(() => fill(place, el("p", { class: "quiet loading" }, "Loading…")), PATIENCE_MS);

  async function refresh() {
    clearTimeout(timer);
    aborting.abort();
    aborting = new AbortController();
    const mine = ++turn;
    try {
      const data = await load(aborting.signal);
      if (stopped || mine !== turn) return;
      show(view(data));
      fill(notice);
    } catch (error) {
      if (stopped || mine !== turn || error.name === "AbortError") return;
      if (error.status === 401) return dispatchEvent(new CustomEvent("quire:log-in"));
      if (error.status === undefined) console.error(error);
      fill(notice, problem(error, shown !== null));
      if (shown === null) fill(place);
    } finally {
      clearTimeout(patience);
    }
    if (everyMs) timer = setTimeout(() => document.visibilityState === "visible" && refresh(), everyMs);
  }

  function show(node) {
    const wanted = el("div", {}, node);
    if (shown === null) fill(place, ...wanted.childNodes);
    else morph(place, wanted);
    shown = true;
  }

  const seen = () => document.visibilityState === "visible" && refresh();
  document.addEventListener("visibilitychange", seen);
  refresh();
  return {
    refresh,
    stop() {
      stopped = true;
      clearTimeout(timer);
      clearTimeout(patience);
      aborting.abort();
      document.removeEventListener("visibilitychange", seen);
    },
  };
}

export function problem(error, wasShown) {
  const title = { 403: "You may not see this", 404: "This is not here" }[error.status] ?? "This cannot be shown now";
  return el(
    "div",
    { class: "notice bad", role: "alert" },
    el("strong", {}, wasShown ? "Not up to date" : title),
    el("p", {}, error.message),
  );
}
