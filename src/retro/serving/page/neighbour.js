// A neighbour as a reader sees it: whose text it is, where it stands, what it was worth, what it shares.

import { documentAddress } from "./api.js";
import { button, element, isPlainClick, jsonLink, named } from "./elements.js";
import { bitsWords, runClass } from "./levels.js";
import { runsAt, savedOnWord, stretches } from "./reading.js";
import { appendVisible } from "./visible.js";

/**
 * A card. `word` and `part` are what the reader points at and the part of the answer that read it, if any;
 * `actions` are `open(neighbour)`, `toggle(neighbour)` and `isOut(document)`.
 */
export function neighbourCard(neighbour, actions, part = null, word = null) {
  if (neighbour.deleted) {
    return element(
      "article",
      { class: "neighbour" },
      element(
        "p",
        { class: "quiet" },
        "This document was deleted while the text was written. Nothing of it is shown.",
      ),
    );
  }
  return element(
    "article",
    { class: "neighbour" },
    title(neighbour, actions),
    origin(neighbour),
    ...worth(neighbour, part, word),
    passage(neighbour, word),
    links(neighbour, actions),
  );
}

function title(neighbour, actions) {
  const name = neighbour.title || neighbour.id || "given passage";
  if (!neighbour.document) return element("h3", {}, named(name));
  const link = element(
    "a",
    {
      href: documentAddress(neighbour.document, neighbour.place?.start),
      onclick: (event) => {
        if (!isPlainClick(event)) return;
        event.preventDefault();
        actions.open(neighbour);
      },
    },
    named(name),
  );
  return element("h3", {}, link);
}

function origin(neighbour) {
  const { source, place, distance, licence } = neighbour;
  const parts = [named(source)];
  if (place) parts.push(`chunk ${place.chunk + 1} of ${place.num_chunks}`);
  parts.push(`distance ${distance.toFixed(2)}`);
  if (licence) parts.push(named(licence));
  return element("p", { class: "origin" }, ...joined(parts));
}

/** What it saved on the word, where that is known, and on the part: numbers, and bars of one scale. */
function worth(neighbour, part, word) {
  if (!part || !Number.isFinite(neighbour.bits)) return [];
  const onWord = (one) => (word ? savedOnWord(one, part, word) : undefined);
  const all = part.neighbours.flatMap((other) => [other.bits ?? 0, onWord(other) ?? 0]);
  const most = Math.max(...all.map(Math.abs), 1);
  const own = onWord(neighbour);
  const rows = Number.isFinite(own) ? [measure(own, most, "on this word")] : [];
  rows.push(measure(neighbour.bits, most, "on this part"));
  if (Number.isFinite(neighbour.attention)) {
    const percent = Math.round(100 * neighbour.attention);
    rows.push(element("p", { class: "origin" }, `${percent} % of the attention`));
  }
  return rows;
}

/** Bits as a number, and as the length of a bar beside those of the other neighbours. */
function measure(bits, most, where) {
  const bar = element("span", { class: `bar ${bits < 0 ? "loss" : "gain"}`, "aria-hidden": "true" });
  bar.style.setProperty("--share", Math.abs(bits) / most);
  const words = element("span", {}, element("b", {}, bitsWords(bits)), ` ${where}`);
  return element("p", { class: "worth" }, bar, words);
}

/** Only the passage itself: of what a search finds nothing is read. */
export function foundCard(neighbour, actions) {
  const text = Array.from(neighbour.text).slice(0, neighbour.continuation).join("");
  return neighbourCard({ ...neighbour, text: text.trim(), continuation: 0, runs: [] }, actions);
}

/** [N ┃ F], with the runs that it shares with the answer, and those that hold the word set apart. */
function passage(neighbour, word) {
  const here = word ? new Set(runsAt(neighbour, word.start, word.end)) : new Set();
  const text = element("div", { class: "quoted passage", dir: "auto" });
  let divided = neighbour.continuation === 0;
  for (const stretch of stretches(neighbour)) {
    if (stretch.continuation && !divided) {
      text.append(element("span", { class: "divider", title: "Its continuation begins here" }, " ┃ "));
      divided = true;
    }
    const shade = stretch.run ? runClass(stretch.run.tokens) : "";
    if (!shade) {
      appendVisible(text, stretch.text);
      continue;
    }
    const mark = element("mark", {
      class: shade,
      title: `${stretch.run.tokens} tokens in common with the answer`,
    });
    if (here.has(stretch.run)) mark.classList.add("here");
    // White space at a run's ends has no colour.
    const [, before, inner, after] = /^(\s*)(.*?)(\s*)$/su.exec(stretch.text);
    appendVisible(text, before).append(inner ? appendVisible(mark, inner) : "");
    appendVisible(text, after);
  }
  return text;
}

function links(neighbour, actions) {
  if (!neighbour.document) return "";
  const at = neighbour.place?.start;
  const name = neighbour.title || neighbour.id;
  return element(
    "p",
    { class: "links" },
    takeOutButton(neighbour, actions),
    element(
      "a",
      {
        href: documentAddress(neighbour.document, at),
        "aria-label": `Read it here: ${name}`,
        onclick: (event) => {
          if (!isPlainClick(event)) return;
          event.preventDefault();
          actions.open(neighbour);
        },
      },
      "Read it here",
    ),
    jsonLink(documentAddress(neighbour.document, at, ".json"), name),
  );
}

/** Takes a document out of what may be read, or puts it back. */
export function takeOutButton(row, actions, words = ["Take this source out", "Put it back"]) {
  const made = button("", () => actions.toggle(row), { class: "take" });
  const { document, title, id } = row;
  Object.assign(made.dataset, { document, name: title || id, take: words[0], back: words[1] });
  label(made, actions);
  return made;
}

/** Says on all buttons of a part of the page what they would do now. */
export function relabel(root, actions) {
  for (const made of root.querySelectorAll("button.take")) label(made, actions);
}

function label(made, actions) {
  const { document, name, take, back } = made.dataset;
  const out = actions.isOut(document);
  made.textContent = out ? back : take;
  made.setAttribute("aria-label", `${made.textContent}: ${name}`);
}

/** Elements with a dot between them. */
export function joined(parts) {
  return parts.flatMap((part, index) => (index ? [" · ", part] : [part]));
}
