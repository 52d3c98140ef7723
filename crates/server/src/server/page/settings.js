// The settings of the user: colours, sampling, the system prompt, the key. All of it stays in the browser.

const $ = (id) => document.getElementById(id);

const NUMBERS = ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"];
const NAMES = ["system", "thinking", ...NUMBERS];

const settings = {
  values: {},

  load() {
    let kept = null;
    try {
      kept = JSON.parse(store.read(ofBrowser, "glimt.settings") ?? "{}");
    } catch {
      // A text that is no JSON, which others may have written, is left out.
    }
    for (const name of NAMES) {
      const value = kept?.[name];
      this.values[name] = typeof value === "string" ? value : "";
      $(name).value = this.values[name];
      this.check(name);
    }
  },

  // Takes over what a field holds, and tells what is wrong with it.
  take(name) {
    if (this.check(name)) this.values[name] = $(name).value.trim();
    store.write(ofBrowser, "glimt.settings", JSON.stringify(this.values));
  },

  check(name) {
    const field = $(name);
    const hint = $(`${name}-hint`);
    const isRight = field.validity.valid;
    if (hint) {
      hint.dataset.usual ??= hint.textContent;
      const whole = field.step === "1" ? "a whole number, " : "";
      const range = Number(field.max) > 100 ? `${whole}${field.min} or more` : `${whole}from ${field.min} to ${field.max}`;
      hint.textContent = isRight ? hint.dataset.usual : `must be ${range}`;
    }
    field.setAttribute("aria-invalid", String(!isRight));
    return isRight;
  },

  // The fields of a request that the user has set.
  fields() {
    const fields = {};
    for (const name of NUMBERS) {
      if (this.values[name] !== "") fields[name] = Number(this.values[name]);
    }
    if (server.thinks && this.values.thinking !== "") {
      fields.chat_template_kwargs = { enable_thinking: this.values.thinking === "on" };
    }
    return fields;
  },
};

// The facts that are known of the server.
const server = {
  model: "",
  context: 0,
  thinks: false,
  meeting: null,

  // Asks for the model until the server tells it, or the user gives no key.
  meet() {
    this.meeting ??= this.meetOnce().finally(() => (this.meeting = null));
    return this.meeting;
  },

  async meetOnce() {
    for (;;) {
      try {
        this.know(await (await call("v1/models")).json());
        return;
      } catch (error) {
        const isRefused = error instanceof Refused;
        if (isRefused && error.status === 401) {
          this.show("no API key", false);
          if (!(await askKey(keys.value !== ""))) return;
        } else {
          this.show(isRefused ? error.message.split(";")[0] : "the server cannot be reached", false);
          await new Promise((resolve) => setTimeout(resolve, (error.after ?? 3) * 1000));
        }
      }
    }
  },

  know(list) {
    const model = list?.data?.[0] ?? {};
    this.model = String(model.id ?? "");
    const title = String(model.name ?? this.model);
    this.context = Number(model.max_model_len) || 0;
    this.thinks = model.thinking_switch === true;
    $("thinking-row").hidden = !this.thinks;
    for (const [name, value] of Object.entries(model.sampling ?? {})) {
      if (NUMBERS.includes(name)) $(name).placeholder = String(value);
    }
    this.show(title, true);
    $("welcome-model").textContent = title || "the model";
    document.title = title ? `${title} · glimt` : "glimt";
  },

  show(text, isReady) {
    $("model").textContent = text;
    $("model").classList.toggle("ready", isReady);
  },
};

// Asks the user for a key until the server takes it; returns whether it has.
let asking = null;
function askKey(isWrong) {
  asking ??= new Promise((resolve) => {
    const dialog = $("key-dialog");
    const trouble = $("key-trouble");
    const wrong = "That key is not one of this server's.";
    trouble.textContent = isWrong ? wrong : "";
    $("key").value = "";
    dialog.returnValue = "";
    dialog.showModal();
    $("key-form").onsubmit = async (event) => {
      event.preventDefault();
      const key = $("key").value.trim();
      trouble.textContent = "";
      if (!/^[\x21-\x7e]+$/.test(key)) {
        trouble.textContent = wrong;
        return;
      }
      try {
        await call("v1/models", { key });
      } catch (error) {
        if (error instanceof Refused && error.status === 401) {
          trouble.textContent = wrong;
          $("key").select();
          return;
        }
        if (!(error instanceof Refused)) {
          trouble.textContent = explain(error).text;
          return;
        }
      }
      keys.keep(key, $("key-stays").checked);
      dialog.close("taken");
    };
    $("key-cancel").onclick = () => dialog.close("");
    dialog.onclose = () => {
      asking = null;
      $("key").value = "";
      resolve(dialog.returnValue === "taken");
    };
  });
  return asking;
}

const systemIsDark = window.matchMedia("(prefers-color-scheme: dark)");

const theme = {
  chosen: store.read(ofBrowser, "glimt.theme"),

  isDark() {
    return ["dark", "light"].includes(this.chosen) ? this.chosen === "dark" : systemIsDark.matches;
  },

  show() {
    const dark = this.isDark();
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    $("theme").setAttribute("aria-label", dark ? "Switch to light colours" : "Switch to dark colours");
    $("theme").title = $("theme").getAttribute("aria-label");
  },

  toggle() {
    const dark = !this.isDark();
    // Who chooses what the system has follows the system again.
    this.chosen = dark === systemIsDark.matches ? null : dark ? "dark" : "light";
    store.write(ofBrowser, "glimt.theme", this.chosen);
    this.show();
  },
};

function openSettings() {
  $("forget").hidden = keys.value === "";
  $("settings").showModal();
}

function watchSettings() {
  settings.load();
  theme.show();
  systemIsDark.addEventListener("change", () => theme.show());
  $("theme").addEventListener("click", () => theme.toggle());
  $("open-settings").addEventListener("click", openSettings);
  for (const name of NAMES) $(name).addEventListener("input", () => settings.take(name));
  $("reset").addEventListener("click", () => {
    // The system prompt is a text that somebody wrote, so it stays.
    for (const name of NAMES.slice(1)) {
      $(name).value = "";
      settings.take(name);
    }
  });
  $("forget").addEventListener("click", () => {
    keys.keep("", false);
    $("forget").hidden = true;
    tell("The API key is forgotten.");
  });
  // A wrong value is not in force, so it is not shown either.
  $("settings").addEventListener("close", () => settings.load());
  // A click beside a dialog closes it.
  $("settings").addEventListener("click", (event) => {
    if (event.target === $("settings")) $("settings").close();
  });
}
