// The server's routes. Everything is on the machine that gave the page; nothing else is ever asked.

import { sentence } from "./elements.js";
import { events } from "./sse.js";

/** What the server refused, in its own words, with the seconds to wait if it is busy. */
export class ServerError extends Error {
  constructor(message, status = 0, wait = undefined) {
    super(sentence(message));
    this.status = status;
    this.wait = wait;
  }
}

const UNREACHABLE = "The server does not answer. It may have been stopped; what is on the page stays.";
const BROKEN = "The server ended the answer before it was complete.";

async function asked(path, options = {}) {
  let response;
  try {
    // The page's own address may hold a name and a key, with which nothing can be fetched.
    response = await fetch(new URL(path, location.origin), options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError(UNREACHABLE);
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    message = (await response.json()).error.message ?? message;
  } catch {
    // A proxy in between may answer with something that is not JSON.
  }
  const wait = Number.parseFloat(response.headers.get("Retry-After"));
  return new ServerError(message, response.status, Number.isFinite(wait) ? wait : undefined);
}

/** An address with parameters; lists become repeated parameters, and what is empty is left out. */
export function address(path, parameters = {}) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== undefined && one !== null && one !== "") query.append(name, one);
    }
  }
  return query.size ? `${path}?${query}` : path;
}

/** Where a document is read, by people and as JSON. */
export function documentAddress(document, at, suffix = "") {
  return address(`/sources/${encodeURIComponent(document)}${suffix}`, { at });
}

/** The JSON twin of an address that the server gave. */
export function twin(url) {
  const there = new URL(url, location.href);
  return `${there.pathname.replace(/(\.json)?$/u, ".json")}${there.search}`;
}

export async function getJson(url, signal) {
  return (await asked(url, { signal, headers: { Accept: "application/json" } })).json();
}

/** Changes the datastore, which takes a key. */
export async function change(method, path, key, body) {
  const headers = { Accept: "application/json" };
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  const sent = body === undefined ? undefined : JSON.stringify(body);
  return (await asked(path, { method, headers, body: sent })).json();
}

/** Yields the events of a streamed completion. */
export async function* complete(request, signal) {
  const response = await asked("/v1/completions", {
    method: "POST",
    signal,
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
  });
  let finished = false;
  try {
    for await (const data of events(response.body)) {
      if (data === "[DONE]") {
        finished = true;
        continue;
      }
      const event = JSON.parse(data);
      if (event.error) throw new ServerError(event.error.message);
      yield event;
    }
  } catch (error) {
    // What `fetch` says of a lost connection differs from browser to browser.
    throw error instanceof TypeError ? new ServerError(BROKEN) : error;
  }
  if (!finished) throw new ServerError(BROKEN);
}
