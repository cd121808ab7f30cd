// Prompts for somebody who has none: openings of documents, long enough to retrieve from the first word on.

import { address, documentAddress, getJson } from "./api.js";
import { button, element, named } from "./elements.js";

const SHOWN = 4;
const LISTED = 60;
/** A little more than a chunk, so that the first one is complete. */
const CHUNKS = 1.15;

/** Shows a few openings below the prompt; `use(text)` takes one. */
export async function showSuggestions(place, info, use) {
  if (!info.has_datastore) return;
  try {
    const { data } = await getJson(address("/sources.json", { limit: LISTED }));
    const long = data.filter((row) => row.chunks > 2);
    const step = Math.max(1, Math.floor(long.length / SHOWN));
    const rows = long.filter((_, index) => index % step === 0).slice(0, SHOWN);
    if (!rows.length) return;
    const buttons = rows.map((row) =>
      button(named(row.title || row.id), () => begin(row, info, use), { class: "chip" }),
    );
    place.replaceChildren(element("span", { class: "quiet" }, "Or begin as a document does:"), ...buttons);
  } catch {
    // Without suggestions the page is whole.
  }
}

async function begin(row, info, use) {
  const url = documentAddress(row.document, 0, ".json");
  const part = await getJson(`${url}&around=${2 * info.chunk_len}`);
  use(opening(part.text.replace(/^\s+/u, ""), part.end - part.start, Math.ceil(CHUNKS * info.chunk_len)));
}

/** About so many of the tokens of a text, up to the end of a word. */
export function opening(text, tokens, wanted) {
  if (tokens <= wanted) return text.trimEnd();
  const characters = Array.from(text);
  const length = Math.ceil((characters.length * wanted) / tokens);
  const rest = characters.slice(length).join("");
  return (characters.slice(0, length).join("") + /^\S*/u.exec(rest)[0]).trimEnd();
}
