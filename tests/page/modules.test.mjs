// The modules of the page that need no browser. STATIC: the folder with its files, as a package of type "module".

import assert from "node:assert/strict";
import { test } from "node:test";
import { pathToFileURL } from "node:url";

const load = (name) => import(pathToFileURL(`${process.env.STATIC}/${name}`).href);

const { EventParser, eventsOf } = await load("app/events.js");
const { follow, withChatEvent, withCompletionEvent } = await load("app/answers.js");
const { chatBody, DEFAULTS, messagesOf } = await load("app/chat_body.js");
const { clientsOf, growth, parse, snapshot } = await load("app/metrics.js");
const { settingsOf } = await load("views/model_settings.js");
const { curl, literal, python } = await load("app/snippets.js");
const { bytes, percent, short } = await load("app/numbers.js");
const { wav } = await load("app/recording.js");

test("events are the same wherever the stream is cut", async () => {
  const text = 'data: {"a": "é"}\n\n: a comment\r\n\r\ndata: {"b":\ndata: 2}\r\n\r\ndata: [DONE]\n\n';
  const all = new TextEncoder().encode(text);
  for (let cut = 0; cut <= all.length; cut++) {
    const stream = new ReadableStream({
      start(controller) {
        for (const part of [all.slice(0, cut), all.slice(cut)]) if (part.length) controller.enqueue(part);
        controller.close();
      },
    });
    const found = [];
    for await (const event of eventsOf(stream)) found.push(event);
    assert.deepEqual(found, [{ a: "é" }, { b: 2 }], `cut at ${cut}`);
  }
  assert.deepEqual(new EventParser().push("data: half"), []);
});

test("parts of tool calls, reasoning, text and log-probabilities become one message", async () => {
  const delta = (value, more) => ({ choices: [{ delta: value, ...more }] });
  const token = { token: "Hi", logprob: -0.5, top_logprobs: [{ token: "Ho", logprob: -1 }] };
  const call = (part) => delta({ tool_calls: [{ index: 0, ...part }] });
  async function* events() {
    yield delta({ role: "assistant", content: "" });
    yield delta({ reasoning: "hm" });
    yield delta({ content: "Hi" }, { logprobs: { content: [token] } });
    yield call({ id: "c1", function: { name: "f", arguments: "" } });
    yield call({ function: { arguments: '{"x":' } });
    yield call({ function: { arguments: " 1}" } });
    yield delta({}, { finish_reason: "tool_calls" });
    yield { choices: [], usage: { prompt_tokens: 3, completion_tokens: 2 } };
  }
  let clock = 0;
  const seen = [];
  const message = await follow(events(), withChatEvent, (so_far) => seen.push(so_far.content), () => clock++);
  assert.equal(message.content, "Hi");
  assert.equal(message.reasoning, "hm");
  assert.deepEqual(message.calls, [{ id: "c1", name: "f", arguments: '{"x": 1}' }]);
  assert.deepEqual(message.tokens, [{ text: "Hi", logprob: -0.5, top: [{ text: "Ho", logprob: -1 }] }]);
  assert.equal(message.finish, "tool_calls");
  assert.equal(message.usage.completion_tokens, 2);
  assert.deepEqual(message.times, { first: 1, total: 2 });
  assert.deepEqual(seen.slice(0, 3), ["", "", "Hi"]);
});

test("completions bring their tokens, the likeliest alternative first", () => {
  const logprobs = { tokens: ["a"], token_logprobs: [-1], top_logprobs: [{ b: -2, a: -1 }], text_offset: [0] };
  const message = withCompletionEvent({ content: "x", tokens: [] }, { choices: [{ text: "a", logprobs }] });
  assert.equal(message.content, "xa");
  assert.deepEqual(message.tokens[0].top.map(({ text }) => text), ["a", "b"]);
});

