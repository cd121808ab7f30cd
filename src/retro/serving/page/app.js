// The page: one state, shown in a link and in the fields, and the answers to it.

import { getJson } from "./api.js";
import { storedKey } from "./adding.js";
import { Asking } from "./asking.js";
import { Column } from "./column.js";
import { DatastoreView } from "./datastore.js";
import { DocumentSheet } from "./document.js";
import { button, counted, element, named, notice } from "./elements.js";
import { Evidence } from "./evidence.js";
import { bitsWords, gainLegend } from "./levels.js";
import { fromHash, toHash } from "./link.js";
import { copyNotices, retrievalNotes } from "./notes.js";
import { Settings } from "./settings.js";
import { showSuggestions } from "./suggestions.js";
import { TakenOut } from "./taken-out.js";

const at = (id) => document.getElementById(id);

class Page {
  constructor() {
    this.state = fromHash(location.hash);
    this.info = null;
    this.chosen = null;
    this.dirty = new Set();
    this.asking = new Asking((name) => this.#redraw(name));
    this.settings = new Settings(() => this.#settingChanged());
    const actions = {
      open: (neighbour) => this.sheet.open(neighbour.document, neighbour.place?.start, neighbour),
      openDocument: (row) => this.sheet.open(row.document),
      toggle: (row) => this.#toggle(row),
      isOut: (document) => this.state.exclude.includes(document),
      close: () => this.#choose(null),
      choosePart: (part) => this.#choosePart(part),
      state: () => this.state,
      changed: () => this.#datastoreChanged(),
      askAgain: () => this.#askAgain(),
      writes: () => this.info?.writes ?? false,
      key: storedKey,
      deleted: (row) => this.#deleted(row),
      closed: () => this.#leaveDocument(),
    };
    this.off = new Column(at("off"), "off", "Without retrieval");
    this.on = new Column(at("on"), "on", "With retrieval", (word, byKey) => this.#choose(word, byKey));
    this.evidence = new Evidence(at("evidence"), actions);
    this.datastore = new DatastoreView(at("datastore"), actions);
    this.takenOut = new TakenOut(this.on.above, (documents) => this.#putBack(documents));
    this.sheet = new DocumentSheet(at("document"), actions);
    this.#listen();
  }

  async start() {
    try {
      this.info = await getJson("/info.json");
    } catch (error) {
      at("trouble").replaceChildren(
        notice(
          "bad",
          `${error.message} `,
          button("Try again", () => location.reload()),
        ),
      );
      return;
    }
    this.settings.allow(this.info);
    this.#describe();
    this.#welcome();
    showLegend(this.info);
    this.datastore.show(this.info);
    this.settings.write(this.state);
    this.takenOut.show(this.state.exclude);
    this.#openFromAddress();
    if (this.state.prompt) this.#ask();
    else showSuggestions(at("prompt-note"), this.info, (text) => this.#use(text));
  }

  get #retrieves() {
    return this.info.retrieves && this.info.has_datastore;
  }

  // What is served

  #describe() {
    const { info } = this;
    const documents = info.sources.reduce((sum, source) => sum + source.documents, 0);
    const facts = [named(info.model)];
    if (info.has_datastore) facts.push(` · ${counted(documents, "document")}`);
    at("served").replaceChildren(...facts);
    at("version").textContent = `retro ${info.version}`;
    document.title = `retro · ${info.model}`;
  }

  #welcome() {
    this.off.showReason("The same model with the same seed, reading nothing.");
    if (!this.info.retrieves) {
      this.on.showReason("This model does not retrieve: it was trained without neighbours.");
      this.evidence.showNothing("There is none without retrieval.");
    } else if (!this.info.has_datastore) {
      this.on.showReason(
        "This server has no datastore, so there is nothing to retrieve. ",
        "Start it with --datastore to see the difference.",
      );
      this.evidence.showNothing("There is none without a datastore.");
    } else {
      this.on.showReason(
        "Written while reading what the datastore holds, each word coloured by what that was worth.",
      );
      this.evidence.showNothing(
        "Choose a word, and here is what it has read. ",
        "Take a source out, and see what the text is without it.",
      );
    }
  }

  // Asking

  #ask(entry = "none") {
    const { state } = this;
    if (!state.prompt) {
      this.#say("");
      at("prompt").focus();
      return;
    }
    if (entry !== "none") history.pushState(null, "", `#${toHash(state)}`);
    at("prompt-note").replaceChildren();
    this.chosen = null;
    this.takenOut.show(this.state.exclude);
    this.#say("Writing.");
    this.asking.ask(state, this.#retrieves).then(() => this.#finished());
    at("stop").hidden = false;
    this.#redraw("on");
    this.#redraw("off");
  }

  /** What the fields say, asked as a new entry of the browser's history. */
  #askFields() {
    const before = this.state;
    this.state = this.settings.read(before);
    // A source that was taken out of one text stays out; a word of it means nothing in another.
    if (toHash(this.state) !== toHash(before)) this.state.word = null;
    this.#ask(toHash(this.state) === location.hash.slice(1) ? "none" : "new");
  }

  #settingChanged() {
    if (this.asking.off) this.#askFields();
  }

