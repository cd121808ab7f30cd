// Server-sent events of a streamed answer, from bytes that may be cut anywhere.

/** Yields the data of each event of a stream of bytes. */
export async function* events(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      yield* parser.push(done ? decoder.decode() : decoder.decode(value, { stream: true }));
      if (done) return;
    }
  } finally {
    // A reader that leaves early must let the server know.
    reader.cancel().catch(() => {});
  }
}

/** Collects lines into events; an event ends with an empty line. */
export class EventParser {
  #rest = "";
  #data = [];

  /** The data of the events that this text completes. */
  push(text) {
    this.#rest += text;
    const lines = this.#rest.split(/\r\n|\n|\r(?!$)/u);
    this.#rest = lines.pop();
    const complete = [];
    for (const line of lines) {
      if (line === "" && this.#data.length) complete.push(this.#data.splice(0).join("\n"));
      // Comments, which keep a connection open, begin with a colon.
      const field = /^data:? ?(.*)$/su.exec(line);
      if (field) this.#data.push(field[1]);
    }
    return complete;
  }
}
