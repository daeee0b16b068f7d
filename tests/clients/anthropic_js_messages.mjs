// Anthropic's package for JavaScript: messages whole and streamed, tokens counted, a tool call that goes round.
import Anthropic from "@anthropic-ai/sdk";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none" });
const ask = { model: "demo-chat", max_tokens: 64, temperature: 0 };
const question = { role: "user", content: "What is 12 plus 30?" };
function check(good, said) {
  if (!good) throw new Error(`Error: ${JSON.stringify(said)}`);
}

const whole = await client.messages.create({ ...ask, messages: [question] });
check(whole.content[0].text.includes("42") && whole.stop_reason === "end_turn", whole);
const counted = await client.messages.countTokens({ model: ask.model, messages: [question] });
const { input_tokens: computed, cache_read_input_tokens: cached } = whole.usage;
check(counted.input_tokens === computed + (cached ?? 0), [counted, whole.usage]);

let text = "";
const stream = client.messages.stream({ ...ask, messages: [question] }).on("text", (delta) => (text += delta));
const streamed = await stream.finalMessage();
check(text === whole.content[0].text && streamed.content[0].text === text, streamed);

const input_schema = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const tools = [{ name: "get_weather", description: "Get the weather of a place.", input_schema }];
const turns = [{ role: "user", content: "What is the weather in Lisbon?" }];
const offered = { ...ask, model: "demo-tools", tools };
const asked = await client.messages.stream({ ...offered, messages: turns }).finalMessage();
const call = asked.content.at(-1);
check(asked.stop_reason === "tool_use" && call.name === "get_weather" && call.input.city === "Lisbon", asked);
const result = { type: "tool_result", tool_use_id: call.id, content: '{"sky": "sunny", "temperature": 21}' };
turns.push({ role: "assistant", content: asked.content }, { role: "user", content: [result] });
const answer = await client.messages.create({ ...offered, messages: turns });
check(answer.content[0].text.includes("sunny"), answer);
console.log(`${text} | ${JSON.stringify(call.input)} | ${answer.content[0].text}`);
