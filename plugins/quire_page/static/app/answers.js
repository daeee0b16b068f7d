// A streamed answer: adds the events of a chat or a completion to what has arrived. Nothing here changes in place.

export const emptyMessage = () => ({ role: "assistant", content: "", reasoning: "", calls: [], tokens: [] });

// The message with one event of /v1/chat/completions added.
export function withChatEvent(message, event) {
  const choice = event.choices?.[0];
  const added = event.usage ? { ...message, usage: event.usage } : message;
  if (!choice) return added;
  const { delta } = choice;
  return {
    ...added,
    content: added.content + (delta.content ?? ""),
    reasoning: added.reasoning + (delta.reasoning ?? delta.reasoning_content ?? ""),
    calls: delta.tool_calls ? withCalls(added.calls, delta.tool_calls) : added.calls,
    tokens: choice.logprobs?.content ? [...added.tokens, ...choice.logprobs.content.map(chatToken)] : added.tokens,
    finish: choice.finish_reason ?? added.finish,
  };
}

function withCalls(calls, parts) {
  const next = calls.slice();
  for (const part of parts) {
    const index = part.index ?? next.length;
    const before = next[index] ?? { id: "", name: "", arguments: "" };
    next[index] = {
      id: part.id ?? before.id,
      name: before.name + (part.function?.name ?? ""),
      arguments: before.arguments + (part.function?.arguments ?? ""),
    };
  }
  return next;
}

const chatToken = (entry) => ({
  text: entry.token,
  logprob: entry.logprob,
  top: entry.top_logprobs.map(({ token, logprob }) => ({ text: token, logprob })),
});

// The text with one event of /v1/completions added.
export function withCompletionEvent(message, event) {
  const choice = event.choices?.[0];
  const added = event.usage ? { ...message, usage: event.usage } : message;
  if (!choice) return added;
  return {
    ...added,
    content: added.content + (choice.text ?? ""),
    tokens: choice.logprobs ? [...added.tokens, ...completionTokens(choice.logprobs)] : added.tokens,
    finish: choice.finish_reason ?? added.finish,
  };
}

function completionTokens({ tokens, token_logprobs: own, top_logprobs: top }) {
  return tokens.map((text, i) => ({
    text,
    logprob: own[i],
    top: Object.entries(top?.[i] ?? {})
      .map(([token, logprob]) => ({ text: token, logprob }))
      .sort((a, b) => b.logprob - a.logprob),
  }));
}

// Runs a request: calls `onMessage` with the message so far, and resolves to the last one with its times in seconds.
export async function follow(events, addEvent, onMessage, now = () => performance.now() / 1000) {
  const began = now();
  let message = emptyMessage();
  let first = null;
  for await (const event of events) {
    message = addEvent(message, event);
    if (first === null && (message.content || message.reasoning || message.calls.length)) first = now();
    onMessage(message);
  }
  const ended = now();
  return { ...message, times: { first: (first ?? ended) - began, total: ended - began } };
}
