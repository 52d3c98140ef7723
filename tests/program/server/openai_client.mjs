// Calls the server by OpenAI's official client for JavaScript: openai_client.mjs BASE_URL. The server's template knows tools.

import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

const find = createRequire(join(process.argv[3], "package.json"));
const { OpenAI } = find("openai");
const client = new OpenAI({ baseURL: process.argv[2], apiKey: "first", maxRetries: 0 });
const model = (await client.models.list()).data[0].id;
const messages = [{ role: "user", content: "Tell me a story about a fox." }];
const chat = (more) => client.chat.completions.create({ model, messages, temperature: 0, max_tokens: 8, ...more });

const whole = await chat({});
const text = whole.choices[0].message.content;
assert(text.length > 0);
let streamed = "";
let usage;
for await (const chunk of await chat({ stream: true, stream_options: { include_usage: true } })) {
  streamed += chunk.choices[0]?.delta?.content ?? "";
  usage = chunk.usage ?? usage;
}
assert.equal(streamed, text);
assert.equal(usage.completion_tokens, 8);
console.log("streams");

const found = (await chat({ logprobs: true, top_logprobs: 2 })).choices[0].logprobs.content;
assert.equal(found.length, 8);
assert.equal(found[0].top_logprobs.length, 2);
console.log("log_probabilities");

const schema = { type: "object", properties: { animal: { enum: ["fox", "hen"] } }, required: ["animal"], additionalProperties: false };
const form = { type: "json_schema", json_schema: { name: "animal", schema } };
const answer = await chat({ response_format: form, max_tokens: 60 });
assert(["fox", "hen"].includes(JSON.parse(answer.choices[0].message.content).animal));
console.log("schemas");

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object", properties: { place: { enum: ["Bonn"] } }, required: ["place"] } } }];
const call = (await chat({ tools, tool_choice: "required", max_tokens: 80 })).choices[0].message.tool_calls[0];
assert.deepEqual(JSON.parse(call.function.arguments), { place: "Bonn" });
// Version 4 has it elsewhere.
const completions = client.chat.completions.stream ? client.chat.completions : client.beta.chat.completions;
const stream = completions.stream({ model, messages, temperature: 0, max_tokens: 80, tools, tool_choice: "required" });
const last = (await stream.finalChatCompletion()).choices[0].message.tool_calls[0];
assert.equal(last.function.arguments, call.function.arguments);
console.log("tools");

await assert.rejects(chat({ temperature: 101 }), (error) => error.status === 400 && error.param === "temperature");
assert.equal((await chat({ model: "gpt-9" })).model, model);
console.log("errors");
