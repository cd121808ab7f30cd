// A document, opened at a place, in a sheet above the page.

import { change, documentAddress, getJson, twin } from "./api.js";
import { button, counted, element, jsonLink, named, notice } from "./elements.js";
import { runClass } from "./levels.js";
import { joined, takeOutButton } from "./neighbour.js";
import { stretches } from "./reading.js";
import { appendVisible } from "./visible.js";

export class DocumentSheet {
  /** `actions` are those of a neighbour, and `writes()`, `key()`, `deleted(row)`, `closed()`. */
  constructor(dialog, actions) {
    this.dialog = dialog;
    this.actions = actions;
    dialog.addEventListener("close", () => actions.closed());
    // A click beside the sheet closes it.
    dialog.addEventListener("click", (event) => {
      if (event.target === dialog) dialog.close();
    });
  }

  /** Opens a document at a token; `neighbour` is what was read of it, if that is why. */
  async open(document, at, neighbour = null) {
    this.#fill(element("p", { class: "quiet" }, "Opening …"));
    if (!this.dialog.open) this.dialog.showModal();
    try {
      const row = await getJson(documentAddress(document, at, ".json"));
      this.#show(row, at, neighbour);
    } catch (error) {
      const words =
        error.status === 404 ? "There is no such document; it may have been deleted." : error.message;
      this.#fill(notice("bad", words));
    }
  }

  #fill(...children) {
    const title = element("h2", { id: "document-title" }, "Document");
    this.dialog.replaceChildren(element("header", {}, title, this.#close()), ...children);
  }

  #close() {
    return button("Close", () => this.dialog.close(), { class: "plain close" });
  }

  #show(row, at, neighbour) {
    const facts = [
      named(row.source),
      named(row.id),
      counted(row.tokens, "token"),
      counted(row.chunks, "chunk"),
    ];
    if (row.licence) facts.push(named(row.licence));
    const name = row.title || row.id;
    const text = element("div", {
      class: "quoted whole",
      dir: "auto",
      tabIndex: 0,
      role: "region",
      "aria-label": "Text",
    });
    const marked = this.#appendPart(text, row, neighbour);
    const address = documentAddress(row.document, at);
    const actions = element(
      "p",
      { class: "links" },
      takeOutButton(row, { ...this.actions, toggle: () => this.#toggle(row) }),
      element("a", { href: address }, "Link to this place"),
      this.actions.writes() ? this.#deleteButton(row) : "",
      jsonLink(documentAddress(row.document, at, ".json"), name),
    );
    this.dialog.replaceChildren(
      element(
        "header",
        {},
        element("h2", { id: "document-title", tabIndex: -1 }, named(name)),
        this.#close(),
      ),
      element("p", { class: "origin" }, ...joined(facts)),
      actions,
      this.#more(row.previous, "Earlier", text, "before"),
      text,
      this.#more(row.following, "Later", text, "after"),
    );
    this.dialog.querySelector("h2").focus();
    marked?.scrollIntoView({ block: "center" });
  }

  #toggle(row) {
    this.dialog.close();
    this.actions.toggle(row);
  }

  /** Appends a part of the document, the place that was asked for set apart; gives that place. */
  #appendPart(text, row, neighbour) {
    const characters = Array.from(row.text);
    const cut = (from, to) => characters.slice(from, to).join("");
    appendVisible(text, cut(0, row.marked_start));
    if (row.marked_end <= row.marked_start) {
      appendVisible(text, cut(row.marked_start));
      return null;
    }
    const place = element("span", { class: "place" });
    const rest = cut(row.marked_start);
    // What was read is the chunk with its continuation; elsewhere only the chunk is known.
    const isRead = neighbour !== null && rest.startsWith(neighbour.text);
    const read = isRead ? neighbour.text : cut(row.marked_start, row.marked_end);
    if (isRead) appendShared(place, neighbour);
    else appendVisible(place, read);
    text.append(place);
    appendVisible(text, rest.slice(read.length));
    return place;
  }

  /** A button that reads the part before or after what is shown. */
  #more(url, label, text, side) {
    if (!url) return "";
    const made = button(
      label,
      async () => {
        made.disabled = true;
        try {
          const part = await getJson(twin(url));
          const added = appendVisible(document.createElement("span"), part.text);
          if (side === "before") this.#prepend(text, added);
          else text.append(added);
          made.replaceWith(this.#more(side === "before" ? part.previous : part.following, label, text, side));
        } catch (error) {
          made.replaceWith(notice("bad", error.message));
        }
      },
      { class: "plain more" },
    );
    return made;
  }

  #prepend(text, added) {
    // What the reader looks at stays where it is.
    const before = text.scrollHeight;
    text.prepend(added);
    text.scrollTop += text.scrollHeight - before;
  }

  /** Deletes for everybody, so it asks twice. */
  #deleteButton(row) {
    const ask = button(
      "Delete from the datastore",
      () => {
        const sure = button("Delete it for everybody", () => this.#delete(row, sure), { class: "danger" });
        ask.replaceWith(sure);
        sure.focus();
      },
      { class: "plain" },
    );
    return ask;
  }

  async #delete(row, sure) {
    sure.disabled = true;
    try {
      await change("DELETE", `/documents/${encodeURIComponent(row.document)}`, this.actions.key());
      this.dialog.close();
      this.actions.deleted(row);
    } catch (error) {
      const key = error.status === 401 ? " The key is a field below “Add a document”." : "";
      sure.replaceWith(notice("bad", `${error.message}${key}`));
    }
  }
}

/** What was read, with the runs that it shares with the answer. */
function appendShared(place, neighbour) {
  for (const stretch of stretches(neighbour)) {
    const shade = stretch.run ? runClass(stretch.run.tokens) : "";
    if (shade) place.append(appendVisible(element("mark", { class: shade }), stretch.text));
    else appendVisible(place, stretch.text);
  }
}
