// Words made of tokens: a model counts in tokens, a reader points at words.

// Scripts that are written without spaces: every token is a word of its own.
const UNSPACED =
  /^[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Thai}\p{Script=Lao}\p{Script=Khmer}]/u;

/**
 * Groups tokens, `{ text, … }`, into words `{ start, end, text }`; `end` is behind the last token.
 *
 * A word begins at a token that begins with white space, or follows a token that ends with it, or begins a
 * chunk: a word must not lie in two chunks, since these read different neighbours.
 */
export function wordsOf(tokens, chunkOf = () => 0) {
  const words = [];
  for (const [number, { text }] of tokens.entries()) {
    const last = words.at(-1);
    if (last === undefined || begins(last.text, text) || chunkOf(number) !== chunkOf(number - 1)) {
      words.push({ start: number, end: number + 1, text });
    } else {
      last.end = number + 1;
      last.text += text;
    }
  }
  return words;
}

function begins(before, text) {
  // A token without text is part of a character that the next token completes.
  if (before === "" || text === "") return false;
  return /^\s/u.test(text) || /\s$/u.test(before) || UNSPACED.test(text);
}

/** The sum of what is known of some tokens; undefined if nothing is known of any. */
export function total(values) {
  const known = values.filter((value) => Number.isFinite(value));
  return known.length ? known.reduce((sum, value) => sum + value, 0) : undefined;
}
