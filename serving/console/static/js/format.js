// Human-readable formats of numbers and times.

const COUNT = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const ONE = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });
const UNITS = ["B", "kB", "MB", "GB", "TB", "PB"];

export const count = (number) => (number === null || number === undefined ? "–" : COUNT.format(number));

export function short(number) {
  if (number === null || number === undefined) return "–";
  return Math.abs(number) < 10_000 ? (Number.isInteger(number) ? COUNT : ONE).format(number) : SHORT.format(number);
}

export function bytes(number) {
  if (number === null || number === undefined) return "–";
  let unit = 0;
  while (Math.abs(number) >= 1000 && unit < UNITS.length - 1) {
    number /= 1000;
    unit += 1;
  }
  return `${unit ? (number < 100 ? ONE : COUNT).format(number) : COUNT.format(number)} ${UNITS[unit]}`;
}

/** A rate of zero is a dash, so that active topics stand out. */
export const rate = (number) => (number ? `${short(number < 0.1 ? 0.1 : number < 100 ? Math.round(number * 10) / 10 : Math.round(number))}/s` : "–");
export const byteRate = (number) => (number ? `${bytes(number)}/s` : "–");

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  const steps = [
    ["d", 86_400],
    ["h", 3_600],
    ["min", 60],
    ["s", 1],
  ];
  for (const [at, [unit, size]] of steps.entries()) {
    if (seconds < size && unit !== "s") continue;
    const whole = Math.floor(seconds / size);
    const [lesser, lesserSize] = steps[at + 1] ?? [];
    const rest = lesser ? Math.floor((seconds % size) / lesserSize) : 0;
    return whole < 10 && rest ? `${whole} ${unit} ${rest} ${lesser}` : `${whole} ${unit}`;
  }
}

/** Format a time in UTC, as in the logs. */
export const time = (ms) => (ms > 0 ? `${new Date(ms).toISOString().slice(0, 19).replace("T", " ")}Z` : "–");

export function ago(ms, nowMs = Date.now()) {
  if (!(ms > 0)) return "–";
  const seconds = Math.round((nowMs - ms) / 1000);
  return seconds < 2 && seconds > -2 ? "now" : seconds > 0 ? `${duration(seconds)} ago` : `in ${duration(-seconds)}`;
}

export const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;
