// Entry point of the console: log-in, navigation, and the router from `#/…` to pages.
//
// A page is `(root, parameters, query) => { stop() }`. It fills `root` and keeps it up to date until it is stopped.

import { credentials, get } from "./api.js";
import { el, fill } from "./dom.js";
import { archive } from "./pages/archive.js";
import { cluster } from "./pages/cluster.js";
import { logIn } from "./pages/log_in.js";
import { namespace } from "./pages/namespace.js";
import { namespaces } from "./pages/namespaces.js";
import { connections } from "./pages/connections.js";
import { find } from "./pages/find.js";
import { schemas } from "./pages/schemas.js";
import { tenants } from "./pages/tenants.js";
import { topic } from "./pages/topic.js";
import { goTo } from "./go_to.js";
import { applyTheme, themeButton } from "./theme.js";

const PAGES = [
  ["cluster", cluster],
  ["topics", namespaces],
  ["topics/:tenant/:namespace", namespace],
  ["topics/:tenant/:namespace/:part", namespace],
  ["topic/:domain/:tenant/:namespace/:topic", topic],
  ["topic/:domain/:tenant/:namespace/:topic/:part", topic],
  ["archive", archive],
  ["connections", connections],
  ["find", find],
  ["schemas", schemas],
  ["tenants", tenants],
];
const NAVIGATION = [
  ["cluster", "Cluster"],
  ["topics", "Topics"],
  ["schemas", "Schemas"],
  ["connections", "Connections", "superusers"],
  ["archive", "Archive"],
  ["tenants", "Tenants", "superusers"],
];

const main = document.getElementById("main");
let current = null;
let who = null;

/** Match a hash such as `#/topics/public/default?page=2` to a page, its parameters and query; null if none matches. */
function found(hash) {
  const [where, search = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = (where || "cluster").split("/").map(decoded);
  for (const [pattern, page] of PAGES) {
    const wanted = pattern.split("/");
    if (wanted.length !== parts.length) continue;
    if (wanted.every((one, at) => one.startsWith(":") || one === parts[at])) {
      const named = wanted.map((one, at) => [one.slice(1), parts[at]]).filter((_, at) => wanted[at].startsWith(":"));
      return { page, parameters: Object.fromEntries(named), query: new URLSearchParams(search), section: parts[0] };
    }
  }
  return null;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function show() {
  const place = found(location.hash);
  current?.stop();
  current = null;
  if (!place) return unknown();
  document.querySelectorAll("#nav a").forEach((link) => {
    if (link.dataset.section === place.section || (place.section === "topic" && link.dataset.section === "topics") || (place.section === "find" && link.dataset.section === "topics"))
      link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  });
  const root = el("div", { class: "page" });
  fill(main, root);
  current = place.page(root, place.parameters, place.query, who);
  for (const one of document.querySelectorAll("nav [aria-current]")) one.scrollIntoView({ block: "nearest", inline: "center" });
}

function unknown() {
  fill(main, el("div", { class: "page" }, el("h1", {}, "There is no such page"), el("p", {}, el("a", { href: "#/cluster" }, "Go to the cluster page"))));
}

function frame() {
  fill(document.getElementById("nav"), NAVIGATION.filter(([, , whose]) => !whose || !who || who.isSuperuser).map(([section, title]) => el("a", { href: `#/${section}`, "data-section": section }, title)));
  const role = who?.role ? el("span", { class: "role", title: "Logged in as" }, who.role) : null;
  const out = who?.asksWho && credentials.get() ? el("button", { type: "button", onclick: logOut }, "Log out") : null;
  fill(document.getElementById("tools"), goTo(), role, themeButton(), out);
}

function logOut() {
  credentials.forget();
  who = null;
  askWho();
}

function askWho() {
  current?.stop();
  current = null;
  frame();
  logIn(main, begin);
}

/** Show the log-in form if the broker requires authentication. Pages report any other error themselves. */
async function begin() {
  try {
    who = await get("/quire/v1/whoami");
  } catch (error) {
    if (error.status === 401) return askWho();
    who = null;
  }
  frame();
  show();
}

applyTheme();
addEventListener("hashchange", () => {
  show();
  main.focus({ preventScroll: true });
  scrollTo(0, 0);
});
addEventListener("quire:changed", () => current?.refresh?.());
addEventListener("quire:log-in", askWho);
addEventListener("keydown", (event) => {
  if (event.key === "/" && !/^(INPUT|TEXTAREA|SELECT)$/.test(event.target.nodeName) && !document.querySelector("dialog")) {
    event.preventDefault();
    document.getElementById("go")?.focus();
  }
});
document.querySelector(".skip").onclick = (event) => {
  event.preventDefault();
  main.focus();
};
begin();
