// AI SDK: streamed text, and a tool call that goes round, with chat completions, responses and messages.
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { stepCountIs, streamText, tool } from "ai";
import { z } from "zod";

const baseURL = `${process.argv[2]}/v1`;
const apiKey = "none";
const openai = createOpenAI({ baseURL, apiKey });
const models = [
  createOpenAICompatible({ name: "quire", baseURL, apiKey })("demo-tools"),
  openai.chat("demo-tools"),
  openai.responses("demo-tools"),
  createAnthropic({ baseURL, apiKey })("demo-tools"),
];
const answers = [];
for (const model of models) {
  const cities = [];
  const get_weather = tool({
    description: "Get the weather of a place.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => {
      cities.push(city);
      return { sky: "sunny", temperature: 21 };
    },
  });
  const { textStream, steps } = streamText({
    model,
    prompt: "What is the weather in Lisbon?",
    tools: { get_weather },
    stopWhen: stepCountIs(2),
    temperature: 0,
    maxRetries: 0,
    onError: ({ error }) => {
      throw error;
    },
  });
  let text = "";
  for await (const part of textStream) text += part;
  const said = `${model.provider}: ${cities} ${text}`;
  if (cities.join() !== "Lisbon" || !text.includes("sunny") || (await steps).length !== 2) throw new Error(said);
  answers.push(said);
}
console.log(answers.join(" | "));
