// Log-in, where REST asks for it: a token, or a user with a password. They are tried before they are kept.

import { Refused, credentials, get } from "../api.js";
import { el, fill } from "../dom.js";

export function logIn(root, done) {
  const wrong = el("p", { class: "wrong", role: "alert" });
  const token = el("textarea", { id: "token", rows: 4, autocomplete: "off", spellcheck: "false" });
  const user = el("input", { id: "user", autocomplete: "username", spellcheck: "false" });
  const password = el("input", { id: "password", type: "password", autocomplete: "current-password" });
  const form = el(
    "form",
    { class: "log-in panel", onsubmit: tryIt },
    el("h1", {}, "Log in"),
    el("p", { class: "quiet" }, "What you may here is what you may over REST."),
    el("label", { class: "field", for: "token" }, "Token", token),
    el("p", { class: "or" }, "or"),
    el("label", { class: "field", for: "user" }, "User", user),
    el("label", { class: "field", for: "password" }, "Password", password),
    wrong,
    el("button", { type: "submit", class: "primary" }, "Log in"),
  );

  async function tryIt(event) {
    event.preventDefault();
    const header = shown();
    if (!header) return fill(wrong, "Paste a token, or say who you are");
    credentials.keep(header);
    try {
      await get("/quire/v1/whoami");
    } catch (error) {
      credentials.forget();
      return fill(wrong, error instanceof Refused ? error.message : "The browser cannot send this");
    }
    done();
  }

  function shown() {
    if (token.value.trim()) return `Bearer ${token.value.trim()}`;
    if (!user.value) return "";
    const raw = new TextEncoder().encode(`${user.value}:${password.value}`);
    return `Basic ${btoa(String.fromCharCode(...raw))}`;
  }

  fill(root, el("div", { class: "page" }, form));
  token.focus();
}
