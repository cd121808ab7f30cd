// What the reader has taken out, and how to put it back.

import { documentAddress, getJson } from "./api.js";
import { button, element, named } from "./elements.js";

export class TakenOut {
  /** `putBack(documents)` is called with those to be read again. */
  constructor(place, putBack) {
    this.root = element("div", { id: "taken-out", hidden: true });
    place.append(this.root);
    this.putBack = putBack;
    this.titles = new Map();
    this.documents = [];
  }

  /** Keeps a document's name: a link has only its hash. */
  remember({ document, title, id, source }) {
    const name = title || id;
    if (name) this.titles.set(document, source ? `${name} · ${source}` : name);
  }

  show(documents) {
    this.documents = documents;
    this.root.hidden = !documents.length;
    const all =
      documents.length > 1 ? button("Put all back", () => this.putBack(documents), { class: "plain" }) : "";
    const label = element("span", { class: "label" }, "Taken out");
    this.root.replaceChildren(label, ...documents.map((document) => this.#chip(document)), all);
  }

  #chip(document) {
    const known = this.titles.get(document);
    const name = known ?? document.slice(0, 12);
    if (known === undefined) this.#nameLater(document);
    const back = button("Put back", () => this.putBack([document]), {
      class: "plain",
      "aria-label": `Put back: ${name}`,
    });
    return element("span", { class: "out" }, named(name), back);
  }

  async #nameLater(document) {
    this.titles.set(document, document.slice(0, 12));
    try {
      this.remember(await getJson(documentAddress(document, 0, ".json")));
      this.show(this.documents);
    } catch {
      // It may have been deleted since; then its hash stays.
    }
  }
}
