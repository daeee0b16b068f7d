// Requests to the server that this page came from. Addresses are relative, so that a prefix of a proxy is kept.

import { eventsOf } from "./events.js";
import { apiKey } from "./session.js";

export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

export const addressOf = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

function headersOf(body) {
  const headers = apiKey() ? { Authorization: `Bearer ${apiKey()}` } : {};
  return body === undefined || body instanceof FormData ? headers : { ...headers, "Content-Type": "application/json" };
}

async function send(path, body, signal) {
  let answer;
  try {
    answer = await fetch(addressOf(path), {
      method: body === undefined ? "GET" : "POST",
      headers: headersOf(body),
      body: body === undefined || body instanceof FormData ? body : JSON.stringify(body),
      signal,
      credentials: "same-origin",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ServerError("The server does not answer. Is it running?", 0);
  }
  if (!answer.ok) throw new ServerError(messageOf(await answer.text(), answer.status), answer.status);
  return answer;
}

// The sentence in an error body; {"error": "Unauthorized"} and bodies of proxies have none.
export function messageOf(text, status) {
  try {
    const { error } = JSON.parse(text);
    if (error?.message) return error.message;
  } catch {
    // Not JSON: an answer of something between the server and the page.
  }
  if (status === 401) return "This server needs an API key. Enter one with the key button.";
  return `The server answered with status ${status}.`;
}

export const getJson = async (path, signal) => (await send(path, undefined, signal)).json();
export const getText = async (path, signal) => (await send(path, undefined, signal)).text();
export const postJson = async (path, body, signal) => (await send(path, body, signal)).json();
export const postText = async (path, body, signal) => (await send(path, body, signal)).text();

// The JSON objects of a streamed answer. Throws ServerError for an error that arrives within the stream.
export async function* postStream(path, body, signal) {
  const answer = await send(path, body, signal);
  for await (const event of eventsOf(answer.body)) {
    if (event.error) throw new ServerError(event.error.message ?? String(event.error), event.error.code ?? 500);
    yield event;
  }
}
