// Text that others wrote, as nodes: nothing in it is ever read as markup, and nothing in it stays unseen.
//
// A document may hold control characters, characters that turn the direction of the text around, and others
// without width. They are shown as their code point in a small box instead of doing what they do.

const UNSEEN = new RegExp(
  [
    // Controls but for tab and line feed, and for a carriage return before one; soft hyphen.
    "\\r(?!\\n)",
    "[\\u0000-\\u0008\\u000b\\u000c\\u000e-\\u001f\\u007f-\\u009f\\u00ad]",
    // Marks of direction, embeddings, overrides and isolates; line and paragraph separators.
    "[\\u061c\\u200e\\u200f\\u2028-\\u202e\\u2066-\\u2069]",
    // Without width; the two joiners, which scripts and emoji need, are left alone.
    "[\\u180e\\u200b\\u2060-\\u2065\\u206a-\\u206f\\ufeff\\ufff9-\\ufffb]",
    // Tags, which can hide a whole text, and halves of a surrogate pair.
    "[\\u{e0000}-\\u{e007f}\\p{Surrogate}]",
  ].join("|"),
  "gu",
);

const DIRECTIONS = {
  0x061c: "Arabic letter mark",
  0x200e: "left-to-right mark",
  0x200f: "right-to-left mark",
  0x202a: "left-to-right embedding",
  0x202b: "right-to-left embedding",
  0x202c: "end of direction",
  0x202d: "left-to-right override",
  0x202e: "right-to-left override",
  0x2066: "left-to-right isolate",
  0x2067: "right-to-left isolate",
  0x2068: "first strong isolate",
  0x2069: "end of isolate",
};

/** The text in pieces, each plain or one unseen character: `{ text }` or `{ text, code }`. */
export function pieces(text) {
  const result = [];
  let end = 0;
  for (const found of text.matchAll(UNSEEN)) {
    if (found.index > end) result.push({ text: text.slice(end, found.index) });
    result.push({ text: found[0], code: found[0].codePointAt(0) });
    end = found.index + found[0].length;
  }
  if (end < text.length) result.push({ text: text.slice(end) });
  return result;
}

/** A code point as it is written in the standard, `U+202E`. */
export function codeName(code) {
  return `U+${code.toString(16).toUpperCase().padStart(4, "0")}`;
}

/** What an unseen character is, for a tooltip. */
export function codeWords(code) {
  const known = DIRECTIONS[code] ?? (code < 0xa0 ? "control character" : "invisible character");
  return `${codeName(code)}, ${known}`;
}

/** Appends a text to an element, with a small box for each unseen character. */
export function appendVisible(parent, text) {
  for (const piece of pieces(text)) {
    if (piece.code === undefined) {
      parent.append(piece.text);
      continue;
    }
    const box = document.createElement("span");
    box.className = "unseen";
    box.title = codeWords(piece.code);
    box.textContent = codeName(piece.code);
    parent.append(box);
  }
  return parent;
}

/** A short text on one line: unseen characters and line breaks become visible signs. */
export function oneLine(text, longest = 120) {
  const flat = pieces(text).map((piece) => (piece.code === undefined ? piece.text : codeName(piece.code)));
  const line = flat.join("").replace(/\s+/gu, " ").trim();
  const characters = Array.from(line);
  return characters.length > longest ? `${characters.slice(0, longest - 1).join("")}…` : line;
}
