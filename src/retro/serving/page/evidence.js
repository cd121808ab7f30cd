// The panel beside the text: what a word has read, or all that the text has.

import { documentAddress } from "./api.js";
import { button, counted, element, isPlainClick, jsonLink, named } from "./elements.js";
import { bitsWords, timesWords } from "./levels.js";
import { joined, neighbourCard, takeOutButton } from "./neighbour.js";
import { documentsRead, savedOnWord } from "./reading.js";
import { oneLine } from "./visible.js";

const HINT =
  "Choose a word to see what it has read: click it, or go through the text with the arrow keys and " +
  "press Enter.";

export class Evidence {
  /** `actions` are those of a neighbour, and `close()`, `choosePart(number)`. */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    root.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !root.classList.contains("open")) return;
      event.stopPropagation();
      actions.close();
    });
  }

  showNothing(...children) {
    this.#replace(false, heading("Evidence"), element("div", { class: "quiet" }, ...children));
  }

  /** What is being read while the text is written: the neighbours of each part, as they are found. */
  showReads({ reads, state }) {
    // The same is not drawn again with every token.
    if (reads.length && reads.length === this.reads && this.root.querySelector(".reads")) return;
    this.reads = reads.length;
    if (!reads.length) {
      this.showNothing(state === "failed" ? "There is no text." : "Nothing is read yet.");
      return;
    }
    const lists = reads.map((read, part) =>
      element("li", {}, `Part ${part + 1} reads `, ...reading(read.neighbours), "."),
    );
    this.#replace(false, heading("Reading"), element("ol", { class: "reads" }, ...lists));
  }

  /** Every document that the text read, by what it was worth. */
  showAll(answer) {
    const rows = documentsRead(answer.retro);
    const out = element("div", { class: "rows" }, ...rows.map((row) => this.#row(row)));
    const cost = explained(answer.retro);
    this.#replace(
      false,
      heading("What it has read"),
      ...(rows.length
        ? [element("p", { class: "quiet" }, HINT), out, cost]
        : [element("p", { class: "quiet" }, "No neighbours.")]),
    );
  }

  #row(row) {
    const first = row.places[0];
    const open = (event) => {
      if (!isPlainClick(event)) return;
      event.preventDefault();
      this.actions.open(first.neighbour);
    };
    const href = documentAddress(row.document, first.neighbour.place?.start);
    const facts = [named(row.source), ...(row.licence ? [named(row.licence)] : [])];
    const parts = [...new Set(row.places.map(({ part }) => part))];
    const places = parts.map((part) =>
      button(`part ${part + 1}`, () => this.actions.choosePart(part), {
        class: "plain",
        "aria-label": `part ${part + 1} of the text`,
      }),
    );
    return element(
      "article",
      { class: "neighbour row" },
      element(
        "h3",
        {},
        element("a", { href, onclick: open }, named(row.title || row.id)),
        element("span", { class: "amount" }, bitsWords(row.bits)),
      ),
      element(
        "p",
        { class: "origin" },
        ...joined(facts),
        " · read by ",
        ...places.flatMap((one, index) => (index ? [", ", one] : [one])),
      ),
      element(
        "p",
        { class: "links" },
        takeOutButton(row, this.actions),
        jsonLink(documentAddress(row.document, undefined, ".json"), row.title || row.id),
      ),
    );
  }

  /** What one word has read, and what that was worth. */
  showWord(answer, word) {
    const part = word.part === undefined ? null : answer.retro.chunks[word.part];
    const title = heading(`“${oneLine(word.text, 40)}”`);
    const close = button("Close", () => this.actions.close(), {
      class: "plain close",
      "aria-label": "Close the evidence",
    });
    if (!part) {
      this.#replace(true, title, close, element("p", { class: "quiet" }, unread(answer)));
      return;
    }
    const sum = element(
      "p",
      { class: "sum" },
      element("b", {}, bitsWords(word.bits)),
      Number.isFinite(word.bits) ? `: ${timesWords(word.bits)} retrieval.` : ".",
    );
    const read = element(
      "p",
      { class: "quiet" },
      `This part of the text read ${counted(part.neighbours.length, "neighbour")}`,
      Number.isFinite(part.bits) ? `; together they are worth ${bitsWords(part.bits)} on it.` : ".",
    );
    const cards = byWorth(part, word).map((neighbour) => neighbourCard(neighbour, this.actions, part, word));
    this.#replace(true, title, close, sum, read, ...cards);
  }

  focus() {
    this.root.querySelector("h2").focus();
  }

  #replace(open, ...children) {
    this.root.classList.toggle("open", open);
    this.root.replaceChildren(...children.filter(Boolean));
    this.root.scrollTop = 0;
  }
}

function heading(text) {
  return element("h2", { id: "evidence-title", tabIndex: -1 }, element("bdi", {}, text));
}

/** The titles of neighbours, with commas; one that stands there several times only once. */
function reading(neighbours) {
  const titles = [...new Set(neighbours.filter((one) => !one.deleted).map((one) => one.title || one.id))];
  if (!titles.length) return ["nothing"];
  return titles.flatMap((title, index) => [index ? ", " : "", named(title)]);
}

/** The neighbours of a part, those worth most first: on the word where that is known, else on the part. */
function byWorth(part, word) {
  const worth = (neighbour) => savedOnWord(neighbour, part, word) ?? neighbour.bits ?? 0;
  return [...part.neighbours].sort((one, other) => worth(other) - worth(one) || one.rank - other.rank);
}

/** Why a word has read nothing. */
function unread({ retro }) {
  const first = retro.chunks[0];
  const length = counted(retro.chunk_len, "token");
  if (!first) return "Nothing was retrieved for this text.";
  return (
    "Nothing was read here. A chunk reads the neighbours of the one before it, and the first chunk, " +
    `of ${length} ` +
    "with the prompt, has none before it."
  );
}

function explained(retro) {
  const cost = retro?.explained;
  if (!cost) return "";
  return element(
    "p",
    { class: "quiet small" },
    "Bits are measured by leaving a neighbour out and scoring the text again: ",
    `${counted(cost.passes, "pass", "passes")}, `,
    `${cost.seconds.toFixed(1)} s, ${cost.times_the_answer.toFixed(1)} times the answer itself.`,
  );
}
