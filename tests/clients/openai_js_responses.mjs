// OpenAI's package for JavaScript and the AI SDK, both with the Responses API: whole, streamed, continued, stored,
// parsed, and a tool call that goes round.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";
import { zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const model = "demo-chat";
const client = new OpenAI({ baseURL, apiKey: "none" });

const first = await client.responses.create({ model, input: "What is 12 plus 30?", temperature: 0 });
if (!first.output_text.includes("42")) throw new Error(`Error: ${first.output_text}`);

const stream = client.responses.stream({
  model,
  input: "Sort 31, 7 and 19.",
  previous_response_id: first.id,
  temperature: 0,
});
let text = "";
stream.on("response.output_text.delta", (event) => (text += event.delta));
const last = await stream.finalResponse();
if (last.output_text !== text || !text) throw new Error(`Error: ${last.output_text} is not ${text}`);

const stored = await client.responses.retrieve(last.id);
if (stored.output_text !== text) throw new Error(`Error: stored is ${stored.output_text}`);
const items = [];
for await (const item of client.responses.inputItems.list(last.id)) items.push(item);
if (items.length !== 1) throw new Error(`Error: ${items.length} items`);

const city = z.object({ city: z.enum(["Belcast", "Dorun"]) });
const parsed = await client.responses.parse({
  model,
  input: "What is the capital of Arvia?",
  text: { format: zodTextFormat(city, "city") },
  temperature: 0,
});
if (!city.safeParse(parsed.output_parsed).success) throw new Error(`Error: ${parsed.output_text}`);

const parameters = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const description = "Get the weather of a place.";
const tools = [{ type: "function", name: "get_weather", description, parameters, strict: false }];
const offered = { model: "demo-tools", tools, temperature: 0 };
const asked = await client.responses.stream({ ...offered, input: "What is the weather in Lisbon?" }).finalResponse();
const call = asked.output.at(-1);
if (call.type !== "function_call" || JSON.parse(call.arguments).city !== "Lisbon") throw new Error(`Error: ${call.type}`);
const output = '{"sky": "sunny", "temperature": 21}';
const input = [{ type: "function_call_output", call_id: call.call_id, output }];
const followed = await client.responses.create({ ...offered, input, previous_response_id: asked.id });
if (!followed.output_text.includes("sunny")) throw new Error(`Error: ${followed.output_text}`);

const provider = createOpenAI({ baseURL, apiKey: "none" });
const answer = await generateText({
  model: provider.responses(model),
  messages: [
    { role: "user", content: "What is 12 plus 30?" },
    { role: "assistant", content: first.output_text },
    { role: "user", content: "What is 12 plus 30?" },
  ],
  temperature: 0,
});
if (!answer.text.includes("42")) throw new Error(`Error: ${answer.text}`);
console.log(`${first.output_text} | ${text} | ${parsed.output_text} | ${followed.output_text} | ${answer.text}`);
