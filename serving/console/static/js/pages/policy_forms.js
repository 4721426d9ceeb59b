// Forms of policies: the fields of each policy, their units, and the meaning of special numbers.
//
// `fields` are `{ key, label, kind, unit, ... }` as in a dialog; a policy with one value has a field without a `key`. A
// policy without a form, as of a newer broker, is edited as JSON.

import { inputError } from "../dialogs.js";
import { bytes, count, duration } from "../format.js";

const number = (key, label, unit, special = {}) => ({ key, label, kind: "number", unit, special });
const yesNo = (key, label) => ({ key, label, kind: "check" });
const oneOf = (key, label, ...options) => ({ key, label, kind: "choice", options: options.map((one) => [one, one]) });
const text = (key, label) => ({ key, label, kind: "text" });

const AS_THE_BROKER = { 0: "broker default" };
const NO_LIMIT = { "-1": "no limit" }, OFF = { 0: "no limit" };
const limit = (unit) => ({ fields: [number("", "Maximum", unit, OFF)] });
const dispatch = {
  fields: [
    number("dispatchThrottlingRateInMsg", "Message limit", "messages", NO_LIMIT),
    number("dispatchThrottlingRateInByte", "Byte limit", "bytes", NO_LIMIT),
    number("ratePeriodInSecond", "Period", "seconds"),
  ],
};
const quota = (key, label, unit) => ({
  fields: [
    number(key, label, unit, NO_LIMIT),
    oneOf("policy", "Action when exceeded", "producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
  ],
});
const deduplication = { fields: [yesNo("", "Discard duplicate messages of a producer")] };

export const FORMS = {
  autoTopicCreation: {
    fields: [
      yesNo("allowAutoTopicCreation", "Create topics on first use"),
      oneOf("topicType", "Topic type", "non-partitioned", "partitioned"),
      number("defaultNumPartitions", "Default if partitioned", "partitions"),
    ],
    tidy: (value) => (value.topicType === "partitioned" ? value : { ...value, defaultNumPartitions: undefined }),
  },
  compactionThreshold: { fields: [number("", "Compact at a backlog of", "bytes", { 0: "off" })] },
  deduplication,
  deduplicationEnabled: deduplication,
  delayedDelivery: {
    fields: [yesNo("active", "Allow delayed messages"), number("tickTime", "Tick time", "ms"), number("maxDeliveryDelayInMillis", "Maximum delay", "ms", OFF)],
  },
  dispatchRate: dispatch,
  subscriptionDispatchRate: dispatch,
  iceberg: { fields: [text("catalog", "Catalog"), text("warehouse", "Warehouse"), text("namespace", "Namespace"), text("table", "Table")] },
  inactiveTopicPolicies: {
    fields: [
      yesNo("deleteWhileInactive", "Delete inactive topics"),
      oneOf("inactiveTopicDeleteMode", "Deletion mode", "delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
      number("maxInactiveDurationSeconds", "Maximum inactive time", "seconds"),
    ],
  },
  isAllowAutoUpdateSchema: { fields: [yesNo("", "Allow clients to add schema versions")] },
  maxConsumersPerSubscription: limit("consumers"),
  maxConsumersPerTopic: limit("consumers"),
  maxConsumers: limit("consumers"),
  maxMessageSize: limit("bytes"),
  maxProducersPerTopic: limit("producers"),
  maxProducers: limit("producers"),
  maxSubscriptionsPerTopic: limit("subscriptions"),
  maxTopicsPerNamespace: limit("topics"),
  maxUnackedMessagesPerConsumer: limit("messages"),
  maxUnackedMessagesOnConsumer: limit("messages"),
  messageTTL: { fields: [number("", "Expire after", "seconds", { 0: "never" })] },
  persistence: {
    fields: [number("bookkeeperWriteQuorum", "Write quorum", "copies", AS_THE_BROKER), number("bookkeeperAckQuorum", "Ack quorum", "copies", AS_THE_BROKER), { key: "storage", label: "Storage", kind: "choice", options: [["", "broker default"], ["bookies", "bookies"], ["objects", "objects"]] }],
    tidy: (value) => ({ ...value, bookkeeperEnsemble: value.bookkeeperWriteQuorum, storage: value.storage || undefined }),
  },
  publishRate: {
    fields: [number("publishThrottlingRateInMsg", "Messages per second", "messages", NO_LIMIT), number("publishThrottlingRateInByte", "Bytes per second", "bytes", NO_LIMIT)],
  },
  retention: {
    fields: [
      number("retentionTimeInMinutes", "Retention time", "minutes", { ...NO_LIMIT, 0: "no retention" }),
      number("retentionSizeInMB", "Retention size", "MiB", { ...NO_LIMIT, 0: "no retention" }),
    ],
  },
  schemaCompatibilityStrategy: {
    fields: [oneOf("", "Compatibility strategy", "FULL", "BACKWARD", "FORWARD", "FULL_TRANSITIVE", "BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "ALWAYS_COMPATIBLE", "ALWAYS_INCOMPATIBLE")],
  },
  schemaValidationEnforced: { fields: [yesNo("", "Reject producers without a schema")] },
  subscriptionExpirationTime: { fields: [number("", "Delete unused subscriptions after", "minutes", { 0: "never" })] },
};

/** The two types of `backlogQuota`, keyed by the type in REST's query. */
export const QUOTAS = {
  destination_storage: quota("limitSize", "Backlog size limit", "bytes"),
  message_age: quota("limitTime", "Backlog age limit", "seconds"),
};

const of = (value, key) => (key ? value?.[key] : value);

/** Return the dialog's fields, filled with `value`. */
export function fieldsOf(form, value) {
  return form.fields.map(({ key, label, kind, options, special, unit }) => {
    const now = of(value, key);
    const known = Object.entries(special ?? {}).map(([at, word]) => `${at}: ${word}`).join(", ");
    return {
      name: key || "value",
      label: kind === "number" ? `${label} (${unit})` : label,
      kind: kind === "choice" ? "text" : kind,
      options,
      value: kind === "number" ? String(now ?? "") : kind === "check" ? now === true : (now ?? ""),
      hint: kind === "number" && unit === "bytes" ? [known, now > 0 ? bytes(now) : ""].filter(Boolean).join("; ") : known,
      ...(kind === "number" ? { step: 1 } : {}),
    };
  });
}

/** Convert the form's input to REST's value. Raise an input error if a number is not valid. */
export function valueOf(form, values) {
  const found = {};
  for (const { key, label, kind } of form.fields) {
    const typed = values[key || "value"];
    if (kind === "number" && typed.trim() === "") continue;
    if (kind === "number" && !/^-?\d+$/.test(typed.trim())) throw inputError(`“${label}” must be a whole number`);
    found[key] = kind === "number" ? Number(typed) : typed;
  }
  if (form.fields[0].key) return form.tidy ? form.tidy(found) : found;
  if (found[""] === undefined) throw inputError(`“${form.fields[0].label}” must be a whole number`);
  return found[""];
}

/** Format a value for display: each field with its unit. */
export function shown(form, value) {
  if (value === null || value === undefined) return ["not set"];
  const lines = form.fields.map(({ key, label, kind, special, unit }) => {
    const now = of(value, key);
    if (now === null || now === undefined || now === "") return null;
    const said = kind === "number" ? (special[now] ?? measured(now, unit)) : kind === "check" ? (now ? "yes" : "no") : now;
    return key && form.fields.length > 1 ? `${label}: ${said}` : said;
  });
  const found = lines.filter((one) => one !== null);
  return found.length ? found : ["not set"];
}

function measured(now, unit) {
  if (unit === "bytes") return bytes(now);
  if (unit === "seconds") return duration(now);
  if (unit === "minutes") return duration(60 * now);
  return `${count(now)} ${unit}`;
}
