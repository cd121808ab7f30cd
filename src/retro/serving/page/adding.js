// Adding a document: pasted, dropped or chosen; then the same is asked again, and may be written otherwise.

import { change } from "./api.js";
import { button, counted, element, named, notice } from "./elements.js";

const KEY = "retro-key";
const REFUSED = "The key was refused. It is the one that the server was started with.";
const CLOSED = "This server takes no documents: it was started without --allow-writes.";

/** The key, kept until the tab is closed. */
export function storedKey() {
  try {
    return sessionStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

function storeKey(key) {
  try {
    sessionStorage.setItem(KEY, key);
  } catch {
    // A browser may keep nothing at all; then the field has it.
  }
}

/** The form; `actions.changed()` is told of a new version, `actions.askAgain()` asks the same once more. */
export function addForm(info, actions) {
  const title = element("h3", { class: "kind" }, "Add a document");
  if (!info.writes)
    return element("div", { class: "adding" }, title, element("p", { class: "quiet" }, CLOSED));
  const fields = {
    title: element("input", { id: "add-title", type: "text", maxLength: 1024, dir: "auto" }),
    text: element("textarea", {
      id: "add-text",
      rows: 7,
      dir: "auto",
      placeholder: "Paste a text, or drop a file here",
    }),
    source: element("input", { id: "add-source", type: "text", maxLength: 256, value: "added" }),
    key: element("input", { id: "add-key", type: "password", autocomplete: "off", value: storedKey() }),
  };
  const file = element("input", { id: "add-file", type: "file", class: "off-screen" });
  const outcome = element("div", { class: "outcome", role: "status" });
  const take = (chosen) => takeFile(chosen, fields, info.limits.document_bytes, outcome);
  file.addEventListener("change", () => file.files.length && take(file.files[0]));
  const form = element(
    "form",
    { class: "adding", onsubmit: (event) => submit(event, fields, outcome, actions) },
    title,
    labelled("Title", fields.title),
    labelled("Text", fields.text),
    element("p", { class: "file" }, file, element("label", { for: "add-file" }, "Choose a file")),
    element("div", { class: "pair" }, labelled("Source", fields.source), labelled("Key", fields.key)),
    element("p", { class: "links" }, element("button", { type: "submit" }, "Add")),
    outcome,
  );
  acceptDrops(form, take);
  return form;
}

function labelled(name, field) {
  return element("p", { class: "field" }, element("label", { for: field.id }, name), field);
}

function acceptDrops(form, take) {
  form.addEventListener("dragover", (event) => {
    event.preventDefault();
    form.classList.add("over");
  });
  form.addEventListener("dragleave", () => form.classList.remove("over"));
  form.addEventListener("drop", (event) => {
    event.preventDefault();
    form.classList.remove("over");
    const [file] = event.dataTransfer.files;
    if (file) take(file);
  });
}

async function takeFile(file, fields, most, outcome) {
  if (file.size > most) {
    outcome.replaceChildren(
      notice(
        "bad",
        `The file has ${counted(file.size, "byte")}; at most ${most.toLocaleString("en")} are taken.`,
      ),
    );
    return;
  }
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(await file.arrayBuffer());
    fields.text.value = text;
    fields.title.value ||= file.name.replace(/\.[^.]+$/u, "");
    outcome.replaceChildren(notice("", "Read ", named(file.name), "."));
  } catch {
    outcome.replaceChildren(notice("bad", named(file.name), " is not text in UTF-8."));
  }
}

async function submit(event, fields, outcome, actions) {
  event.preventDefault();
  const text = fields.text.value;
  if (!text.trim()) {
    outcome.replaceChildren(notice("bad", "There is no text to add."));
    fields.text.focus();
    return;
  }
  storeKey(fields.key.value);
  try {
    const document = { text, title: fields.title.value, source: fields.source.value.trim() || "added" };
    const added = await change("POST", "/documents", fields.key.value, document);
    fields.text.value = "";
    fields.title.value = "";
    await actions.changed();
    announce(added, actions);
  } catch (error) {
    const words = error.status === 401 ? REFUSED : error.message;
    outcome.replaceChildren(notice("bad", words));
    if (error.status === 401) fields.key.focus();
  }
}

/** The form was made anew with the datastore; its last line says what happened. */
function announce(added, actions) {
  const outcome = document.querySelector(".adding .outcome");
  const again = button("Ask again with it", () => actions.askAgain(), {
    class: "primary",
    id: "ask-with-it",
  });
  const undo = button("Read it", () => actions.openDocument(added), { class: "plain" });
  outcome?.replaceChildren(
    notice(
      "good",
      "Added to the source ",
      named(added.source),
      `; the datastore is at version ${added.version}.`,
    ),
    element("p", { class: "links" }, again, undo),
  );
  again.focus();
}
