// Has Tint, the compiler of Chrome, read many shaders, on a device of Dawn that computes nothing.
//
//   node tint.mjs PACKAGE < LIST
//
// PACKAGE is the folder of npm's package webgpu. Each line of LIST is 1 where the device is to have subgroups and f16, or 0 for what every
// browser gives, and a file, with a tab between them. Of the latter a pipeline is made, too, which has to keep within the limits of a browser. For each file that is refused there is a line FILE, tab, what Dawn says, with spaces for
// line ends. The last line is "done N", N the number of shaders.

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { create, globals } = await import(pathToFileURL(`${process.argv[2]}/index.js`).href);
Object.assign(globalThis, globals);
const adapter = async (gpu) => {
  const found = await gpu.requestAdapter();
  if (!found) throw new Error("Dawn has no device without a GPU");
  return found;
};
const gpu = create(["backend=null"]);

// A device as every browser has, and one with subgroups and f16. Neither has more than 8 storage buffers in a shader.
const least = await (await adapter(gpu)).requestDevice();
const rich = await adapter(gpu);
const requiredFeatures = ["subgroups", "shader-f16"].filter((name) => rich.features.has(name));
const most = await rich.requestDevice({ requiredFeatures });
if (requiredFeatures.length < 2) throw new Error(`Dawn has only ${requiredFeatures.join(", ")}`);

const refused = async (device, code) => {
  device.pushErrorScope("validation");
  const module = device.createShaderModule({ code });
  const { messages } = await module.getCompilationInfo();
  const errors = messages.filter((message) => message.type === "error");
  if (errors.length > 0) {
    await device.popErrorScope();
    return errors.map((e) => `${e.lineNum}:${e.linePos} ${e.message}`).join("; ");
  }
  if (device === least) device.createComputePipeline({ layout: "auto", compute: { module, entryPoint: "main" } });
  return (await device.popErrorScope())?.message ?? "";
};

const lines = readFileSync(0, "utf8").split("\n").filter((line) => line);
for (const [i, line] of lines.entries()) {
  const [all, file] = line.split("\t");
  const said = await refused(all === "1" ? most : least, readFileSync(file, "utf8"));
  if (said) console.log(`${file}\t${said.replaceAll(/[\t\r\n]+/g, " ")}`);
  if ((i + 1) % 500 === 0) console.error(`Tint: ${i + 1} of ${lines.length}`);
}
console.log(`done ${lines.length}`);
process.exit(0);
