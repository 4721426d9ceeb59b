// Addresses of objects in the console and in the REST API.

import { path } from "./api.js";

/** Split a topic's full or short name into its four parts. Return null if it is not a topic name. */
export function parts(name) {
  const match = /^(persistent|non-persistent):\/\/([^/]+)\/([^/]+)\/(.+)$/s.exec(name);
  if (match) return { domain: match[1], tenant: match[2], namespace: match[3], topic: match[4] };
  if (name.includes("://")) return null;
  const [tenant, namespace, ...rest] = name.split("/");
  if (rest.length) return { domain: "persistent", tenant, namespace, topic: rest.join("/") };
  return { domain: "persistent", tenant: "public", namespace: "default", topic: name };
}

/** Return the short form of a full topic name, as clients may use it. */
export const shortName = (name) => name.replace(/^persistent:\/\//, "");

export function topicLink(name, tab = "") {
  const one = parts(name) ?? { domain: "persistent", tenant: "public", namespace: "default", topic: name };
  return path`#/topic/${one.domain}/${one.tenant}/${one.namespace}/${one.topic}` + (tab ? `/${tab}` : "");
}

export const namespaceLink = (tenant, namespace, tab = "") => path`#/topics/${tenant}/${namespace}` + (tab ? `/${tab}` : "");

export const namespacePath = ({ tenant, namespace }) => path`/admin/v2/namespaces/${tenant}/${namespace}`;
export const topicPath = (one) => path`/admin/v2/${one.domain}/${one.tenant}/${one.namespace}/${one.topic}`;
export const quireNamespacePath = ({ tenant, namespace }) => path`/quire/v1/namespaces/${tenant}/${namespace}`;
export const quirePath = (one) => path`/quire/v1/topics/${one.domain}/${one.tenant}/${one.namespace}/${one.topic}`;
