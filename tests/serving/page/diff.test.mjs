import assert from "node:assert/strict";
import { test } from "node:test";

import { changes, diff } from "../../../src/retro/serving/page/diff.js";

const split = (text) => text.split(" ").filter(Boolean);

/** Both texts, read from the steps alone. */
function replayed(steps, before, after) {
  const old = steps.filter((step) => step.kind !== "added").map((step) => before[step.before]);
  const fresh = steps.filter((step) => step.kind !== "removed").map((step) => after[step.after]);
  return [old, fresh];
}

test("equal texts have only the same words", () => {
  const words = split("a b c");
  assert.deepEqual(
    diff(words, words).map((step) => step.kind),
    ["same", "same", "same"],
  );
  assert.deepEqual(diff([], []), []);
});

test("a word in the middle is removed and another added", () => {
  const steps = diff(split("the cat sat"), split("the dog sat"));
  assert.deepEqual(steps.map((step) => step.kind).sort(), ["added", "removed", "same", "same"]);
});

test("one text may be empty", () => {
  assert.deepEqual(diff([], ["a"]), [{ kind: "added", before: undefined, after: 0 }]);
  assert.deepEqual(diff(["a"], []), [{ kind: "removed", before: 0, after: undefined }]);
});

test("the steps hold both texts, and are as few as can be, whatever the texts are", () => {
  // A generator of our own, so that a failure can be seen again.
  let seed = 7;
  const next = (limit) => (seed = (seed * 1103515245 + 12345) % 2147483648) % limit;
  for (let round = 0; round < 300; round++) {
    const before = Array.from({ length: next(14) }, () => "abcd"[next(4)]);
    const after = Array.from({ length: next(14) }, () => "abcd"[next(4)]);
    const steps = diff(before, after);
    assert.deepEqual(replayed(steps, before, after), [before, after]);
    assert.equal(steps.filter((step) => step.kind === "same").length, longestCommon(before, after));
  }
});

/** The length of the longest common subsequence, by the textbook's table. */
function longestCommon(before, after) {
  const table = Array.from({ length: before.length + 1 }, () => new Array(after.length + 1).fill(0));
  for (let i = before.length - 1; i >= 0; i--) {
    for (let j = after.length - 1; j >= 0; j--) {
      table[i][j] =
        before[i] === after[j] ? table[i + 1][j + 1] + 1 : Math.max(table[i + 1][j], table[i][j + 1]);
    }
  }
  return table[0][0];
}

test("a single word that happens to stand in both does not tear a change apart", () => {
  const before = split("x y z the old red of brick and p q r");
  const after = split("x y z a new the stone of glass p q r");
  const runs = changes(diff(before, after));
  assert.deepEqual(
    runs.map((run) => run.kind),
    ["same", "changed", "same"],
  );
  assert.deepEqual(
    runs[1].before.map((place) => before[place]),
    split("the old red of brick and"),
  );
  assert.deepEqual(
    runs[1].after.map((place) => after[place]),
    split("a new the stone of glass"),
  );
});

test("what is the same at the beginning or the end stays the same, however short", () => {
  const runs = changes(diff(split("a b c"), split("a x c")));
  assert.deepEqual(
    runs.map((run) => run.kind),
    ["same", "changed", "same"],
  );
});
