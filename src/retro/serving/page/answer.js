// One answer as it is written: what the stream has said so far, and what state it is in.

import { complete } from "./api.js";

/** States: "asking", "busy" (the server said when to come again), "writing", "measuring" (the text is
 * whole, what retrieval was worth is being scored), "done", "stopped", "failed". */
const UNDER_WAY = ["asking", "busy", "writing", "measuring"];
const ATTEMPTS = 8;
const LONGEST_WAIT = 60;

export function emptyAnswer(request) {
  return {
    request,
    state: "asking",
    text: "",
    /** The neighbours read from some place of the text on, as they become known. */
    reads: [],
    finish: null,
    retro: null,
    sources: [],
    usage: null,
    error: "",
    wait: 0,
  };
}

/** Adds what an event of the stream says. */
export function apply(answer, event) {
  if (event.usage) answer.usage = event.usage;
  if (event.sources) answer.sources = event.sources;
  for (const choice of event.choices ?? []) {
    if (answer.state === "asking" || answer.state === "busy") answer.state = "writing";
    answer.text += choice.text ?? "";
    if (choice.retro_chunk) answer.reads.push(choice.retro_chunk);
    if (choice.retro) answer.retro = choice.retro;
    if (choice.finish_reason) {
      answer.finish = choice.finish_reason;
      answer.state = "measuring";
    }
  }
  return answer;
}

export function isUnderWay(answer) {
  return answer !== null && UNDER_WAY.includes(answer.state);
}

/** Asks, and asks again after the time that a busy server names. `changed` is called at every step. */
export async function ask(answer, changed, signal) {
  for (let attempt = 1; isUnderWay(answer); attempt++) {
    try {
      for await (const event of complete(answer.request, signal)) changed(apply(answer, event));
      answer.state = "done";
    } catch (error) {
      if (signal.aborted) answer.state = "stopped";
      else if (error.status === 429 && attempt < ATTEMPTS)
        await waitFor(answer, error.wait ?? 2, changed, signal);
      else fail(answer, error);
    }
  }
  changed(answer);
  return answer;
}

function fail(answer, error) {
  answer.state = "failed";
  answer.error = error.message;
}

async function waitFor(answer, seconds, changed, signal) {
  answer.state = "busy";
  for (
    let left = Math.min(LONGEST_WAIT, Math.max(1, Math.ceil(seconds)));
    left > 0 && !signal.aborted;
    left--
  ) {
    answer.wait = left;
    changed(answer);
    await new Promise((resolve) => setTimeout(resolve, 1000));
  }
  answer.wait = 0;
  answer.state = signal.aborted ? "stopped" : "asking";
  changed(answer);
}
