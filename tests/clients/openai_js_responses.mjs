// OpenAI's package for JavaScript and the AI SDK, both with the Responses API: whole, streamed, continued, stored.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText } from "ai";
import OpenAI from "openai";

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
console.log(`${first.output_text} | ${text} | ${answer.text}`);
