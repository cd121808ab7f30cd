// A finished answer as words, each with what retrieval was worth on it and the neighbours that it read.
//
// The server counts characters as Unicode code points, and JavaScript in halves of them; so a text is cut
// as a list of characters.

import { total, wordsOf } from "./words.js";

/** Words `{ number, text, tokens, firstToken, start, end, bits, part }`; no `part` where nothing was read. */
export function readWords(answer) {
  const characters = Array.from(answer.text);
  const parts = answer.retro?.chunks ?? [];
  const tokens = tokensOf(answer, characters);
  const partOf = tokens.map((token) => partAt(parts, token.start));
  const words = wordsOf(tokens, (number) => partOf[number]);
  return words.map(({ start, end, text }, number) => ({
    number,
    text,
    tokens: tokens.slice(start, end),
    firstToken: start,
    start: tokens[start].start,
    end: tokens[end - 1].end,
    bits: total(tokens.slice(start, end).map((token) => token.saved)),
    part: partOf[start],
  }));
}

function tokensOf(answer, characters) {
  const told = answer.retro?.tokens;
  if (told)
    return told.map(({ start, end, saved }) => ({
      text: characters.slice(start, end).join(""),
      start,
      end,
      saved,
    }));
  // Without them a word stands for a token.
  let place = 0;
  return (answer.text.match(/\s*\S+|\s+$/gu) ?? []).map((text) => {
    const start = place;
    place += Array.from(text).length;
    return { text, start, end: place };
  });
}

function partAt(parts, place) {
  const found = parts.findIndex((part) => place >= part.start && (part.end === null || place < part.end));
  return found < 0 ? undefined : found;
}

/** The runs of a neighbour that a stretch of the answer lies in, at least partly. */
export function runsAt(neighbour, start, end) {
  return neighbour.runs.filter((run) => run.start < end && run.end > start);
}

/** What a neighbour saved on a word; undefined where the server does not say. */
export function savedOnWord(neighbour, part, word) {
  if (!neighbour.saved) return undefined;
  const from = word.firstToken - part.first_token;
  return total(neighbour.saved.slice(Math.max(0, from), from + word.tokens.length));
}

/** A neighbour's text in stretches `{ text, run, continuation }`, cut at its runs and where F begins. */
export function stretches(neighbour) {
  const characters = Array.from(neighbour.text);
  const borders = new Set([0, neighbour.continuation, characters.length]);
  for (const run of neighbour.runs) borders.add(run.neighbour_start).add(run.neighbour_end);
  const places = [...borders]
    .filter((place) => place >= 0 && place <= characters.length)
    .sort((a, b) => a - b);
  const result = [];
  for (const [index, start] of places.slice(0, -1).entries()) {
    const text = characters.slice(start, places[index + 1]).join("");
    const run = longestAt(neighbour.runs, start);
    const continuation = start >= neighbour.continuation;
    const last = result.at(-1);
    // A shorter run that begins or ends within a longer one does not cut it.
    if (last && last.run === run && last.continuation === continuation) last.text += text;
    else result.push({ text, run, continuation });
  }
  return result;
}

/** The longest of the runs that hold a place of the neighbour. */
function longestAt(runs, place) {
  const here = runs.filter((run) => run.neighbour_start <= place && place < run.neighbour_end);
  return here.reduce((best, run) => (best && best.tokens >= run.tokens ? best : run), undefined);
}

/**
 * The documents that an answer read, those worth most first: `{ document, title, id, source, licence, bits,
 * places: [{ part, rank, neighbour }] }`.
 */
export function documentsRead(retro) {
  const documents = new Map();
  for (const [part, chunk] of (retro?.chunks ?? []).entries()) {
    for (const neighbour of chunk.neighbours) {
      if (neighbour.deleted || !neighbour.document) continue;
      const { document, title, id, source, licence } = neighbour;
      if (!documents.has(document))
        documents.set(document, { document, title, id, source, licence, places: [] });
      documents.get(document).places.push({ part, neighbour });
    }
  }
  const rows = [...documents.values()].map((row) => ({
    ...row,
    bits: total(row.places.map(({ neighbour }) => neighbour.bits)),
  }));
  return rows.sort((one, other) => (other.bits ?? 0) - (one.bits ?? 0));
}
