// A column: one answer as text, growing while it is written, then in words that can be pointed at.

import { button, counted, element, jsonLink, notice } from "./elements.js";
import { changes, diff } from "./diff.js";
import { bitsWords, gainClass } from "./levels.js";
import { readWords, runsAt } from "./reading.js";
import { appendVisible, oneLine } from "./visible.js";
import { towards } from "./walking.js";

const NARROW = matchMedia("(max-width: 760px)");
const PROMPT_SHOWN = 120;
const UNDER_WAY = {
  asking: "asking …",
  writing: "writing …",
  measuring: "measuring what each neighbour was worth …",
};
const FINISHED = { length: "", stop: "the text ended by itself" };

export class Column {
  /** `chosen(word, byKey)` is called for a word that the reader points at. */
  constructor(root, name, title, chosen = undefined) {
    this.root = root;
    this.name = name;
    this.title = title;
    this.chosen = chosen;
    this.words = [];
    this.marks = new Map();
    this.downloads = "";
    this.head = element("header", { class: "head" });
    /** What stands between the title and the text, and is not drawn again with it. */
    this.above = element("div", { class: "above" });
    this.body = element("div");
    root.replaceChildren(this.head, this.above, this.body);
    root.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Nothing to show yet, or never: says why. */
  showReason(...children) {
    this.#replace("", element("div", { class: "reason quiet" }, ...children));
  }

  /** `reference` is the answer that changes are marked against, if any; `again` asks once more. */
  show(answer, { prompt, reference = null, again = undefined, notes = [] }) {
    const done = answer.state === "done";
    this.words = done ? readWords(answer) : [];
    this.marks.clear();
    this.root.classList.remove("has-choice");
    const body = element("div", { class: "text", dir: "auto" }, promptNode(prompt));
    const compared = done && reference && reference !== answer ? this.#compare(reference) : null;
    if (!done) appendVisible(body, answer.text);
    else if (compared && !compared.equal) this.#appendChanges(body, compared);
    else this.#appendWords(body, this.words);
    if (answer.state === "writing") body.append(element("span", { class: "caret", "aria-hidden": "true" }));
    this.#firstStop();
    const about = compared ? [this.#changed(compared)] : [];
    this.#replace(this.#meta(answer), ...about, ...trouble(answer, again), body, ...notes);
  }

  #replace(meta, ...children) {
    this.head.replaceChildren(element("h2", { id: `${this.name}-title` }, this.title), meta);
    // What had the focus is made anew; the place is kept.
    const focused = this.body.contains(document.activeElement)
      ? document.activeElement.dataset.word
      : undefined;
    this.body.replaceChildren(...children);
    if (focused !== undefined) this.marks.get(Number(focused))?.focus({ preventScroll: true });
  }

  #meta(answer) {
    const meta = element("span", { class: "meta quiet" }, ...summary(answer));
    if (answer.state === "done") meta.append(" · ", this.#download(answer));
    return meta;
  }

  #changed({ equal, removed, added }) {
    if (equal) return notice("change", "Nothing changed: the same words were drawn.");
    const only = button(
      "",
      () => {
        this.root.classList.toggle("only-new");
        label();
      },
      { class: "plain" },
    );
    const label = () => {
      only.textContent = this.root.classList.contains("only-new") ? "Show what is gone" : "Hide what is gone";
    };
    label();
    return notice(
      "change",
      `Against the text before, ${counted(added, "word")} `,
      element("ins", {}, "new"),
      ` and ${removed.toLocaleString("en")} `,
      element("del", {}, "gone"),
      ". ",
      only,
    );
  }

