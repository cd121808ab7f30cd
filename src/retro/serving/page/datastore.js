// The datastore: what is in it, where something like a text stands, and adding to it.

import { address, documentAddress, getJson } from "./api.js";
import { button, counted, element, isPlainClick, jsonLink, named, notice } from "./elements.js";
import { addForm } from "./adding.js";
import { foundCard, joined, relabel, takeOutButton } from "./neighbour.js";

const PAGE = 20;
const PASSAGES = 6;
/** Characters that the server takes: a passage may be long, a part of a title is not. */
const LONGEST_PASSAGE = 4096;
const LONGEST_TITLE = 256;
const NOTHING = "This server has no datastore: there is nothing to retrieve, to search or to add to.";

export class DatastoreView {
  /** `actions` are those of a neighbour, and `openDocument(row)`, `state()`, `changed()`. */
  constructor(root, actions) {
    this.root = root;
    this.actions = actions;
    this.shown = null;
  }

  show(info) {
    const title = element("h2", { id: "datastore-title" }, "Datastore");
    if (!info.has_datastore) {
      this.root.replaceChildren(element("header", { class: "head" }, title), notice("", NOTHING));
      return;
    }
    this.field = element("input", {
      id: "search",
      type: "search",
      name: "q",
      dir: "auto",
      "aria-label": "Search the datastore",
      placeholder: "Words of a title, or a text to find passages like it",
    });
    this.results = element("div", { class: "results" });
    const form = element(
      "form",
      { role: "search", class: "search", onsubmit: (event) => this.#submit(event) },
      this.field,
      element("button", { type: "submit" }, "Search"),
    );
    const found = element("div", {}, form, this.results);
    const meta = element("span", { class: "meta quiet" }, totals(info));
    this.root.replaceChildren(
      element("header", { class: "head" }, title, meta, jsonLink("/sources.json", "The documents")),
      element("div", { class: "halves" }, found, addForm(info, this.actions)),
    );
    this.#list();
  }

  /** What is taken out has changed. */
  refresh() {
    relabel(this.root, this.actions);
  }

  #submit(event) {
    event.preventDefault();
    const words = this.field.value.trim();
    if (words) this.search(words);
    else this.#list();
  }

  async search(words) {
    const sources = this.actions.state().sources;
    const passages = { q: cut(words, LONGEST_PASSAGE), k: PASSAGES, source: sources };
    const titles = {
      q: cut(words, LONGEST_TITLE),
      limit: PAGE,
      source: sources.length === 1 ? sources[0] : "",
    };
    await this.#fill(async () => {
      const [found, documents] = await Promise.all([
        getJson(address("/search.json", passages)),
        getJson(address("/sources.json", titles)),
      ]);
      const cards = found.results.map((neighbour) => foundCard(neighbour, this.actions));
      return [
        heading("Passages like it", address("/search.json", passages)),
        ...(cards.length ? cards : [element("p", { class: "quiet" }, "None found.")]),
        heading("In titles and ids", address("/sources.json", titles)),
        ...(documents.data.length
          ? this.#rows(documents)
          : [element("p", { class: "quiet" }, "None found.")]),
      ];
    });
  }

  #list(parameters = { limit: PAGE }) {
    return this.#fill(async () => {
      const documents = await getJson(address("/sources.json", parameters));
      if (!documents.data.length) return [element("p", { class: "quiet" }, "The datastore is empty.")];
      return [
        heading("Documents", address("/sources.json", parameters)),
        ...this.#rows(documents, parameters),
      ];
    });
  }

  /** Shows what a function gives, unless something else was asked for in the meantime. */
  async #fill(make) {
    const mine = (this.shown = Symbol("asked"));
    this.results.setAttribute("aria-busy", "true");
    let children;
    try {
      children = await make();
    } catch (error) {
      children = [notice("bad", error.message)];
    }
    if (this.shown !== mine) return;
    this.results.removeAttribute("aria-busy");
    this.results.replaceChildren(...children);
  }

  #rows(documents, parameters = {}) {
    const list = element("ul", { class: "documents" }, ...documents.data.map((row) => this.#row(row)));
    if (!documents.next) return [list];
    const more = button(
      "More",
      async () => {
        more.disabled = true;
        const next = await getJson(
          address("/sources.json", { ...parameters, limit: PAGE, after: documents.next }),
        );
        more.replaceWith(...this.#rows(next, parameters));
      },
      { class: "plain more" },
    );
    return [list, more];
  }

  #row(row) {
    const open = (event) => {
      if (!isPlainClick(event)) return;
      event.preventDefault();
      this.actions.openDocument(row);
    };
    const name = row.title || row.id;
    return element(
      "li",
      {},
      element("a", { href: documentAddress(row.document), onclick: open }, named(name)),
      element("span", { class: "origin" }, ...joined([named(row.source), counted(row.tokens, "token")])),
      takeOutButton(row, this.actions, ["Take out", "Put back"]),
    );
  }
}

function cut(text, length) {
  return Array.from(text).slice(0, length).join("");
}

function heading(text, json) {
  return element("h3", { class: "kind" }, text, " ", jsonLink(json, text));
}

function totals(info) {
  const documents = info.sources.reduce((sum, source) => sum + source.documents, 0);
  const tokens = info.sources.reduce((sum, source) => sum + source.tokens, 0);
  return [counted(documents, "document"), counted(tokens, "token"), `version ${info.datastore_version}`].join(
    " · ",
  );
}
