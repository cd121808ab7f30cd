import assert from "node:assert/strict";
import { test } from "node:test";

import {
  bitsWords,
  gainClass,
  gainLegend,
  runClass,
  timesWords,
} from "../../../src/retro/serving/page/levels.js";
import { opening } from "../../../src/retro/serving/page/suggestions.js";
import { codeWords, oneLine, pieces } from "../../../src/retro/serving/page/visible.js";

test("characters that are not seen, or turn the text around, become visible", () => {
  const text = "a\u202eb\r\u0000\u200bc\ufeff\u{e0041}\ud800d";
  const found = pieces(text).filter((piece) => piece.code !== undefined);
  assert.deepEqual(
    found.map((piece) => piece.code),
    [0x202e, 0xd, 0, 0x200b, 0xfeff, 0xe0041, 0xd800],
  );
  assert.equal(
    pieces(text)
      .map((piece) => piece.text)
      .join(""),
    text,
  );
  assert.equal(codeWords(0x202e), "U+202E, right-to-left override");
});

test("what texts are made of stays as it is", () => {
  const text = "tab\tline\r\nنص 文 👩‍👩‍👧 é می‌خواهم";
  assert.deepEqual(pieces(text), [{ text }]);
});

test("a name is one line of a bounded length", () => {
  assert.equal(oneLine(" a\n\n b\u0007 "), "a bU+0007");
  assert.equal(Array.from(oneLine("🙂".repeat(500))).length, 120);
});

test("colours begin and end where the other pages' do", () => {
  assert.deepEqual([0, 0.08, 0.19, 0.72, 5].map(gainClass), ["", "", "b1", "b4", "b4"]);
  assert.deepEqual([-0.19, -0.36, -9].map(gainClass), ["w1", "w2", "w4"]);
  assert.equal(gainClass(null), "");
  assert.deepEqual([1, 2, 4, 5, 40].map(runClass), ["", "o2", "o4", "o5", "o5"]);
  assert.deepEqual(
    gainLegend().map(([, label]) => label),
    ["≤ −0.72", "−0.54", "−0.36", "−0.18", "0", "0.18", "0.36", "0.54", "≥ 0.72"],
  );
});

test("bits are said in words", () => {
  assert.deepEqual([12.34, 1, 0.35, -0.35, 0.001, 123.4].map(bitsWords), [
    "12.3 bits saved",
    "1.0 bits saved",
    "0.35 bits saved",
    "0.35 bits lost",
    "0 bits",
    "123 bits saved",
  ]);
  assert.equal(bitsWords(null), "not measured");
  assert.deepEqual([1, -1, 4, 20, 0].map(timesWords), [
    "2.0 times as likely as without",
    "2.0 times less likely than without",
    "16 times as likely as without",
    "over 1,000 times as likely as without",
    "as likely as without",
  ]);
});

test("an opening ends with a word", () => {
  assert.equal(opening("one two three four", 8, 3), "one two");
  assert.equal(opening("one two ", 2, 3), "one two");
});
