// Light or dark theme: the system's, unless the user chooses one, which is stored in this browser.

import { el } from "./dom.js";

const KEY = "quire.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

const chosen = () => (NEXT[localStorage.getItem(KEY)] ? localStorage.getItem(KEY) : "auto");

export function applyTheme() {
  document.documentElement.dataset.theme = chosen();
}

export function themeButton() {
  const one = el("button", { type: "button", class: "theme", onclick: turn });
  const label = () => {
    one.textContent = SIGNS[chosen()];
    one.title = `Theme: ${chosen()}`;
    one.setAttribute("aria-label", `Theme: ${chosen()}; switch to ${NEXT[chosen()]}`);
  };
  function turn() {
    localStorage.setItem(KEY, NEXT[chosen()]);
    applyTheme();
    label();
  }
  label();
  return one;
}
