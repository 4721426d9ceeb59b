// REST client. The console uses only the public REST API, so it has exactly the permissions of its user.
//
// After log-in the session storage of the tab contains the credentials (docs/console.md gives the reasons). Only this
// file sends them, only to this origin, and they are deleted with the tab. The browser attaches nothing by itself, so
// pages of other sites cannot use them (CSRF).

const KEY = "quire.credentials";

export class Refused extends Error {
  /** `status` is 0 if no broker responded. */
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

export const credentials = {
  keep: (header) => sessionStorage.setItem(KEY, header),
  forget: () => sessionStorage.removeItem(KEY),
  get: () => sessionStorage.getItem(KEY),
};

/** Build a path and percent-encode its parts: path`/admin/v2/tenants/${name}`. */
export function path(texts, ...parts) {
  return String.raw({ raw: texts }, ...parts.map((one) => encodeURIComponent(one)));
}

/** Return a subscription's path below its topic. Brokers decode the name twice, the second time as form data. */
export function subscriptionPath(name) {
  return path`/subscription/${name.replaceAll("%", "%25").replaceAll("+", "%2B")}`;
}

/** Build a query string of the values that are not empty. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** Send a request and return the JSON of its response; null if it is empty. Raise `Refused` on an error. */
export async function ask(method, where, body = undefined, { signal } = {}) {
  const headers = { Accept: "application/json", "X-Quire-Follow": "true" };
  if (credentials.get()) headers.Authorization = credentials.get();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let answer, text;
  try {
    const sent = body === undefined ? undefined : JSON.stringify(body);
    answer = await fetch(where, { method, headers, body: sent, signal, redirect: "error", cache: "no-store" });
    text = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, "No broker responds; it may be starting, or the network may be down.");
  }
  const said = parsed(text);
  if (!answer.ok) throw new Refused(answer.status, said?.reason ?? (text.slice(0, 500) || `HTTP status ${answer.status}`));
  return said;
}

export const get = (where, options) => ask("GET", where, undefined, options);

/** Return the result of `get`, or null if the object does not exist (404) or access is denied (403). */
export async function getIfAny(where, options) {
  try {
    return await get(where, options);
  } catch (error) {
    if (error.status === 404 || error.status === 403) return null;
    throw error;
  }
}

function parsed(text) {
  try {
    return text ? JSON.parse(text) : null;
  } catch {
    return null;
  }
}
