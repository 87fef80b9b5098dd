// Vercel AI SDK on Node: tools side by side, then a stream.
import { openai } from '@ai-sdk/openai'
import { generateText, stepCountIs, streamText, tool } from 'ai'
import { z } from 'zod'

const weather = tool({
  description: 'The weather in a city',
  inputSchema: z.object({ city: z.string() }),
  execute: async ({ city }) => (await fetch(`https://weather.example/v1/now?city=${city}`)).json(),
})
const asked = {
  model: openai('gpt-4o-mini'),
  tools: { weather },
  stopWhen: stepCountIs(4),
  prompt: '[[weather {"city": "Oslo"}]] [[weather {"city": "Lima"}]] -> Both are fine.',
}
const whole = await generateText(asked)
const streamed = streamText({ ...asked, prompt: asked.prompt + ' Really.' })
const pieces = []
for await (const piece of streamed.textStream) pieces.push(piece)
const results = whole.steps.flatMap((step) => step.toolResults.map((result) => result.output))
console.log(JSON.stringify({ said: whole.text, results, pieces }, null, 1))
