// The page: it fetches the program and the model, and shows what the model says.
import init, { Model } from "./glimt.js";

const BUILT_IN = "tales-q4_k_m.gguf";
const NUMBERS = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty", "seed", "limit"];
const element = (id) => document.getElementById(id);

let model = null;
let stopped = false;

const size = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function show(phase, done, total) {
  element("loading").hidden = false;
  element("phase").textContent = phase;
  if (total > 0) {
    element("progress").value = done / total;
  } else {
    element("progress").removeAttribute("value");
  }
}

function complain(error) {
  const said = error instanceof Error ? error.message : String(error);
  const text = said.charAt(0).toUpperCase() + said.slice(1);
  element("trouble").textContent = /[.!?]$/.test(text) ? text : `${text}.`;
  element("trouble").hidden = false;
  element("loading").hidden = true;
}

// What is fetched, with its progress shown.
async function fetched(address, phase) {
  const answer = await fetch(address);
  if (!answer.ok) {
    throw new Error(`${address} could not be fetched: the server says ${answer.status}. scripts/web builds all that this page needs`);
  }
  const total = Number(answer.headers.get("content-length") ?? 0);
  const parts = [];
  let done = 0;
  for (const reader = answer.body.getReader(); ;) {
    const part = await reader.read();
    if (part.done) {
      break;
    }
    parts.push(part.value);
    done += part.value.length;
    show(`${phase}: ${size(done)}${total > 0 ? ` of ${size(total)}` : ""}`, done, total);
  }
  const bytes = new Uint8Array(done);
  let at = 0;
  for (const part of parts) {
    bytes.set(part, at);
    at += part.length;
  }
  return bytes;
}

async function checkBrowser() {
  if (!window.isSecureContext) {
    throw new Error("Browsers give WebGPU to pages of https or of this machine alone. Open this page as http://localhost or by https");
  }
  if (!navigator.gpu) {
    throw new Error("This browser has no WebGPU, or it is switched off. Chrome, Edge, Safari 26 and Firefox 141 or later have it on most machines");
  }
  if (!(await navigator.gpu.requestAdapter())) {
    throw new Error("This browser has WebGPU, but gives no GPU to it. Its page about GPUs (chrome://gpu, about:support) tells why");
  }
}

async function load(bytes, name) {
  working(true);
  element("stop").hidden = true;
  element("trouble").hidden = true;
  const asked = new URLSearchParams(location.search);
  const wanted = {};
  if (asked.has("tier")) wanted.tier = asked.get("tier");
  if (asked.has("ctx")) wanted.ctx = Number(asked.get("ctx"));
  show("Reading the model", 0, 0);
  // Drawn before the page is busy.
  await new Promise((drawn) => setTimeout(drawn));
  const told = (done, total) => show(`Weights on the GPU: ${size(done)} of ${size(total)}`, done, total);
  const next = await Model.load(bytes, name, JSON.stringify(wanted), told);
  model?.free();
  model = next;
  const about = JSON.parse(model.about());
  element("device").textContent = `${about.name} on ${about.adapter}, tier ${about.tier}`;
  element("tier").textContent = about.tier === "plain"
    ? `The kernels are those of tier plain, which are slower than those with subgroups. ${about.lacks === "" ? "They were asked for." : `For these this browser and its GPU lack ${about.lacks}.`}`
    : `The kernels are those of tier ${about.tier}, with subgroups.`;
  for (const field of NUMBERS) {
    element(field).value = about.recommended[field] ?? "";
  }
  if (name === BUILT_IN) {
    element("repeat_penalty").value = 1.1;
  }
  element("raw").checked = !about.talks;
  element("raw").disabled = !about.talks;
  element("talk").replaceChildren();
  element("loading").hidden = true;
  element("figures").textContent = "";
  working(false);
  document.documentElement.dataset.state = "ready";
}

function settings() {
  const values = { raw: element("raw").checked };
  for (const field of NUMBERS) {
    const { value, validity, labels } = element(field);
    if (!validity.valid) {
      throw new Error(`${labels[0].textContent.trim()} is out of its range`);
    }
    if (value !== "") {
      values[field] = Number(value);
    }
  }
  return values;
}

function working(is) {
  for (const id of ["prompt", "send", "forget", "file"]) {
    element(id).disabled = is;
  }
  element("stop").hidden = !is;
  element("send").hidden = is && model !== null;
}

function paragraph(kind, text) {
  const made = document.createElement("div");
  made.className = kind;
  made.textContent = text;
  element("talk").append(made);
  return made;
}

async function answer(event) {
  event.preventDefault();
  const text = element("prompt").value;
  if (model === null || element("send").disabled || text.trim() === "") {
    return;
  }
  element("trouble").hidden = true;
  let asked;
  try {
    asked = JSON.stringify(settings());
  } catch (error) {
    complain(error);
    return;
  }
  stopped = false;
  working(true);
  element("welcome").hidden = true;
  document.documentElement.dataset.state = "answering";
  paragraph("asked", text);
  const places = { thought: paragraph("thought", ""), answer: paragraph("answered", "") };
  let pieces = 0;
  let first = 0;
  const told = (kind, piece, of) => {
    if (kind === "prompt") {
      element("figures").textContent = `prompt: ${piece} of ${of} tokens`;
      return stopped;
    }
    places[kind].append(piece);
    pieces += 1;
    first ||= performance.now();
    const seconds = (performance.now() - first) / 1000;
    if (pieces > 1 && seconds > 0) {
      element("figures").textContent = `${((pieces - 1) / seconds).toFixed(1)} pieces per second`;
    }
    return stopped;
  };
  try {
    const took = JSON.parse(await model.answer(text, asked, told));
    const ended = { end: "", limit: ", as many as allowed", stopped: ", stopped", context: ", the context is full" }[took.ended];
    const rate = took.rate === null ? "" : `, ${took.rate.toFixed(1)} tokens per second`;
    element("figures").textContent = `${took.tokens} tokens${rate}${ended}; prompt of ${took.prompt_tokens} in ${took.prompt_seconds.toFixed(2)} s`;
    element("prompt").value = "";
    // For who automates the page.
    window.took = took;
    document.documentElement.dataset.state = "answered";
  } catch (error) {
    complain(error);
    document.documentElement.dataset.state = "failed";
  }
  working(false);
  element("prompt").focus();
}

function wire() {
  element("composer").addEventListener("submit", answer);
  element("stop").addEventListener("click", () => { stopped = true; });
  element("forget").addEventListener("click", () => {
    model?.forget();
    element("talk").replaceChildren();
    element("figures").textContent = "";
    element("prompt").focus();
  });
  element("prompt").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      answer(event);
    }
  });
  document.addEventListener("keydown", (event) => {
    stopped ||= event.key === "Escape";
  });
  element("file").addEventListener("change", async () => {
    const [file] = element("file").files;
    if (file) {
      try {
        await load(new Uint8Array(await file.arrayBuffer()), file.name);
      } catch (error) {
        complain(error);
        working(false);
      }
    }
  });
  // A panic of the program ends it: its reason is in the console.
  window.addEventListener("unhandledrejection", (event) => complain(event.reason));
}

try {
  wire();
  await checkBrowser();
  await init({ module_or_path: fetched("glimt_bg.wasm", "Fetching the program") });
  await load(await fetched(BUILT_IN, "Fetching the model"), BUILT_IN);
} catch (error) {
  complain(error);
  document.documentElement.dataset.state = "failed";
}
