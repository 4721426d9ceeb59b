// Versions of a topic's schema, newest first.

import { ask, get, path } from "../api.js";
import { diff } from "../diff.js";
import { question } from "../dialogs.js";
import { el } from "../dom.js";
import { time } from "../format.js";
import { live } from "../live.js";
import { button, muted, panel, pill } from "../parts.js";

const KINDS = ["JSON", "AVRO", "STRING", "PROTOBUF", "PROTOBUF_NATIVE", "KEY_VALUE", "INT32", "INT64", "DOUBLE", "BOOLEAN"];

export function schemas(root, place) {
  const where = path`/admin/v2/schemas/${place.tenant}/${place.namespace}/${place.topic}`;
  return live(root, (signal) => get(`${where}/schemas`, { signal }), (said) => view(said.getSchemaResponses, where), { everyMs: 10_000 });
}

function view(all, where) {
  const add = () =>
    question({
      title: "New schema version",
      button: "Add",
      fields: [
        { name: "type", label: "Type", options: KINDS.map((one) => [one, one]) },
        { name: "schema", label: "Definition", kind: "area", hint: "For records, an Avro definition in JSON" },
      ],
      act: async ({ type, schema }) => `Schema version ${(await ask("POST", `${where}/schema`, { type, schema })).version} was added`,
    });
  const remove = () =>
    question({ title: "Delete the schema?", text: "All versions are deleted for new messages. Existing messages can still be decoded.", button: "Delete", danger: true, mustType: "delete", act: async () => { await ask("DELETE", `${where}/schema`); } });
  return [
    el("div", { class: "head" }, muted("Each message is decoded with the schema version that it was written with."), el("div", { class: "actions" }, button("New version", add), all.length ? button("Delete", remove) : null)),
    all.length ? all.map((one, at) => version(one, all[at - 1])).reverse() : el("section", { class: "panel" }, el("p", { class: "empty" }, "The topic has no schema: messages are raw bytes.")),
  ];
}

/** Show a version, and its changes since the previous one. */
function version(one, before) {
  const shown = panel(
    `Version ${one.version}`,
    [
      before ? el("details", { class: "changes", open: true }, el("summary", {}, `Changes since version ${before.version}`), changes(before, one)) : null,
      one.data ? el("details", { class: "changes", open: !before }, el("summary", {}, "Definition"), el("pre", { class: "definition", tabindex: 0 }, pretty(one.data))) : null,
    ],
    { actions: [pill(one.type), muted(time(one.timestamp))] },
  );
  shown.dataset.key = `version ${one.version}`;
  return shown;
}

const KINDS_OF_LINES = { "-": "removed", "+": "added", " ": "same" };

function changes(before, one) {
  const lines = diff(`type ${before.type}\n${pretty(before.data)}`, `type ${one.type}\n${pretty(one.data)}`);
  const near = lines.map((_, at) => lines.slice(Math.max(0, at - 2), at + 3).some(([sign]) => sign !== " "));
  return el("pre", { class: "definition", tabindex: 0 }, lines.map(([sign, line], at) => (near[at] ? el("span", { class: `line ${KINDS_OF_LINES[sign]}` }, `${sign} ${line}\n`) : near[at - 1] ? "  …\n" : null)));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
