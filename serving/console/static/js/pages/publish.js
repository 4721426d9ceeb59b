// Publish dialog. The broker encodes the value with the topic's latest schema, and rejects one that does not match.

import { ask, get, path } from "../api.js";
import { inputError, question } from "../dialogs.js";
import { el } from "../dom.js";
import { quirePath, topicLink } from "../links.js";

const TEXT_SCHEMAS = ["BYTES", "STRING"];

export async function publish(place, name) {
  const known = await get(path`/admin/v2/schemas/${place.tenant}/${place.namespace}/${place.topic}/schemas`).catch(() => null);
  const schema = known?.getSchemaResponses.at(-1);
  const isJson = schema && !TEXT_SCHEMAS.includes(schema.type);
  question({
    title: `Publish to ${place.topic}`,
    text: schema ? `The topic's schema is ${schema.type}, version ${schema.version}: enter ${isJson ? "a JSON value that matches it." : "text."}` : "",
    button: "Publish",
    fields: [
      { name: "value", label: "Value", kind: "area", value: isJson ? example(schema) : "" },
      isJson ? null : { name: "form", label: "Format", options: [["text", "Text"], ["json", "JSON"], ["null", "Null (tombstone)"]] },
      { name: "key", label: "Key" },
      { name: "properties", label: "Properties", kind: "area", rows: 2, hint: "one NAME=VALUE per line" },
      { name: "delay", label: "Delay (seconds)", kind: "number", value: "0", hint: "for Shared and Key_Shared subscriptions" },
    ].filter(Boolean),
    act: async ({ value, form, key, properties, delay }) => {
      if (form === "json") check(value);
      const message = { value: form === "null" ? null : value, key: key === "" ? null : key, properties: pairs(properties), delayS: Number(delay) || 0 };
      const stored = await ask("POST", `${quirePath(place)}/messages`, message);
      const partition = /-partition-(\d+)$/.exec(stored.topic)?.[1];
      const link = topicLink(stored.topic === name ? name : stored.topic, "messages");
      return [`Message ${stored.messageId} is stored${partition ? ` in partition ${partition}` : ""}. `, el("a", { href: `${link}?from=${stored.messageId}&count=1` }, "Show it")];
    },
  });
}

function check(text) {
  try {
    JSON.parse(text);
  } catch (error) {
    throw inputError(`The value is not valid JSON: ${error.message}`);
  }
}

function pairs(text) {
  const found = {};
  for (const one of text.split("\n").filter((each) => each.trim())) {
    const at = one.indexOf("=");
    if (at < 1) throw inputError(`Property “${one}” must have the form NAME=VALUE`);
    found[one.slice(0, at)] = one.slice(at + 1);
  }
  return found;
}

const EMPTY = { null: null, boolean: false, int: 0, long: 0, float: 0, double: 0, bytes: "", string: "", array: [], map: {} };

/** Return an example value for an Avro definition, or an empty text if it cannot be parsed. */
function example(schema) {
  try {
    return JSON.stringify(empty(JSON.parse(schema.data), 0), null, 2) ?? "";
  } catch {
    return "";
  }
}

function empty(type, depth) {
  if (depth > 5) return null;
  if (Array.isArray(type)) return type.includes("null") ? null : empty(type[0], depth + 1);
  if (type?.type === "record") return Object.fromEntries(type.fields.map((one) => [one.name, "default" in one ? one.default : empty(one.type, depth + 1)]));
  if (type?.type === "enum") return type.symbols[0];
  if (type?.type === "fixed") return "\0".repeat(type.size);
  return typeof type === "object" ? empty(type.type, depth + 1) : (EMPTY[type] ?? null);
}
