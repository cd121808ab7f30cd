import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, events } from "../../../src/retro/serving/page/sse.js";

const STREAM =
  ': keep-alive\n\ndata: {"text": "naïve 🙂"}\n\ndata: two\ndata: lines\n\n' +
  "event: other\ndata: x\r\n\r\ndata: [DONE]\n\n";
const EXPECTED = ['{"text": "naïve 🙂"}', "two\nlines", "x", "[DONE]"];

test("events come whole, wherever the text is cut", () => {
  for (let size = 1; size <= STREAM.length; size++) {
    const parser = new EventParser();
    const found = [];
    for (let start = 0; start < STREAM.length; start += size)
      found.push(...parser.push(STREAM.slice(start, start + size)));
    assert.deepEqual(found, EXPECTED, `pieces of ${size}`);
  }
});

test("events come whole, wherever the bytes are cut", async () => {
  const bytes = new TextEncoder().encode(STREAM);
  for (const size of [1, 2, 3, 7]) {
    const stream = new ReadableStream({
      start(controller) {
        for (let start = 0; start < bytes.length; start += size)
          controller.enqueue(bytes.slice(start, start + size));
        controller.close();
      },
    });
    const found = [];
    for await (const data of events(stream)) found.push(data);
    assert.deepEqual(found, EXPECTED);
  }
});

test("a reader that leaves lets the stream be cancelled", async () => {
  let cancelled = false;
  const stream = new ReadableStream({
    pull: (controller) => controller.enqueue(new TextEncoder().encode("data: a\n\n")),
    cancel: () => {
      cancelled = true;
    },
  });
  for await (const data of events(stream)) {
    assert.equal(data, "a");
    break;
  }
  await new Promise((resolve) => setTimeout(resolve));
  assert.ok(cancelled);
});

test("an unfinished event is none", () => {
  assert.deepEqual(new EventParser().push("data: half"), []);
});
