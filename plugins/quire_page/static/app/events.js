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

export async function* eventsOf(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  const parser = new EventParser();
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      for (const data of parser.push(decoder.decode(value, { stream: true }))) {
        if (data === DONE) return;
        yield JSON.parse(data);
      }
    }
  } finally {
    await reader.cancel().catch(() => {});
  }
}
