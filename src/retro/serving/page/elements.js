// Elements of the page, made without markup: whatever is given as a child is text, or an element already.

import { appendVisible, oneLine } from "./visible.js";

/** An element. A property `on…` is a listener, one with a hyphen an attribute, any other a property. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (value === undefined || value === null) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "class") made.className = value;
    else if (key.includes("-") || key === "role" || key === "for") made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children.filter((child) => child !== undefined && child !== null && child !== ""));
  return made;
}

/** A button that does no more than call a function. */
export function button(label, onclick, properties = {}) {
  return element("button", { type: "button", onclick, ...properties }, label);
}

/** A name that others gave: on one line, and apart from the direction of the text around it. */
export function named(text, properties = {}) {
  return element(
    "bdi",
    { title: text.length > 120 ? oneLine(text, 600) : undefined, ...properties },
    oneLine(text),
  );
}

/** A text that others wrote, in a block of its own. */
export function quoted(text, properties = {}) {
  return appendVisible(element("div", { class: "quoted", ...properties }), text);
}

/** The link to the same thing as JSON. */
export function jsonLink(href, of) {
  return element("a", { href, class: "json", target: "_blank", "aria-label": `.json: ${of}` }, ".json");
}

/** Says in a sentence what is the case, or what went wrong. */
export function notice(kind, ...children) {
  return element("p", { class: `notice ${kind}` }, ...children);
}

/** Whether a link should be left to the browser: with a modifier key it opens elsewhere. */
export function isPlainClick(event) {
  return event.button === 0 && !event.metaKey && !event.ctrlKey && !event.shiftKey && !event.altKey;
}

/** A number with its noun. */
export function counted(number, noun, plural = `${noun}s`) {
  return `${number.toLocaleString("en")} ${number === 1 ? noun : plural}`;
}

/** What the server says in half a sentence, as a whole one; a name of a field stays as it is. */
export function sentence(text) {
  const begins = /^[a-z]+\b(?!_)/u.test(text) ? text.slice(0, 1).toUpperCase() + text.slice(1) : text;
  return /[.!?]$/u.test(begins) ? begins : `${begins}.`;
}
