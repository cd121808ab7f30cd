// The answers on the page: without retrieval, with it, and the one that changes are marked against.

import { ask, emptyAnswer, isUnderWay } from "./answer.js";
import { requestOf } from "./link.js";

export class Asking {
  /** `changed(name)` is called with "on", "off" or "reference" whenever that answer has changed. */
  constructor(changed) {
    this.changed = changed;
    this.on = null;
    this.off = null;
    this.reference = null;
    this.drawn = "";
    this.controller = new AbortController();
  }

  /** Asks for a state. What is there already and cannot differ is kept. */
  ask(state, retrieves) {
    this.stop();
    this.controller = new AbortController();
    this.#forgetReference(state);
    const off = requestOf(state, false);
    const work = [];
    if (!isSame(this.off, off)) work.push(this.#begin("off", off));
    if (retrieves) {
      // A link may ask for a text with a source taken out; the text with it is needed to see what changed.
      if (!this.reference && state.exclude.length) {
        work.push(this.#begin("reference", requestOf({ ...state, exclude: [] }, true)));
      }
      work.push(this.#begin("on", requestOf(state, true)));
      this.reference ??= this.on;
    } else {
      this.on = null;
    }
    return Promise.all(work);
  }

  /** Changes are marked while only what is read changes; with another prompt, seed or choice all is new. */
  #forgetReference(state) {
    const { prompt, seed, temperature, topP, tokens } = state;
    const drawn = JSON.stringify([prompt, seed, temperature, topP, tokens]);
    if (drawn !== this.drawn || this.reference?.state !== "done") this.reference = null;
    this.drawn = drawn;
  }

  #begin(name, request) {
    const answer = emptyAnswer(request);
    this[name] = answer;
    this.changed(name);
    return ask(answer, () => this[name] === answer && this.changed(name), this.controller.signal);
  }

  /** Nothing of the texts so far stays, not even as what is gone. */
  forget() {
    this.reference = null;
  }

  stop() {
    this.controller.abort();
  }

  isUnderWay() {
    return [this.on, this.off, this.reference].some(isUnderWay);
  }
}

function isSame(answer, request) {
  return answer?.state === "done" && JSON.stringify(answer.request) === JSON.stringify(request);
}