  #use(text) {
    this.settings.writePrompt(text);
    this.#askFields();
  }

  #askAgain() {
    this.#ask();
    at("columns").scrollIntoView({ block: "start", behavior: motion() });
  }

  #finished() {
    const { on, off } = this.asking;
    if (this.asking.isUnderWay()) return;
    this.#draw();
    if (on?.state === "done") {
      const saved = Number.isFinite(on.retro?.bits) ? `Retrieval: ${bitsWords(on.retro.bits)}.` : "";
      this.#say(`Written. ${saved}`);
      const word = this.state.word === null ? undefined : this.on.words[this.state.word];
      if (word) this.#choose(word);
    } else {
      this.#say(off?.state === "done" ? "Written." : "");
    }
  }

  /** For readers who do not see the page: only beginnings and ends, never the words as they come. */
  #say(words) {
    if (at("status").textContent !== words) at("status").textContent = words;
  }

  // Drawing, at most once a frame

  #redraw(name) {
    this.dirty.add(name);
    if (this.dirty.size === 1) requestAnimationFrame(() => this.#draw());
  }

  #draw() {
    const { on, off, reference } = this.asking;
    const names = new Set(this.dirty);
    this.dirty.clear();
    at("stop").hidden = !this.asking.isUnderWay();
    const shared = { prompt: this.state.prompt, again: () => this.#ask() };
    if (names.has("off") && off) this.off.show(off, shared);
    if ((names.has("on") || names.has("reference")) && on) {
      const notes = [
        ...retrievalNotes(on),
        ...copyNotices(on, (row) => this.sheet.open(row.document, placeOf(row))),
      ];
      const ready = reference?.state === "done" ? reference : null;
      this.on.show(on, { ...shared, reference: ready, notes });
      this.#remember(on);
      this.#drawEvidence();
    }
    if (this.asking.isUnderWay() && on?.state === "busy")
      this.#say("The server is busy; the page asks again by itself.");
  }

  #drawEvidence() {
    const { on } = this.asking;
    if (on?.state === "done" && on.retro) {
      if (this.chosen) this.#choose(this.on.words[this.chosen.number] ?? null);
      else this.evidence.showAll(on);
    } else {
      this.evidence.showReads(on);
    }
  }

  // Words

  #choose(word, byKey = false) {
    const before = this.chosen;
    this.chosen = word;
    const { on } = this.asking;
    if (on?.state !== "done") return;
    this.state.word = word?.number ?? null;
    history.replaceState(null, "", this.#here());
    if (word) {
      this.on.select(word, word.part === undefined ? null : on.retro.chunks[word.part]);
      this.evidence.showWord(on, word);
      if (byKey) this.evidence.focus();
      return;
    }
    this.on.select(null);
    this.evidence.showAll(on);
    if (before) this.on.marks.get(before.number)?.focus({ preventScroll: true });
  }

  #choosePart(part) {
    const word = this.on.words.find((one) => one.part === part && this.on.marks.has(one.number));
    if (!word) return;
    this.#choose(word);
    this.on.marks.get(word.number).focus();
  }

  // Sources

  #remember(answer) {
    for (const chunk of answer.retro?.chunks ?? [])
      chunk.neighbours.forEach((one) => this.takenOut.remember(one));
  }

  #toggle(row) {
    const { exclude } = this.state;
    if (exclude.includes(row.document)) {
      this.#putBack([row.document]);
      return;
    }
    this.takenOut.remember(row);
    this.#exclude([...exclude, row.document], `${row.title || row.id} is taken out.`);
  }

  #putBack(documents) {
    this.#exclude(
      this.state.exclude.filter((document) => !documents.includes(document)),
      "Put back.",
    );
  }

  /** The same request with other documents taken out, written again. */
  #exclude(documents, said) {
    const left = at("evidence").contains(document.activeElement);
    this.state = { ...this.settings.read(this.state), exclude: documents, word: null };
    this.takenOut.show(documents);
    this.datastore.refresh();
    if (this.state.prompt) this.#ask("new");
    // The button that was pressed is gone with what it stood in; the next thing to do is to undo it.
    if (left) (at("taken-out").querySelector("button") ?? at("prompt")).focus({ preventScroll: true });
    this.#say(`${said}${this.state.prompt ? " Writing again." : ""}`);
  }

  // The datastore

  async #datastoreChanged() {
    this.info = await getJson("/info.json");
    this.settings.allow(this.info);
    this.settings.write(this.settings.read(this.state));
    this.#describe();
    this.datastore.show(this.info);
  }

  async #deleted(row) {
    this.#say(`${row.title || row.id} is deleted.`);
    await this.#datastoreChanged();
    // What was written from it must not stay on the page.
    this.asking.forget();
    if (this.state.prompt && this.asking.on) this.#ask();
  }

  // Addresses

  #here() {
    return `${location.pathname.startsWith("/sources/") ? "/" : location.pathname}#${toHash(this.state)}`;
  }

  /** A citation leads to `/sources/…?at=…`: this page, with that document open. */
  #openFromAddress() {
    const found = /^\/sources\/(.+)$/u.exec(location.pathname);
    if (!found) return;
    const place = new URLSearchParams(location.search).get("at");
    this.sheet.open(decodeURIComponent(found[1]), place ?? undefined);
  }

  #leaveDocument() {
    if (location.pathname.startsWith("/sources/")) history.replaceState(null, "", this.#here());
  }

  async #share() {
    history.replaceState(null, "", this.#here());
    const label = at("share");
    try {
      // Not the address as it is, which may hold a key.
      await navigator.clipboard.writeText(`${location.origin}${this.#here()}`);
      label.textContent = "Copied";
    } catch {
      // Without leave to use the clipboard, the address itself is the link.
      label.textContent = "The address is the link";
    }
    this.#say(label.textContent);
    setTimeout(() => {
      label.textContent = "Copy link";
    }, 2500);
  }

  // Events

  #listen() {
    at("ask").addEventListener("submit", (event) => {
      event.preventDefault();
      this.#askFields();
    });
    at("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("ask").requestSubmit();
    });
    at("stop").addEventListener("click", () => this.asking.stop());
    at("next-seed").addEventListener("click", () => {
      at("seed").value = this.settings.read(this.state).seed + 1;
      this.#askFields();
    });
    at("share").addEventListener("click", () => this.#share());
    at("to-datastore").addEventListener("click", () => {
      at("datastore").scrollIntoView({ block: "start", behavior: motion() });
      at("datastore").focus({ preventScroll: true });
    });
    document.querySelector(".skip").addEventListener("click", (event) => {
      event.preventDefault();
      at("prompt").focus();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.chosen && !at("document").open) this.#choose(null);
    });
    for (const name of ["on", "off"]) {
      at(`show-${name}`).addEventListener("click", () => this.#showColumn(name));
    }
    this.#showColumn("on");
    window.addEventListener("popstate", () => this.#goTo());
  }

  /** A telephone shows one column at a time. */
  #showColumn(name) {
    at("columns").dataset.shown = name;
    for (const other of ["on", "off"])
      at(`show-${other}`).setAttribute("aria-pressed", String(other === name));
  }

  /** Back and forward in the browser's history. */
  #goTo() {
    this.state = fromHash(location.hash);
    this.settings.write(this.state);
    this.takenOut.show(this.state.exclude);
    this.datastore.refresh();
    if (this.state.prompt) this.#ask();
  }
}

function placeOf(row) {
  return new URL(row.url, location.href).searchParams.get("at") ?? undefined;
}

function motion() {
  return matchMedia("(prefers-reduced-motion: reduce)").matches ? "auto" : "smooth";
}

function showLegend(info) {
  if (!info.retrieves || !info.has_datastore) return;
  const boxes = gainLegend().map(([name, label]) => element("mark", { class: name }, label));
  at("legend").replaceChildren(
    element("span", {}, "Bits that retrieval saved on a token:"),
    ...boxes,
    element("span", { class: "gap" }, "In neighbours:"),
    element("mark", { class: "o5" }, "shared with the text"),
  );
}

new Page().start();
