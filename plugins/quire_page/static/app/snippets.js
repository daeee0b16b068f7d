// A request as a command for the terminal, and as Python. The API key stays out of both: they read QUIRE_API_KEY.

const CLIENT = {
  "v1/chat/completions": ["chat.completions", "choices[0].message"],
  "v1/completions": ["completions", "choices[0].text"],
  "v1/embeddings": ["embeddings", "data[0].embedding[:8]"],
};
const OPENAI = new Set(
  [
    "model messages prompt input temperature top_p max_tokens max_completion_tokens n stop seed stream",
    "stream_options logprobs top_logprobs tools tool_choice parallel_tool_calls response_format",
    "presence_penalty frequency_penalty dimensions encoding_format echo reasoning_effort user",
  ].flatMap((names) => names.split(" ")),
);

export function curl(url, body, withKey) {
  const key = withKey ? ' \\\n  -H "Authorization: Bearer $QUIRE_API_KEY"' : "";
  const quiet = body.stream ? "-sN" : "-s";
  const json = JSON.stringify(body, null, 2);
  return `curl ${quiet} ${url} \\\n  -H 'Content-Type: application/json'${key} \\\n  -d @- <<'JSON'\n${json}\nJSON\n`;
}

export function python(base, path, body, withKey) {
  const route = path.replace(/^\//, "");
  return route in CLIENT ? withOpenai(base, route, body, withKey) : withHttpx(base, route, body, withKey);
}

function withOpenai(base, route, body, withKey) {
  const key = withKey ? 'os.environ["QUIRE_API_KEY"]' : '"none"';
  const [method, shown] = CLIENT[route];
  const fields = Object.entries(body);
  const own = fields.filter(([name]) => OPENAI.has(name)).map(([name, value]) => `    ${name}=${literal(value, 4)},`);
  const extra = Object.fromEntries(fields.filter(([name]) => !OPENAI.has(name)));
  if (Object.keys(extra).length) own.push(`    extra_body=${literal(extra, 4)},`);
  const lines = [
    ...(withKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url="${base}v1", api_key=${key})`,
    `answer = client.${method}.create(`,
    ...own,
    ")",
  ];
  if (!body.stream) lines.push(`print(answer.${shown})`);
  else {
    const text = route === "v1/completions" ? "choices[0].text" : "choices[0].delta.content";
    lines.push("for chunk in answer:", "    if chunk.choices:");
    lines.push(`        print(chunk.${text} or "", end="", flush=True)`, "print()");
  }
  return `${lines.join("\n")}\n`;
}

function withHttpx(base, route, body, withKey) {
  const headers = withKey ? 'headers = {"Authorization": f"Bearer {os.environ[\'QUIRE_API_KEY\']}"}' : "headers = {}";
  return [
    ...(withKey ? ["import os", ""] : []),
    "import httpx",
    "",
    headers,
    `body = ${literal(body, 0)}`,
    `answer = httpx.post("${base}${route}", json=body, headers=headers, timeout=60)`,
    "print(answer.text)",
    "",
  ].join("\n");
}

// A JSON value as a Python literal, indented by four.
export function literal(value, indent = 0) {
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const entries = Array.isArray(value)
    ? value.map((one) => literal(one, indent + 4))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, indent + 4)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (!entries.length) return open + close;
  const inner = " ".repeat(indent + 4);
  return `${open}\n${entries.map((entry) => `${inner}${entry},\n`).join("")}${" ".repeat(indent)}${close}`;
}
