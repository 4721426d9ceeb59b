// Line-by-line difference of two texts.

const LINES_MAX = 600;

/** Return `[sign, line]` for each line: " " is in both texts, "-" only in the old one, "+" only in the new one. */
export function diff(old, now) {
  const a = old.split("\n"), b = now.split("\n");
  if (a.length > LINES_MAX || b.length > LINES_MAX) return [...a.map((one) => ["-", one]), ...b.map((one) => ["+", one])];
  // common[i][j]: length of the longest common subsequence of the lines from i in `a` and from j in `b`
  const common = Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i -= 1)
    for (let j = b.length - 1; j >= 0; j -= 1) common[i][j] = a[i] === b[j] ? common[i + 1][j + 1] + 1 : Math.max(common[i + 1][j], common[i][j + 1]);
  const found = [];
  let i = 0, j = 0;
  while (i < a.length || j < b.length) {
    if (i < a.length && j < b.length && a[i] === b[j]) found.push([" ", a[i++]]), (j += 1);
    else if (i < a.length && (j === b.length || common[i + 1][j] >= common[i][j + 1])) found.push(["-", a[i++]]);
    else found.push(["+", b[j++]]);
  }
  return found;
}
