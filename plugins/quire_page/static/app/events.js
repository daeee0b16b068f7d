// Server-sent events whose data are JSON objects, ended by [DONE].

const DONE = "[DONE]";

// Splits text that arrives in pieces into the data of whole events.
export class EventParser {
  #rest = "";

  push(text) {
    const parts = (this.#rest + text).split(/\r?\n\r?\n/);
    this.#rest = parts.pop();
    return parts.map(dataOf).filter((data) => data !== "");
  }
}

function dataOf(event) {
  const lines = event.split(/\r?\n/).filter((line) => line.startsWith("data:"));
  return lines.map((line) => line.slice(5).replace(/^ /, "")).join("\n");
}

// Reads the stream to its end, also past [DONE]: to leave it earlier would look like a client that has gone.
export async function* eventsOf(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  let whole = false;
  try {
    while (!whole) {
      const { value, done } = await reader.read();
      whole = done;
      const events = done ? [] : parser.push(decoder.decode(value, { stream: true }));
      for (const data of events) if (data !== DONE) yield JSON.parse(data);
    }
  } finally {
    if (!whole) await reader.cancel().catch(() => {});
  }
}
