// What is to be said below a text: why nothing was retrieved, and what was copied.

import { element, isPlainClick, named, notice, sentence } from "./elements.js";
import { documentAddress } from "./api.js";

const TOO_LATE = "The text ended before anything that was retrieved could be read.";
const LONGER = "A longer prompt, or more tokens, would let it retrieve.";

/** Notes on what was retrieved, or why nothing was. */
export function retrievalNotes(answer) {
  if (answer.state !== "done" || !answer.retro) return [];
  const { notes, chunks, prompt_tokens: prompt, chunk_len: length } = answer.retro;
  const said = notes.map((text) => notice("", sentence(text)));
  const written = answer.usage?.completion_tokens ?? answer.retro.tokens?.length ?? 0;
  if (!chunks.length && !said.length) said.push(notice("", TOO_LATE));
  if (prompt + written < length) said.push(notice("", LONGER));
  if (said.length) return said;
  const late = chunks[0].first_token;
  if (late > 0) {
    return [
      notice(
        "",
        `The prompt has ${prompt} tokens, less than a chunk of ${length}: `,
        `the first ${late} tokens were written before anything could be retrieved.`,
      ),
    ];
  }
  return [];
}

/** Long runs that stand in a source word for word, with the source's licence. */
export function copyNotices(answer, open) {
  if (answer.state !== "done") return [];
  return (answer.retro?.warnings ?? []).map((warning) => {
    const link = element(
      "a",
      {
        href: documentAddress(warning.document),
        onclick: (event) => {
          if (!isPlainClick(event)) return;
          event.preventDefault();
          open(warning);
        },
      },
      named(warning.title || warning.document),
    );
    const licence = warning.licence
      ? ["; its licence is ", named(warning.licence)]
      : ["; its licence is not known"];
    return notice("copied", `${warning.tokens} tokens in a row are copied from `, link, ...licence, ".");
  });
}
