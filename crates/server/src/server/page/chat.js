// The conversation: what was asked and answered, how it is shown, and what the user does with it.

const TRIES = 20;
const PACE_BARS = 48;
// On a screen that is touched, Enter begins a line, and a focus would call for the keyboard.
const hasKeyboard = !window.matchMedia("(pointer: coarse)").matches;

// Each turn is what the user asked and the answer to it; `answer` is null until one begins.
let turns = [];
let views = [];
let running = null;
let editing = false;
// The text that was in the field before the last message was edited.
let draft = "";
let isAtEnd = true;

function tell(text) {
  $("status").textContent = text;
}

function keepTurns(name = "glimt.turns") {
  store.write(ofTab, name, turns.length > 0 ? JSON.stringify(turns) : null);
}

// Turns that this tab has kept: those from before it was loaded again, or those of the conversation before.
function keptTurns(name = "glimt.turns") {
  let kept = [];
  try {
    kept = JSON.parse(store.read(ofTab, name) ?? "[]");
    kept = kept.filter((turn) => typeof turn.asked === "string" && typeof (turn.answer?.text ?? "") === "string");
  } catch {
    return [];
  }
  for (const { answer } of kept) {
    // It was cut when the page was left.
    if (answer?.state === "running") answer.state = "stopped";
  }
  return kept;
}

// The messages for the model: turns without an answer are left out, except for the last.
function messages() {
  const list = [];
  if (settings.values.system) list.push({ role: "system", content: settings.values.system });
  turns.forEach((turn, i) => {
    if (i === turns.length - 1) {
      list.push({ role: "user", content: turn.asked });
    } else if (turn.answer?.text) {
      list.push({ role: "user", content: turn.asked }, { role: "assistant", content: turn.answer.text });
    }
  });
  return list;
}

function counted(number, word) {
  return `${number} ${word}${number === 1 ? "" : "s"}`;
}

function seconds(ms) {
  return ms < 950 ? `${Math.max(1, Math.round(ms))}\u00a0ms` : `${(ms / 1000).toFixed(1)}\u00a0s`;
}

// An answer on the page.
class View {
  constructor(turn) {
    this.turn = turn;
    const asked = $("asked-template").content.cloneNode(true);
    this.asked = asked.firstElementChild;
    this.asked.querySelector(".text").textContent = turn.asked;
    this.asked.querySelector(".edit").addEventListener("click", edit);
    const answer = $("answer-template").content.cloneNode(true);
    this.answer = answer.firstElementChild;
    this.prose = new Prose(this.answer.querySelector(".text"));
    this.thoughts = this.answer.querySelector(".thoughts");
    this.thoughtProse = new Prose(this.thoughts.querySelector(".prose"));
    this.thoughts.addEventListener("toggle", () => this.show());
    this.answer.querySelector(".again").addEventListener("click", anew);
    this.answer.querySelector(".anew").addEventListener("click", anew);
    this.answer.querySelector(".copy").addEventListener("click", (event) => copy(event.target, this.turn.answer.text));
    $("talk").append(asked, answer);
    this.planned = false;
  }

  remove() {
    this.asked.remove();
    this.answer.remove();
  }

  // Shows the answer with the next picture of the screen.
  plan() {
    if (this.planned) return;
    this.planned = true;
    const show = () => {
      this.planned = false;
      this.show();
    };
    // A tab that is not seen has no next picture.
    if (document.hidden) setTimeout(show, 500);
    else requestAnimationFrame(show);
  }

  show() {
    const { answer } = this.turn;
    const isRunning = answer?.state === "running";
    this.answer.hidden = !answer;
    if (!answer) return;
    this.answer.setAttribute("aria-busy", String(isRunning));
    this.answer.querySelector(".waits").classList.toggle("on", isRunning);
    this.thoughts.hidden = !answer.thoughts;
    this.thoughts.firstElementChild.textContent = this.thoughtsTitle();
    if (this.thoughts.open) this.thoughtProse.show(answer.thoughts);
    this.prose.show(answer.text);
    const trouble = this.answer.querySelector(".trouble");
    if (trouble.firstElementChild.textContent !== (answer.trouble ?? "")) trouble.firstElementChild.textContent = answer.trouble ?? "";
    trouble.hidden = !answer.trouble;
    trouble.querySelector(".again").hidden = isRunning || !answer.again || this !== views.at(-1);
    this.answer.querySelector(".figures").textContent = this.figures();
    this.answer.querySelector(".copy").hidden = isRunning || !answer.text;
    this.answer.querySelector(".anew").hidden = isRunning || Boolean(answer.again) || this !== views.at(-1);
    this.asked.querySelector(".edit").hidden = isRunning || this !== views.at(-1);
    this.showPace();
    if (isAtEnd) toEnd();
  }

