// REST, as everybody asks it. The console has no other way to a broker, so it may what its user may.
//
// Who logs in leaves his credentials in the storage of this tab (docs/console.md says why there): they are sent by this
// file alone, to this origin alone, and are gone with the tab. Nothing is sent by the browser itself, so no other
// site's page can use them.

const KEY = "quire.credentials";

export class Refused extends Error {
  /** `status` 0: no broker answered. */
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

/** A path whose parts may be any text: path`/admin/v2/tenants/${name}`. */
export function path(texts, ...parts) {
  return String.raw({ raw: texts }, ...parts.map((one) => encodeURIComponent(one)));
}

/** The part of a path that names a subscription of a topic: brokers decode it twice, the second time as in a form. */
export function subscriptionPath(name) {
  return path`/subscription/${name.replaceAll("%", "%25").replaceAll("+", "%2B")}`;
}

/** A query of what is not empty. */
export function query(values) {
  const given = Object.entries(values).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return given.length ? `?${new URLSearchParams(given)}` : "";
}

/** The JSON of an answer, null for none. Raises `Refused`. */
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
    throw new Refused(0, "no broker answers; it may be starting, or the network is away");
  }
  const said = parsed(text);
  if (!answer.ok) throw new Refused(answer.status, said?.reason ?? (text.slice(0, 500) || `status ${answer.status}`));
  return said;
}

export const get = (where, options) => ask("GET", where, undefined, options);

/** What `get` answers, or null where there is nothing (404) or one may not see it (403). */
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
