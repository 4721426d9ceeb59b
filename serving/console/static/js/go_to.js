// Topic search field: it completes names in all namespaces, opens the only match, or lists all matches.

import { get, query } from "./api.js";
import { el, fill } from "./dom.js";
import { shortName, topicLink } from "./links.js";

const TYPED_MS = 200, SHOWN_MAX = 12;

export const topicsLike = (contains, limit, options) => get(`/quire/v1/topics${query({ contains, limit })}`, options);

export function goTo() {
  let typing = 0, names = [];
  const offers = el("datalist", { id: "go-topics" });
  const search = el("input", { type: "search", id: "go", list: "go-topics", placeholder: "Go to topic…", "aria-label": "Go to a topic", autocomplete: "off", spellcheck: "false", oninput: typed });

  function typed(event) {
    clearTimeout(typing);
    const text = search.value.trim();
    const chosen = names.find((one) => shortName(one) === text);
    if (chosen && event.inputType !== "insertText") return go(chosen);
    if (text) typing = setTimeout(() => offer(text), TYPED_MS);
  }

  async function offer(text) {
    try {
      names = await topicsLike(text, SHOWN_MAX);
    } catch {
      names = []; // the field works without completions
    }
    fill(offers, names.map((one) => el("option", { value: shortName(one) })));
  }

  function go(name) {
    clearTimeout(typing);
    location.hash = topicLink(name);
    search.value = "";
    search.blur();
  }

  async function submit(event) {
    event.preventDefault();
    const text = search.value.trim();
    if (!text) return;
    await offer(text);
    const same = names.filter((one) => one === text || shortName(one) === text || shortName(one) === `public/default/${text}`);
    if (same.length || names.length === 1) return go(same[0] ?? names[0]);
    clearTimeout(typing);
    location.hash = `#/find${query({ contains: text })}`;
    search.value = "";
    search.blur();
  }

  return el("form", { role: "search", onsubmit: submit }, search, offers);
}
