// AI SDK: `generateObject` with arrays, objects and enums. Arguments: URL.
import { createOpenAICompatible } from '@ai-sdk/openai-compatible'
import { generateObject } from 'ai'
import { z } from 'zod'

const provider = createOpenAICompatible({
  name: 'quire',
  baseURL: `${process.argv[2]}/v1`,
  apiKey: 'none',
  supportsStructuredOutputs: true,
})
const model = provider('demo-chat')
const ask = { model, prompt: 'What is the capital of Arvia?', temperature: 0, maxOutputTokens: 100, maxRetries: 0 }
const city = z.object({ city: z.enum(['Belcast', 'Dorun']) })
// The demo model is trained on no lists: without a penalty it repeats the element until maxOutputTokens.
const array = await generateObject({ ...ask, frequencyPenalty: 2, output: 'array', schema: city })
const object = await generateObject({ ...ask, schema: city })
const choice = await generateObject({ ...ask, output: 'enum', enum: ['Belcast', 'Dorun'] })
if (!Array.isArray(array.object)) throw new Error(JSON.stringify(array.object))
console.log(JSON.stringify([array.object, object.object, choice.object]))
