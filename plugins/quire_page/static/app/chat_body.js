// The body of POST /v1/chat/completions for a conversation and the settings beside it.

export const DEFAULTS = {
  model: "",
  other: "",
  compare: false,
  system: "",
  temperature: "0",
  topP: "",
  maxTokens: "256",
  seed: "",
  logprobs: false,
  top: "5",
  format: "text",
  schema: JSON.stringify(
    {
      type: "object",
      properties: { name: { type: "string" }, river: { type: "string" } },
      required: ["name", "river"],
      additionalProperties: false,
    },
    null,
    2,
  ),
  pattern: "(yes|no)",
  choices: "yes\nno",
  useTools: false,
  toolChoice: "auto",
  tools: JSON.stringify(
    [
      {
        type: "function",
        function: {
          name: "get_weather",
          description: "Get the weather of a place.",
          parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
        },
      },
    ],
    null,
    2,
  ),
};

// Throws Error with a sentence for a field that cannot be read.
export function chatBody(fields, model, messages) {
  const body = {
    model,
    messages: fields.system ? [{ role: "system", content: fields.system }, ...messages] : messages,
  };
  addNumbers(body, {
    temperature: fields.temperature,
    top_p: fields.topP,
    max_tokens: fields.maxTokens,
    seed: fields.seed,
  });
  if (fields.logprobs) Object.assign(body, { logprobs: true, top_logprobs: Number(fields.top) });
  Object.assign(body, constraintOf(fields));
  if (fields.useTools) {
    body.tools = parsed(fields.tools, "The tools are");
    if (!Array.isArray(body.tools)) throw new Error("The tools must be a list: [{…}].");
    if (fields.toolChoice !== "auto") body.tool_choice = fields.toolChoice;
  }
  return { ...body, stream: true, stream_options: { include_usage: true } };
}

export function addNumbers(body, fields) {
  for (const [name, text] of Object.entries(fields)) {
    if (text === "") continue;
    const value = Number(text);
    if (!Number.isFinite(value)) throw new Error(`${name} must be a number; got ${text}.`);
    body[name] = value;
  }
}

function constraintOf(fields) {
  switch (fields.format) {
    case "object":
      return { response_format: { type: "json_object" } };
    case "schema":
      return {
        response_format: {
          type: "json_schema",
          json_schema: { name: "answer", schema: parsed(fields.schema, "The schema is") },
        },
      };
    case "regex":
      return { structured_outputs: { regex: fields.pattern } };
    case "choice":
      return { structured_outputs: { choice: linesOf(fields.choices) } };
    default:
      return {};
  }
}

export const linesOf = (text) =>
  text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);

function parsed(text, what) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${what} no JSON: ${error.message}`);
  }
}

// The messages of a conversation as one of its sides (0 or 1) sees them. A turn without an answer of that side, from
// before the comparison began, has the answer of the other.
export function messagesOf(turns, side) {
  return turns.flatMap((turn) => [
    userMessage(turn),
    ...((turn.answers[side] ?? turn.answers[0])?.steps.map(wire) ?? []),
  ]);
}

function userMessage({ text, pictures }) {
  if (!pictures.length) return { role: "user", content: text };
  const images = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
  return { role: "user", content: text ? [...images, { type: "text", text }] : images };
}

function wire(step) {
  if (step.role === "tool") return { role: "tool", tool_call_id: step.id, content: step.content };
  if (!step.calls.length) return { role: "assistant", content: step.content };
  const calls = step.calls.map((call) => ({
    id: call.id,
    type: "function",
    function: { name: call.name, arguments: call.arguments },
  }));
  return { role: "assistant", content: step.content || null, tool_calls: calls };
}
