// Live pages: their data are fetched again every few seconds while the browser tab is visible.

import { el, fill, morph } from "./dom.js";

const EVERY_MS = 3_000;
const PATIENCE_MS = 200; // before “Loading…” is shown: most responses are faster, which avoids flicker

/**
 * Show `view(await load(signal))` in `root` periodically. Return `{ refresh, stop }`.
 *
 * An error of the first load replaces the content. A later error is shown above the last content.
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
  const title = { 403: "Access denied", 404: "Not found" }[error.status] ?? "Loading failed";
  return el(
    "div",
    { class: "notice bad", role: "alert" },
    el("strong", {}, wasShown ? "Not up to date" : title),
    el("p", {}, error.message),
  );
}