test("a body has the fields that were filled in, and names the one that cannot be read", () => {
  const ask = [{ role: "user", content: "Hi" }];
  const plain = chatBody({ ...DEFAULTS, temperature: "", maxTokens: "" }, "m", ask);
  assert.deepEqual(plain, { model: "m", messages: ask, stream: true, stream_options: { include_usage: true } });
  const full = { ...DEFAULTS, system: "S", seed: "7", logprobs: true, format: "schema", useTools: true, toolChoice: "required" };
  const body = chatBody(full, "m", ask);
  assert.deepEqual(body.messages[0], { role: "system", content: "S" });
  assert.deepEqual([body.seed, body.temperature, body.logprobs, body.top_logprobs], [7, 0, true, 5]);
  assert.equal(body.response_format.json_schema.schema.type, "object");
  assert.equal(body.tools[0].function.name, "get_weather");
  assert.equal(body.tool_choice, "required");
  assert.deepEqual(chatBody({ ...DEFAULTS, format: "choice" }, "m", ask).structured_outputs, { choice: ["yes", "no"] });
  assert.throws(() => chatBody({ ...DEFAULTS, seed: "x" }, "m", ask), /seed must be a number/);
  assert.throws(() => chatBody({ ...DEFAULTS, useTools: true, tools: "{}" }, "m", ask), /must be a list/);
  assert.throws(() => chatBody({ ...DEFAULTS, format: "schema", schema: "{" }, "m", ask), /The schema is no JSON/);
});

test("each side of a comparison sees its own answers, and those from before it began", () => {
  const say = (content) => ({ steps: [{ role: "assistant", content, calls: [] }] });
  const call = { role: "assistant", content: "", calls: [{ id: "c", name: "f", arguments: "{}" }] };
  const result = { role: "tool", id: "c", name: "f", content: "4" };
  const turns = [
    { text: "one", pictures: [], answers: [say("A")] },
    { text: "two", pictures: [{ url: "data:x" }], answers: [say("L"), { steps: [call, result] }] },
  ];
  assert.deepEqual(messagesOf(turns, 0).map(({ role }) => role), ["user", "assistant", "user", "assistant"]);
  const right = messagesOf(turns, 1);
  assert.equal(right[1].content, "A");
  assert.deepEqual(right[2].content[0], { type: "image_url", image_url: { url: "data:x" } });
  assert.deepEqual(right[3].tool_calls[0].function, { name: "f", arguments: "{}" });
  assert.deepEqual(right[4], { role: "tool", tool_call_id: "c", content: "4" });
});

test("metrics of any prefix are read, with odd names in labels", () => {
  const scrape = (count) => `# HELP x y
my:num_requests_running{engine="0",model_name="a \\"b\\", c"} 2.0
my:kv_cache_usage_perc{model_name="a \\"b\\", c"} 0.25
my:generation_tokens_total{model_name="a \\"b\\", c"} ${count}
my:lora_requests_info{max_lora="8",model_name="a \\"b\\", c",running_lora_adapters="p,q",waiting_lora_adapters=""} 1e9
my:adapters{model_name="a \\"b\\", c",tier="device"} 1
my:adapter_generation_tokens_total{adapter_name="p",model_name="a \\"b\\", c"} 4
python_info{x="1"} 1`;
  const name = 'a "b", c';
  const [before, after] = [snapshot(parse(scrape(10)), 1000), snapshot(parse(scrape(30)), 3000)];
  assert.equal(after.models[name].kv, 0.25);
  assert.deepEqual(after.models[name].inUse, ["p", "q"]);
  assert.equal(after.models[name].slots, 8);
  assert.equal(after.models[name].tier_device, 1);
  assert.deepEqual(Object.values(after.adapters), [{ model: name, name: "p", generated: 4 }]);
  assert.equal(growth(before, after, "models", name, "generated"), 10);
  assert.equal(growth(after, { ...before, time: 5000 }, "models", name, "generated"), 0);
  assert.equal(growth({ time: 1000, models: {}, adapters: {} }, after, "models", name, "generated"), 15);
  assert.equal(growth(undefined, after, "models", name, "generated"), 0);
});

