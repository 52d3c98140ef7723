// Asking the server: keys, errors, streams. Addresses are relative, so that the page works behind a proxy under any path.

class Refused extends Error {
  constructor(status, told, after) {
    super(told?.message || `status ${status}`);
    this.status = status;
    this.code = told?.code ?? "";
    this.param = told?.param ?? "";
    this.after = after;
  }
}

// The connection failed, before an answer or in the middle of one.
class Lost extends Error {}

// Storage that may be switched off or full.
const store = {
  read(where, name) {
    try {
      return where().getItem(name);
    } catch {
      return null;
    }
  },
  write(where, name, value) {
    try {
      if (value === null || value === "") where().removeItem(name);
      else where().setItem(name, value);
      return true;
    } catch {
      return false;
    }
  },
};
const ofTab = () => window.sessionStorage;
const ofBrowser = () => window.localStorage;

const keys = {
  value: store.read(ofTab, "glimt.key") ?? store.read(ofBrowser, "glimt.key") ?? "",
  keep(key, stays) {
    this.value = key;
    store.write(ofTab, "glimt.key", stays ? null : key);
    store.write(ofBrowser, "glimt.key", stays ? key : null);
  },
};

// Sends a request; returns the response if it is not refused.
async function call(path, { body, signal, key = keys.value } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  const request = { method: body ? "POST" : "GET", headers, signal, cache: "no-store" };
  if (body) request.body = JSON.stringify(body);
  let response;
  try {
    response = await fetch(path, request);
  } catch (error) {
    throw error.name === "AbortError" ? error : new Lost("the server cannot be reached");
  }
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const after = Number(response.headers.get("Retry-After"));
  throw new Refused(response.status, told?.error, after > 0 ? Math.min(after, 60) : null);
}

// The data of server-sent events.
async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      let part;
      try {
        part = await reader.read();
      } catch (error) {
        throw error.name === "AbortError" ? error : new Lost("the connection was lost");
      }
      if (part.done) return;
      const lines = (rest + decoder.decode(part.value, { stream: true })).split("\n");
      rest = lines.pop();
      for (const ended of lines) {
        const line = ended.endsWith("\r") ? ended.slice(0, -1) : ended;
        if (line === "") {
          if (data.length > 0) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

// Reads an answer and tells `heard` of each piece; returns how it ended.
async function readAnswer(response, heard) {
  let usage = null;
  let reason = null;
  for await (const data of events(response)) {
    if (data === "[DONE]") return { usage, reason };
    const event = JSON.parse(data);
    if (event.error) throw new Refused(event.error.code === "timeout" ? 504 : 500, event.error, null);
    usage = event.usage ?? usage;
    const choice = event.choices?.[0];
    reason = choice?.finish_reason ?? reason;
    const thought = choice?.delta?.reasoning_content ?? "";
    const text = choice?.delta?.content ?? "";
    if (thought || text) heard(thought, text);
  }
  throw new Lost("the connection was lost");
}

// The cause of an error, in plain words, and whether asking again can help.
function explain(error) {
  if (error instanceof Lost) {
    return { text: "The connection to the server was lost. Look whether it still runs, then try again.", again: true };
  }
  if (!(error instanceof Refused)) {
    return { text: `The answer could not be read: ${error.message}`, again: true };
  }
  const said = error.message.charAt(0).toUpperCase() + error.message.slice(1);
  const told = /[.!?]$/.test(said) ? said : `${said}.`;
  switch (error.status) {
    case 401:
      return { text: "The server asks for an API key. Without one it does not answer.", again: true };
    case 413:
      return { text: "The conversation is longer than the server takes. Begin a new one.", again: false };
    case 429:
      return { text: "The server is full, and no place has become free. Try again later.", again: true };
    case 503:
      return { text: `${told.replace(/; ask again later\.$/, ".")} Try again later.`, again: true };
    case 504:
      return { text: "The answer took longer than the server allows. Ask for a shorter one.", again: true };
  }
  if (error.code === "context_length_exceeded") {
    return { text: `The conversation has outgrown what the model can read. Begin a new one. The server says: ${told}`, again: false };
  }
  return { text: `The server refused this: ${told}`, again: true };
}
