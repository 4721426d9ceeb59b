// Log-in form: a token, or a user and a password. Credentials are kept only if the broker accepts them.

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
    el("p", { class: "quiet" }, "You have the same permissions here as over REST."),
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
    if (!header) return fill(wrong, "Enter a token, or a user and a password");
    credentials.keep(header);
    try {
      await get("/quire/v1/whoami");
    } catch (error) {
      credentials.forget();
      return fill(wrong, error instanceof Refused ? error.message : "The browser cannot send these credentials");
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
