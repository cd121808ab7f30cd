import assert from "node:assert/strict";
import { test } from "node:test";

import { apply, emptyAnswer } from "../../../src/retro/serving/page/answer.js";
import {
  documentsRead,
  readWords,
  runsAt,
  savedOnWord,
  stretches,
} from "../../../src/retro/serving/page/reading.js";
import { wordsOf } from "../../../src/retro/serving/page/words.js";

const texts = (words) => words.map((word) => word.text);

/** Tokens of a text with their places in code points, as the server gives them. */
function placed(pieces) {
  let start = 0;
  return pieces.map(([text, saved]) => {
    const end = start + Array.from(text).length;
    const token = { id: 0, start, end, saved };
    start = end;
    return token;
  });
}

test("words are made of tokens, up to white space", () => {
  const tokens = [" re", "pro", "duce", " it", ".\n", "Next", ""].map((text) => ({ text }));
  assert.deepEqual(texts(wordsOf(tokens)), [" reproduce", " it.\n", "Next"]);
});

test("a word does not lie in two parts", () => {
  const tokens = ["a", "b", "c"].map((text) => ({ text }));
  assert.deepEqual(texts(wordsOf(tokens, (number) => Number(number > 0))), ["a", "bc"]);
});

test("scripts without spaces have a word a token", () => {
  const tokens = ["検索", "する", "モデル"].map((text) => ({ text }));
  assert.deepEqual(texts(wordsOf(tokens)), ["検索", "する", "モデル"]);
});

test("places count characters, not halves of them", () => {
  const tokens = placed([
    ["🙂", 0.5],
    [" wo", 1],
    ["rd", -0.25],
    [" 🙂🙂", null],
  ]);
  const chunk = { start: 1, end: 6, neighbours: [] };
  const words = readWords({ text: "🙂 word 🙂🙂", retro: { tokens, chunks: [chunk] } });
  assert.deepEqual(texts(words), ["🙂", " word", " 🙂🙂"]);
  assert.deepEqual(
    words.map((word) => word.bits),
    [0.5, 0.75, undefined],
  );
  assert.deepEqual(
    words.map((word) => word.part),
    [undefined, 0, undefined],
  );
});

test("without tokens the words are those of the text, and nothing is lost", () => {
  const text = "One two,\n\nthree ";
  assert.equal(texts(readWords({ text, retro: null })).join(""), text);
});

const NEIGHBOUR = {
  document: "d",
  title: "D",
  id: "d.txt",
  source: "s",
  licence: "",
  text: "🙂abcdefgh",
  continuation: 5,
  bits: 2,
  deleted: false,
  saved: [0.5, 0.25, 4],
  runs: [
    { start: 10, end: 14, tokens: 2, neighbour_start: 1, neighbour_end: 4 },
    { start: 20, end: 26, tokens: 6, neighbour_start: 3, neighbour_end: 7 },
  ],
};

test("a neighbour falls into stretches at its runs and at its continuation, the longer run on top", () => {
  const parts = stretches(NEIGHBOUR);
  assert.deepEqual(
    parts.map((part) => part.text),
    ["🙂", "ab", "cd", "ef", "gh"],
  );
  assert.deepEqual(
    parts.map((part) => part.run?.tokens),
    [undefined, 2, 6, 6, undefined],
  );
  assert.deepEqual(
    parts.map((part) => part.continuation),
    [false, false, false, true, true],
  );
});

test("a word has the runs that it touches, and its own part of what a neighbour saved", () => {
  assert.deepEqual(
    runsAt(NEIGHBOUR, 13, 20).map((run) => run.tokens),
    [2],
  );
  const word = { firstToken: 11, tokens: [{}, {}] };
  assert.equal(savedOnWord(NEIGHBOUR, { first_token: 11 }, word), 0.75);
  assert.equal(savedOnWord({ ...NEIGHBOUR, saved: undefined }, { first_token: 11 }, word), undefined);
});

test("documents are listed once, the one worth most first, without what was deleted", () => {
  const other = { ...NEIGHBOUR, document: "e", bits: 3 };
  const gone = { ...NEIGHBOUR, document: "f", deleted: true };
  const rows = documentsRead({
    chunks: [{ neighbours: [NEIGHBOUR, other, gone] }, { neighbours: [NEIGHBOUR] }],
  });
  assert.deepEqual(
    rows.map((row) => [row.document, row.bits, row.places.length]),
    [
      ["d", 4, 2],
      ["e", 3, 1],
    ],
  );
});

test("an answer grows event by event, and is measured after its end", () => {
  const answer = emptyAnswer({});
  apply(answer, { choices: [{ index: 0, text: "", retro_chunk: { number: 0 } }] });
  assert.equal(answer.state, "writing");
  apply(answer, { choices: [{ index: 0, text: "a" }] });
  apply(answer, { choices: [{ index: 0, text: " b", finish_reason: "length" }] });
  assert.deepEqual([answer.text, answer.state, answer.reads.length], ["a b", "measuring", 1]);
  apply(answer, {
    choices: [{ index: 0, text: "", finish_reason: "length", retro: { bits: 1 } }],
    sources: [1],
  });
  apply(answer, { choices: [], usage: { completion_tokens: 2 } });
  assert.deepEqual([answer.text, answer.retro.bits, answer.usage.completion_tokens], ["a b", 1, 2]);
});
