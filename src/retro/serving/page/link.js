// What is asked, as a link: everything that the text depends on stands behind the `#` of the address, which
// browsers do not send, so a prompt is in no server's log.

export const DEFAULTS = Object.freeze({
  prompt: "",
  neighbours: null,
  sources: Object.freeze([]),
  exclude: Object.freeze([]),
  seed: 0,
  temperature: 0.7,
  topP: 0.9,
  tokens: 128,
  word: null,
});

// Name in the link, and how it is read: none for what makes no sense.
const FIELDS = {
  prompt: ["p", (text) => text],
  neighbours: ["k", whole(1, 64)],
  seed: ["seed", whole(0, Number.MAX_SAFE_INTEGER)],
  temperature: ["t", number(0, 2)],
  topP: ["top", number(0.01, 1)],
  tokens: ["n", whole(1, 1 << 20)],
  word: ["w", whole(0, 1 << 20)],
};
const LISTS = { sources: "s", exclude: "x" };

function number(least, most) {
  return (text) => {
    const value = Number(text);
    return text.trim() !== "" && value >= least && value <= most ? value : undefined;
  };
}

function whole(least, most) {
  const read = number(least, most);
  return (text) => (Number.isInteger(read(text)) ? read(text) : undefined);
}

/** The part of a link behind `#`; what is as always is left out. */
export function toHash(state) {
  const parameters = new URLSearchParams();
  for (const [name, [short]] of Object.entries(FIELDS)) {
    if (state[name] !== DEFAULTS[name] && state[name] !== undefined) parameters.append(short, state[name]);
  }
  for (const [name, short] of Object.entries(LISTS)) {
    for (const one of state[name] ?? []) parameters.append(short, one);
  }
  return parameters.toString();
}

/** What a link asks for; what cannot be read is as always. */
export function fromHash(hash) {
  const parameters = new URLSearchParams(hash.replace(/^#/u, ""));
  const state = { ...DEFAULTS };
  for (const [name, [short, read]] of Object.entries(FIELDS)) {
    const value = parameters.has(short) ? read(parameters.get(short)) : undefined;
    if (value !== undefined) state[name] = value;
  }
  for (const [name, short] of Object.entries(LISTS)) {
    state[name] = [...new Set(parameters.getAll(short).filter(Boolean))];
  }
  return state;
}

/** What to send to the server for a state, with retrieval or without. */
export function requestOf(state, retrieval) {
  const retro = { retrieval };
  if (retrieval) {
    if (state.neighbours !== null) retro.num_neighbours = state.neighbours;
    retro.sources = [...state.sources];
    retro.exclude = [...state.exclude];
    retro.worth = true;
    retro.explain = true;
  }
  return {
    prompt: state.prompt,
    max_tokens: state.tokens,
    temperature: state.temperature,
    top_p: state.topP,
    seed: state.seed,
    retro,
  };
}
