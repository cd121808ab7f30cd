// What a colour stands for, as on the project's other pages: green and pink are bits that retrieval saved
// and cost, yellow is a run of tokens shared with a neighbour. Limits and names are those of `retro.pages`.

/** The bits of a token that get the strongest colour: half a nat, as in the paper. */
export const LIMIT = 0.5 / Math.LN2;
const LEVELS = 4;

/** Runs are coloured from the shortest, and look the same from the longest. */
export const SHORTEST_RUN = 2;
export const LONGEST_RUN = 5;

/** The class of a token by the bits that retrieval saved on it; none for almost nothing. */
export function gainClass(bits) {
  if (!Number.isFinite(bits)) return "";
  const level = Math.max(-LEVELS, Math.min(LEVELS, Math.round((bits / LIMIT) * LEVELS)));
  if (level === 0) return "";
  return level > 0 ? `b${level}` : `w${-level}`;
}

/** The class of a token by the length of the shared run that it lies in; none for what may be chance. */
export function runClass(length) {
  return length >= SHORTEST_RUN ? `o${Math.min(length, LONGEST_RUN)}` : "";
}

/** Classes and labels of the legend of bits, from the largest loss to the largest gain. */
export function gainLegend() {
  const sizes = Array.from({ length: LEVELS }, (_, index) => ((index + 1) / LEVELS) * LIMIT);
  const label = (size, index, sign) =>
    `${index === LEVELS - 1 ? (sign ? "≤ " : "≥ ") : ""}${sign}${size.toFixed(2)}`;
  const worse = sizes.map((size, index) => [`w${index + 1}`, label(size, index, "−")]);
  const better = sizes.map((size, index) => [`b${index + 1}`, label(size, index, "")]);
  return [...worse.reverse(), ["", "0"], ...better];
}

/** Bits as a reader should see them: with as many digits as mean something. */
export function bitsWords(bits) {
  if (!Number.isFinite(bits)) return "not measured";
  const size = Math.abs(bits);
  const digits = size >= 100 ? 0 : size >= 0.995 ? 1 : 2;
  const number = size.toFixed(digits);
  if (Number(number) === 0) return "0 bits";
  return `${number} bits ${bits > 0 ? "saved" : "lost"}`;
}

/** What bits mean for a word: how much more or less likely retrieval made it. */
export function timesWords(bits) {
  if (!Number.isFinite(bits) || Math.abs(bits) < 0.07) return "as likely as without";
  const times = 2 ** Math.abs(bits);
  const number = times >= 1000 ? "over 1,000" : times >= 10 ? times.toFixed(0) : times.toFixed(1);
  return `${number} times ${bits > 0 ? "as likely as" : "less likely than"} without`;
}