  /** The answer as the server gave it, beside what was asked. */
  #download(answer) {
    URL.revokeObjectURL(this.downloads);
    const { request, text, finish, retro, usage, sources } = answer;
    const record = JSON.stringify({ request, text, finish_reason: finish, retro, usage, sources }, null, 1);
    this.downloads = URL.createObjectURL(new Blob([record], { type: "application/json" }));
    return jsonLink(this.downloads, this.title);
  }

  #compare(reference) {
    const before = readWords(reference).map((word) => word.text);
    const runs = changes(
      diff(
        before,
        this.words.map((word) => word.text),
      ),
    );
    const count = (kind) =>
      runs.filter((run) => run.kind === "changed").reduce((sum, run) => sum + run[kind].length, 0);
    return {
      runs,
      before,
      equal: runs.every((run) => run.kind === "same"),
      removed: count("before"),
      added: count("after"),
    };
  }

  #appendChanges(body, { runs, before }) {
    for (const { kind, before: old, after } of runs) {
      const words = after.map((place) => this.words[place]);
      if (kind === "same") {
        this.#appendWords(body, words);
        continue;
      }
      if (old.length) {
        const text = old.map((place) => before[place]).join("");
        body.append(
          space(text, "start"),
          appendVisible(element("del"), text.trim().replace(/[ \t\n]+/gu, " ")),
        );
      }
      if (!words.length) continue;
      // The space before the first word is not part of what is marked.
      if (old.length && !/^\s/u.test(words[0].text)) body.append(" ");
      this.#appendWords(body, words, "added");
    }
  }

  #appendWords(body, words, name = "") {
    for (const word of words) {
      const made = this.chosen
        ? this.#word(word, name)
        : appendVisible(document.createDocumentFragment(), word.text);
      body.append(made);
    }
  }

  #word(word, name) {
    const whole = document.createDocumentFragment();
    const inner = word.text.trim();
    if (inner === "") return appendVisible(whole, word.text);
    const worth = Number.isFinite(word.bits) ? bitsWords(word.bits) : "nothing read";
    const mark = element("span", {
      class: `word ${name}`.trim(),
      role: "button",
      tabIndex: -1,
      "data-word": String(word.number),
      "aria-label": `${oneLine(inner)}, ${worth}`,
      onclick: () => this.chosen(word, false),
    });
    for (const [index, token] of word.tokens.entries()) {
      // White space at a word's ends has no colour.
      let text = token.text;
      if (index === 0) text = text.trimStart();
      if (index === word.tokens.length - 1) text = text.trimEnd();
      if (text === "") continue;
      mark.append(appendVisible(element("span", { class: gainClass(token.saved) }), text));
    }
    this.marks.set(word.number, mark);
    appendVisible(whole, space(word.text, "start")).append(mark);
    return appendVisible(whole, space(word.text, "end"));
  }

  /** Shows which word is chosen, what part of the text read the same, and the runs that hold the word. */
  select(chosen, part = null) {
    this.root.classList.toggle("has-choice", chosen !== null);
    const runs = part?.neighbours.flatMap((neighbour) => runsAt(neighbour, chosen.start, chosen.end)) ?? [];
    for (const word of this.words) {
      const mark = this.marks.get(word.number);
      if (!mark) continue;
      const here = word === chosen;
      if (here) mark.setAttribute("aria-current", "true");
      else mark.removeAttribute("aria-current");
      mark.classList.toggle("outside", chosen !== null && word.part !== chosen.part);
      mark.classList.toggle(
        "shared",
        runs.some((run) => run.start < word.end && run.end > word.start),
      );
      if (!here) continue;
      this.#stopAt(mark);
      // On a telephone the evidence covers the lower half of the text.
      if (NARROW.matches) mark.scrollIntoView({ block: "start" });
    }
  }

  /** The text is one stop of the tab key; within it arrows lead from word to word. */
  #firstStop() {
    const first = this.marks.values().next().value;
    if (first) first.tabIndex = 0;
  }

  #stopAt(mark) {
    for (const other of this.marks.values()) other.tabIndex = -1;
    mark.tabIndex = 0;
  }

  #move(event) {
    const mark = event.target.closest?.(".word");
    if (!mark || event.metaKey || event.ctrlKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      this.chosen(this.words[Number(mark.dataset.word)], true);
      return;
    }
    const next = towards(event.key, mark, [...this.marks.values()]);
    if (!next) return;
    event.preventDefault();
    this.#stopAt(next);
    next.focus();
    // Once a word is chosen, the choice goes along.
    if (this.root.classList.contains("has-choice")) this.chosen(this.words[Number(next.dataset.word)], false);
  }
}

function space(text, side) {
  return (side === "start" ? /^\s*/u : /\s*$/u).exec(text)[0];
}

function promptNode(prompt) {
  const characters = Array.from(prompt);
  const cut = characters.length > PROMPT_SHOWN;
  const tail = cut
    ? characters
        .slice(-PROMPT_SHOWN)
        .join("")
        .replace(/^\S*\s/u, "")
    : prompt;
  return appendVisible(
    element("span", { class: "given", title: "The end of the prompt" }, cut ? "… " : ""),
    tail,
  );
}

function summary(answer) {
  if (answer.state === "measuring" && !answer.request.retro.retrieval) return [""];
  if (answer.state !== "done") return [UNDER_WAY[answer.state] ?? ""];
  const tokens = answer.usage?.completion_tokens ?? answer.retro?.tokens?.length;
  const rest = [tokens === undefined ? "" : counted(tokens, "token"), FINISHED[answer.finish] ?? ""].filter(
    Boolean,
  );
  if (!Number.isFinite(answer.retro?.bits)) return [rest.join(" · ")];
  return [element("b", {}, bitsWords(answer.retro.bits)), ` · ${rest.join(" · ")}`];
}

function trouble(answer, again) {
  const retry = again ? button("Ask again", again, { class: "plain" }) : "";
  if (answer.state === "busy") {
    const left = element("span", { "aria-hidden": "true" }, `in ${counted(answer.wait, "second")}`);
    return [notice("", "The server is busy with others. Trying again ", left, ".")];
  }
  if (answer.state === "failed") return [notice("bad", `${answer.error} `, retry)];
  if (answer.state === "stopped") return [notice("", "Stopped here. ", retry)];
  return [];
}
