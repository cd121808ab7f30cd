import assert from "node:assert/strict";
import { test } from "node:test";

import { DEFAULTS, fromHash, requestOf, toHash } from "../../../src/retro/serving/page/link.js";

const FULL = {
  prompt: "Two lines,\nä & = # + % 🙂 \u202e",
  neighbours: 3,
  sources: ["a b", "c&d=e"],
  exclude: ["00ff", "x/y:3"],
  seed: 7,
  temperature: 0,
  topP: 0.5,
  tokens: 64,
  word: 12,
};

test("a state comes back from its link as it was", () => {
  assert.deepEqual(fromHash(`#${toHash(FULL)}`), FULL);
});

test("what is as always is not in the link", () => {
  assert.equal(toHash(DEFAULTS), "");
  assert.equal(toHash({ ...DEFAULTS, prompt: "a" }), "p=a");
  assert.deepEqual(fromHash(""), { ...DEFAULTS, sources: [], exclude: [] });
});

test("nonsense in a link is as always", () => {
  const state = fromHash("#k=0&seed=-1&t=hot&n=1.5&top=0&w=&x=&x=a&x=a&unknown=1");
  assert.deepEqual(state, { ...DEFAULTS, sources: [], exclude: ["a"] });
  assert.equal(fromHash("#t=").temperature, DEFAULTS.temperature);
  assert.equal(fromHash("#%E0%A4%A").prompt, "");
});

test("a request without retrieval does not depend on what would be read", () => {
  const other = { ...FULL, neighbours: 9, sources: [], exclude: [] };
  assert.deepEqual(requestOf(FULL, false), requestOf(other, false));
  assert.deepEqual(requestOf(FULL, false).retro, { retrieval: false });
});

test("a request with retrieval asks for everything that the page shows", () => {
  const { retro, ...sampling } = requestOf(FULL, true);
  assert.deepEqual(retro, {
    retrieval: true,
    num_neighbours: 3,
    sources: FULL.sources,
    exclude: FULL.exclude,
    worth: true,
    explain: true,
  });
  assert.deepEqual(sampling, { prompt: FULL.prompt, max_tokens: 64, temperature: 0, top_p: 0.5, seed: 7 });
  assert.ok(!("num_neighbours" in requestOf({ ...FULL, neighbours: null }, true).retro));
});
