// Calls the scripted model by OpenAI's official client for JavaScript and its responses: responses_client.mjs ADDRESS FOLDER.

import assert from "node:assert";
import { createRequire } from "node:module";
import { join } from "node:path";

const find = createRequire(join(process.argv[3], "package.json"));
const { OpenAI } = find("openai");
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const respond = (more) => client.responses.create({ model: "script", input: "Good morning!", ...more });
const text = "Good morning to all of you! END of this text.";

assert.equal((await respond({})).output_text, text);
let streamed = "";
let last;
for await (const event of await respond({ stream: true })) {
  if (event.type === "response.output_text.delta") streamed += event.delta;
  last = event;
}
assert.equal(streamed, text);
assert.equal(last.type, "response.completed");
console.log("streams");

const parameters = { type: "object", properties: { path: { type: "string" } }, required: ["path"], additionalProperties: false };
const tools = [{ type: "function", name: "read", parameters, strict: true }, { type: "custom", name: "write" }];
const input = [{ role: "user", content: "Go." }];
const names = [];
for (;;) {
  const found = await respond({ input, tools });
  const call = found.output.find((item) => item.call_id);
  if (!call) {
    assert.equal(found.output_text, "Both steps are done.");
    break;
  }
  names.push(call.name);
  input.push(...found.output, { type: `${call.type}_output`, call_id: call.call_id, output: "done" });
}
assert.deepEqual(names, ["read", "write"]);
console.log("agents");

const first = await respond({});
assert.equal((await client.responses.retrieve(first.id)).id, first.id);
assert.equal((await respond({ previous_response_id: first.id })).previous_response_id, first.id);
await (client.responses.delete ?? client.responses.del).call(client.responses, first.id);
await assert.rejects(client.responses.retrieve(first.id), (error) => error.status === 404);
console.log("kept");

await assert.rejects(respond({ background: true }), (error) => error.status === 400 && error.param === "background");
console.log("errors");