test("the engine processes of a model are shown together", () => {
  const engine = (number, running, kv, names) => `my:num_requests_running{engine="${number}",model_name="a"} ${running}
my:kv_cache_usage_perc{engine="${number}",model_name="a"} ${kv}
my:lora_requests_info{engine="${number}",max_lora="8",model_name="a",running_lora_adapters="${names}",waiting_lora_adapters=""} 1e9
my:adapters{engine="${number}",model_name="a",tier="device"} 2\n`;
  const model = snapshot(parse(engine(0, 1, 0.5, "p,q") + engine(1, 2, 0.1, "q,r")), 1000).models.a;
  assert.deepEqual([model.running, model.slots, model.tier_device], [3, 16, 4]);
  assert.ok(Math.abs(model.kv - 0.3) < 1e-9);
  assert.deepEqual([model.inUse, model.queued], [["p", "q", "r"], []]);
});

test("rows of clients become a group of a snapshot", () => {
  const row = (generated) => ({ client: "key 1", is_me: true, num_requests: 2, num_prompt_tokens: 3, num_generated_tokens: generated });
  const before = { time: 1000, clients: clientsOf([row(4)]) };
  const after = { time: 3000, clients: clientsOf([row(10)]) };
  assert.deepEqual(after.clients, { "key 1": { isMe: true, requests: 2, prompt: 3, generated: 10 } });
  assert.equal(growth(before, after, "clients", "key 1", "generated"), 3);
});

test("commands quote what they contain and read the key from the environment", () => {
  const body = { model: "m", messages: [{ role: "user", content: "it's \"$HOME\" `x`" }], structured_outputs: { regex: "a" } };
  const command = curl("http://h/v1/chat/completions", body, true);
  assert.match(command, /<<'JSON'/);
  assert.match(command, /\$QUIRE_API_KEY/);
  const program = python("http://h/", "v1/chat/completions", body, true);
  assert.match(program, /extra_body=\{\n {8}"structured_outputs"/);
  assert.match(program, /os\.environ\["QUIRE_API_KEY"\]/);
  assert.match(python("http://h/", "rerank", { query: "q" }, false), /httpx\.post\("http:\/\/h\/rerank"/);
  assert.equal(literal({ a: [true, null, 1.5], b: {} }), '{\n    "a": [\n        True,\n        None,\n        1.5,\n    ],\n    "b": {},\n}');
});

test("settings are JSON or lines, and a line that is neither is named", () => {
  assert.deepEqual(settingsOf(" "), {});
  assert.deepEqual(settingsOf('{"max_num_seqs": 8}'), { max_num_seqs: 8 });
  const lines = "--max-num-seqs=8\n# a comment\ndtype: float32\n\nmax-model-len 8k\nenable_prefix_caching = false\n";
  const read = { max_num_seqs: 8, dtype: "float32", max_model_len: "8k", enable_prefix_caching: false };
  assert.deepEqual(settingsOf(lines), read);
  assert.throws(() => settingsOf("{"), /no JSON/);
  assert.throws(() => settingsOf("dtype"), /“dtype” is no setting/);
});

test("numbers are short", () => {
  assert.deepEqual([0, 12, 990208, 3869952, 0.5].map(short), ["0", "12", "990 k", "3.87 M", "0.5"]);
  assert.deepEqual([0, 0.004, 0.5, NaN].map(percent), ["0 %", "0.4 %", "50 %", "–"]);
  assert.deepEqual([0, 900, 382000].map(bytes), ["–", "900 B", "382 kB"]);
});

test("a recording is a WAV file", () => {
  const view = new DataView(wav(Float32Array.of(0, 1, -2), 16000));
  assert.equal(view.byteLength, 50);
  assert.equal(view.getUint32(24, true), 16000);
  assert.deepEqual([44, 46, 48].map((at) => view.getInt16(at, true)), [0, 32767, -32767]);
});