  thoughtsTitle() {
    const { answer } = this.turn;
    if (answer.state === "running" && !answer.text) return "Thinking";
    return answer.thoughtTime ? `Thought for ${seconds(answer.thoughtTime)}` : "Thoughts";
  }

  // How many tokens there were, how fast they came, and how the answer ended.
  figures() {
    const { answer } = this.turn;
    const parts = [];
    const count = answer.usage?.completion_tokens ?? answer.pieces;
    if (count > 0) {
      parts.push(`${answer.usage || answer.state === "running" ? "" : "about "}${counted(count, "token")}`);
      const time = answer.last - answer.first;
      const rate = ((count - 1) * 1000) / time;
      if (count > 1 && time > 0) parts.push(`${rate.toFixed(rate < 100 ? 1 : 0)} tokens/s`);
      parts.push(`first after ${seconds(answer.first)}`);
    }
    if (answer.state === "stopped") parts.push("stopped");
    if (answer.reason === "length") parts.push("cut at its limit");
    return parts.join(" · ");
  }

  // Bars for the tokens of each stretch of time, so that waits are seen.
  showPace() {
    const { answer } = this.turn;
    const pace = this.answer.querySelector(".pace");
    const isShown = answer.times?.length > 1;
    // SVG has no property for this.
    pace.toggleAttribute("hidden", !isShown);
    if (!isShown) return;
    const bars = new Array(PACE_BARS).fill(0);
    for (const time of answer.times) bars[Math.min(PACE_BARS - 1, Math.floor((time / answer.last) * PACE_BARS))] += 1;
    const most = Math.max(...bars);
    const path = bars.map((bar, i) => (bar > 0 ? `M${i * 2 + 1} 14v${-Math.max(1, (bar / most) * 14).toFixed(1)}` : "")).join("");
    pace.firstElementChild.setAttribute("d", path);
    pace.setAttribute("aria-label", "Tokens over the time of the answer");
  }
}

function toEnd() {
  const scroll = $("scroll");
  scroll.scrollTop = scroll.scrollHeight;
  isAtEnd = true;
  $("to-end").hidden = true;
}

function showAll() {
  $("welcome").hidden = turns.length > 0;
  $("back").hidden = turns.length > 0 || keptTurns("glimt.last").length === 0;
  for (const view of views) view.show();
  showContext();
}

// How much of the context the conversation fills.
function showContext() {
  const usage = turns.findLast((turn) => turn.answer?.usage)?.answer.usage;
  const used = usage ? `${usage.total_tokens} of ` : "";
  $("context").textContent = server.context ? `${used}${server.context} tokens of context` : "";
}

function showRunning() {
  $("send").hidden = running !== null;
  $("stop").hidden = running === null;
}

// Waits, unless the user stops it.
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    signal.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(new DOMException("stopped", "AbortError"));
    });
  });
}

// Waits before the same is asked again; returns false if it should not be.
async function waitAgain(error, tries, view, signal) {
  if (!(error instanceof Refused) || signal.aborted) return false;
  const { answer } = view.turn;
  if (error.status === 401) {
    const isGiven = await askKey(keys.value !== "");
    if (isGiven) server.meet();
    return isGiven;
  }
  if (error.code === "model_not_found" && tries === 0) {
    server.know(await (await call("v1/models", { signal })).json());
    return true;
  }
  if (![429, 503].includes(error.status) || answer.pieces > 0 || tries >= TRIES) return false;
  const why = error.status === 429 ? "All places of the server are taken." : explain(error).text.replace(" Try again later.", "");
  for (let left = (error.after ?? 1) + Math.min(tries, 9); left > 0; left -= 1) {
    answer.trouble = `${why} Asking again in ${left} s.`;
    view.show();
    await pause(1000, signal);
  }
  answer.trouble = "";
  view.show();
  return true;
}

// Asks for the answer to the last turn.
async function ask() {
  const view = views.at(-1);
  const control = new AbortController();
  const answer = { text: "", thoughts: "", state: "running", pieces: 0, first: 0, last: 0, times: [] };
  view.turn.answer = answer;
  running = control;
  showRunning();
  showAll();
  toEnd();
  tell("The model answers.");
  for (let tries = 0; ; tries += 1) {
    try {
      await hear(view, control.signal);
      answer.state = "done";
      if (!answer.text && !answer.trouble) answer.trouble = answer.thoughts ? "The model thought, but gave no answer." : "The model gave an empty answer.";
      tell(`Answer complete. ${view.figures()}`);
      break;
    } catch (error) {
      let again = false;
      try {
        again = !control.signal.aborted && (await waitAgain(error, tries, view, control.signal));
      } catch {
        // It was stopped while it waited, or the server has gone.
      }
      if (again) continue;
      answer.state = control.signal.aborted ? "stopped" : "failed";
      const { text, again: canAsk } = explain(error);
      answer.trouble = control.signal.aborted ? "" : text;
      answer.again = control.signal.aborted ? !answer.text : canAsk;
      if (answer.state === "stopped") tell("Stopped.");
      break;
    }
  }
  // Who begins a new conversation has taken this one away.
  if (running === control) running = null;
  showRunning();
  view.show();
  showAll();
  keepTurns();
}

