// Calls the scripted model by Anthropic's official client for JavaScript: anthropic_client.mjs ADDRESS FOLDER.

import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

const find = createRequire(join(process.argv[3], "package.json"));
const { Anthropic } = find("@anthropic-ai/sdk");
const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const messages = [{ role: "user", content: "Good morning!" }];
const asked = (more) => ({ model: "script", max_tokens: 2000, messages, ...more });
const text = "Good morning to all of you! END of this text.";

assert.equal((await client.messages.create(asked({}))).content[0].text, text);
const stream = client.messages.stream(asked({ thinking: { type: "enabled", budget_tokens: 1024 } }));
let streamed = "";
stream.on("text", (more) => (streamed += more));
const last = await stream.finalMessage();
assert.equal(streamed, text);
assert.deepEqual(last.content.map((block) => block.type), ["thinking", "text"]);
console.log("streams");

const schema = (key) => ({ type: "object", properties: { [key]: { type: "string" } }, required: [key] });
const tools = [{ name: "read", input_schema: schema("path") }, { name: "write", input_schema: schema("input") }];
const turns = [{ role: "user", content: "Go." }];
const calls = [];
for (;;) {
  const found = await client.messages.stream(asked({ messages: turns, tools })).finalMessage();
  turns.push({ role: "assistant", content: found.content });
  const used = found.content.filter((block) => block.type === "tool_use");
  if (used.length === 0) {
    assert.equal(found.content[0].text, "Both steps are done.");
    break;
  }
  calls.push([used[0].name, used[0].input]);
  turns.push({ role: "user", content: [{ type: "tool_result", tool_use_id: used[0].id, content: "done" }] });
}
assert.deepEqual(calls, [["read", { path: 'a "b".txt' }], ["write", { input: "one\ntwo ✓" }]]);
console.log("agents");

assert((await client.messages.countTokens({ model: "script", messages })).input_tokens > 5);
await assert.rejects(client.messages.create(asked({ temperature: 101 })), (error) => error.status === 400 && /temperature/.test(error.message));
console.log("errors");
