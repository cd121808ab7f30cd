// The fields above the text: what they say, and what a link says, are one state.

import { counted, element, named } from "./elements.js";
import { DEFAULTS } from "./link.js";

const NUMBERS = {
  neighbours: "neighbours",
  seed: "seed",
  temperature: "temperature",
  topP: "top-p",
  tokens: "tokens",
};

export class Settings {
  /** `changed()` is called when a setting was changed, not while a prompt is being typed. */
  constructor(changed) {
    this.prompt = document.getElementById("prompt");
    this.menu = document.getElementById("sources-menu");
    this.list = document.getElementById("sources-list");
    this.chosen = document.getElementById("sources-chosen");
    this.info = null;
    for (const id of Object.values(NUMBERS)) document.getElementById(id).addEventListener("change", changed);
    this.list.addEventListener("change", () => {
      this.#sayChosen();
      changed();
    });
    closeOutside(this.menu);
    this.prompt.addEventListener("input", () => grow(this.prompt));
  }

  /** What the server allows. */
  allow(info) {
    this.info = info;
    document.getElementById("tokens").max = info.limits.max_tokens;
    document.getElementById("neighbours").disabled = !info.has_datastore;
    this.menu.hidden = info.sources.length < 2;
  }

  writePrompt(text) {
    this.prompt.value = text;
    grow(this.prompt);
  }

  write(state) {
    this.writePrompt(state.prompt);
    for (const [name, id] of Object.entries(NUMBERS)) document.getElementById(id).value = state[name] ?? "";
    document.getElementById("neighbours").placeholder = this.info?.num_neighbours ?? "";
    const names = this.info?.sources ?? [];
    this.list.replaceChildren(...names.map((source) => sourceBox(source, state.sources)));
    this.#sayChosen();
  }

  /** The state that the fields show; what cannot be read is as always. */
  read(state) {
    const result = { ...state, prompt: this.prompt.value, sources: this.#sources() };
    for (const [name, id] of Object.entries(NUMBERS)) {
      const field = document.getElementById(id);
      const value = field.value === "" || !field.checkValidity() ? NaN : field.valueAsNumber;
      result[name] = Number.isFinite(value) ? value : DEFAULTS[name];
    }
    result.tokens = Math.min(result.tokens, this.info?.limits.max_tokens ?? result.tokens);
    return result;
  }

  #sources() {
    return [...this.list.querySelectorAll("input:checked")].map((box) => box.value);
  }

  #sayChosen() {
    const chosen = this.#sources();
    this.chosen.replaceChildren(
      chosen.length === 1 ? named(chosen[0]) : chosen.length ? `${chosen.length}` : "all",
    );
  }
}

function sourceBox(source, chosen) {
  const box = element("input", {
    type: "checkbox",
    value: source.source,
    checked: chosen.includes(source.source),
  });
  const facts = [counted(source.documents, "document"), source.licence].filter(Boolean).join(" · ");
  return element("label", {}, box, named(source.source), element("span", { class: "quiet small" }, facts));
}

function closeOutside(menu) {
  document.addEventListener("click", (event) => {
    if (menu.open && !menu.contains(event.target)) menu.open = false;
  });
  menu.addEventListener("keydown", (event) => {
    if (event.key !== "Escape") return;
    menu.open = false;
    menu.querySelector("summary").focus();
  });
}

/** As high as its text, up to what the style allows. */
function grow(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}