// Hears one answer.
async function hear(view, signal) {
  const { answer } = view.turn;
  const body = { messages: messages(), stream: true, stream_options: { include_usage: true }, ...settings.fields() };
  if (server.model) body.model = server.model;
  const began = performance.now();
  const response = await call("v1/chat/completions", { body, signal });
  const { usage, reason } = await readAnswer(response, (thought, text) => {
    const now = performance.now() - began;
    if (answer.pieces === 0) answer.first = now;
    if (text && answer.thoughts && !answer.text) answer.thoughtTime = now - answer.first;
    answer.pieces += 1;
    answer.last = now;
    answer.times.push(Math.round(now));
    answer.thoughts += thought;
    answer.text += text;
    view.plan();
  });
  answer.usage = usage;
  answer.reason = reason;
}

function stop() {
  running?.abort();
}

function begin(list) {
  stop();
  running = null;
  endEditing();
  for (const view of views) view.remove();
  turns = list;
  views = turns.map((turn) => new View(turn));
  showRunning();
  showAll();
  keepTurns();
}

function send() {
  const text = $("message").value.trim();
  if (!text || running) return;
  $("message").value = "";
  if (editing) {
    turns.pop();
    views.pop().remove();
    endEditing();
  }
  const turn = { asked: text, answer: null };
  turns.push(turn);
  views.push(new View(turn));
  fit();
  keepTurns();
  ask();
}

function anew() {
  if (running || turns.length === 0) return;
  endEditing();
  ask();
  if (hasKeyboard) $("message").focus();
}

function edit() {
  if (running) return;
  if (!editing) draft = $("message").value;
  editing = true;
  $("editing").hidden = false;
  $("message").value = turns.at(-1).asked;
  fit();
  $("message").focus();
}

function endEditing() {
  if (!editing) return;
  editing = false;
  $("editing").hidden = true;
  $("message").value = draft;
  fit();
}

// As many lines as the message has, up to what the style allows.
function fit() {
  const field = $("message");
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight}px`;
}

// Copies a text and says so on its button.
async function copy(button, text) {
  let done = false;
  try {
    await navigator.clipboard.writeText(text);
    done = true;
  } catch {
    // Pages that are neither local nor encrypted have no clipboard but this.
    const field = document.createElement("textarea");
    field.value = text;
    document.body.append(field);
    field.select();
    done = document.execCommand("copy");
    field.remove();
    button.focus();
  }
  button.textContent = done ? "Copied" : "Not copied";
  tell(button.textContent);
  setTimeout(() => (button.textContent = "Copy"), 1500);
}

function watch() {
  const field = $("message");
  field.addEventListener("input", fit);
  field.addEventListener("keydown", (event) => {
    // While characters are composed, as in Chinese, Enter takes one.
    if (event.key !== "Enter" || event.shiftKey || event.isComposing || event.keyCode === 229 || !hasKeyboard) return;
    event.preventDefault();
    send();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || event.isComposing || document.querySelector("dialog[open]")) return;
    if (running) stop();
    else endEditing();
  });
  $("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  $("stop").addEventListener("click", () => {
    stop();
    if (hasKeyboard) field.focus();
  });
  $("keep").addEventListener("click", endEditing);
  $("new").addEventListener("click", () => {
    stop();
    if (turns.length > 0) keepTurns("glimt.last");
    begin([]);
    tell("A new conversation.");
    if (hasKeyboard) field.focus();
  });
  $("back").addEventListener("click", () => {
    begin(keptTurns("glimt.last"));
    toEnd();
    if (hasKeyboard) field.focus();
  });
  $("talk").addEventListener("click", (event) => {
    const button = event.target.closest?.(".copy-code");
    if (button) copy(button, button.closest(".code").querySelector("code").textContent);
  });
  const scroll = $("scroll");
  scroll.addEventListener("scroll", () => {
    isAtEnd = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < 48;
    $("to-end").hidden = isAtEnd;
  });
  $("to-end").addEventListener("click", toEnd);
  window.addEventListener("resize", fit);
  window.addEventListener("pagehide", () => {
    stop();
    keepTurns();
  });
}

watchSettings();
watch();
begin(keptTurns());
fit();
toEnd();
server.meet().then(showAll);
