//! A headless Chromium, driven by its DevTools protocol through two pipes: no driver and no library is needed.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// How long the browser may take for anything.
const PATIENCE: Duration = Duration::from_secs(60);

/// Names under which Chromium is installed.
const NAMES: [&str; 4] = [
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
];

/// Where Chromium is.
fn chromium() -> PathBuf {
    if let Some(path) = std::env::var_os("CHROMIUM") {
        return path.into();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    let places = NAMES
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    let found = places.into_iter().find(|place| place.is_file());
    found.expect(
        "no Chromium is found: install Debian's package chromium, as scripts/test --all does, or name one in CHROMIUM",
    )
}

/// A browser with one page.
pub struct Browser {
    child: Child,
    commands: Option<ChildStdin>,
    told: Receiver<Value>,
    session: Option<String>,
    count: u64,
    /// The events that the browser told beside answers.
    pub events: Vec<Value>,
    _home: tempfile::TempDir,
}

impl Browser {
    /// Starts one with an empty page.
    pub fn start() -> Self {
        Self::start_with(&["--disable-gpu"])
    }

    /// Starts one with these flags and an empty page.
    pub fn start_with(flags: &[&str]) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        // It reads commands from the file 3 and writes answers to the file 4.
        let mut child = Command::new("sh")
            .args(["-c", "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null"])
            .arg(chromium())
            .args(["--headless", "--remote-debugging-pipe", "--no-first-run"])
            // It opens pages of these tests only. In containers and for root there is no sandbox.
            .args(["--no-sandbox", "--disable-dev-shm-usage"])
            .args(flags)
            .args(["--no-proxy-server", "--lang=en-US"])
            .arg(format!("--user-data-dir={}", home.path().display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("there is a shell");
        let commands = child.stdin.take();
        let stdout = child.stdout.take().expect("it is piped");
        let (sender, told) = channel();
        std::thread::spawn(move || {
            for message in BufReader::new(stdout).split(0).map_while(Result::ok) {
                let _ = sender.send(serde_json::from_slice(&message).expect("it speaks JSON"));
            }
        });
        let mut browser = Self {
            child,
            commands,
            told,
            session: None,
            count: 0,
            events: vec![],
            _home: home,
        };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = session["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network", "Accessibility"] {
            browser.call(&format!("{domain}.enable"), json!({}));
        }
        browser
    }

    /// The next message of the browser.
    fn next(&mut self, until: Instant, what: &str) -> Value {
        let left = until.saturating_duration_since(Instant::now());
        let message = self.told.recv_timeout(left);
        message.unwrap_or_else(|error| panic!("{what}: the browser says nothing: {error}"))
    }

    /// The result of a command.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.count += 1;
        let id = self.count;
        let mut command = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let commands = self.commands.as_mut().expect("it is open");
        let written = write!(commands, "{command}\0").and_then(|()| commands.flush());
        written.unwrap_or_else(|error| panic!("{method}: the browser has ended: {error}"));
        let until = Instant::now() + PATIENCE;
        loop {
            let message = self.next(until, method);
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            self.events.push(message);
        }
    }

    /// The value of an expression in the page.
    pub fn value(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let found = self.call("Runtime.evaluate", asked);
        assert!(found["exceptionDetails"].is_null(), "{expression}: {found}");
        found["result"]["value"].clone()
    }

    /// The text of the last element that a selector finds, without spaces around.
    pub fn text(&mut self, selector: &str) -> String {
        let found = format!("[...document.querySelectorAll({selector:?})].at(-1)?.textContent");
        let text = self.value(&found);
        text.as_str().unwrap_or_default().trim().to_owned()
    }

    /// Waits until an expression is true.
    pub fn until(&mut self, expression: &str) {
        self.until_for(expression, PATIENCE);
    }

    /// Waits so long until an expression is true.
    pub fn until_for(&mut self, expression: &str, patience: Duration) {
        let end = Instant::now() + patience;
        while self.value(&format!("Boolean({expression})")) != true {
            if Instant::now() > end {
                let shown = self.value("document.body.innerText");
                panic!("never: {expression}; the page shows {shown}");
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Opens a page.
    pub fn open(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.until(&format!(
            "location.href === {url:?} && document.readyState === 'complete'"
        ));
    }

    /// Opens the page again.
    pub fn reload(&mut self) {
        self.value("window.isOld = true");
        self.call("Page.reload", json!({}));
        self.until("!window.isOld && document.readyState === 'complete'");
    }

    /// Clicks the last element that a selector finds, where it is.
    pub fn click(&mut self, selector: &str) {
        let place = self.value(&format!(
            "(() => {{
                const found = [...document.querySelectorAll({selector:?})].at(-1);
                found.scrollIntoView({{block: 'nearest'}});
                const box = found.getBoundingClientRect();
                const [x, y] = [box.x + box.width / 2, box.y + box.height / 2];
                const hit = document.elementFromPoint(x, y);
                return hit !== null && (found.contains(hit) || hit.contains(found)) ? {{x, y}} : null;
            }})()"
        ));
        assert!(place.is_object(), "{selector} cannot be clicked");
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": place["x"], "y": place["y"], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Writes a text where the focus is.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({ "text": text }));
    }

    /// Presses a key, with Shift or without.
    pub fn press(&mut self, key: &str, shift: bool) {
        let (code, text) = match key {
            "Enter" => (13, "\r"),
            "Escape" => (27, ""),
            "Tab" => (9, ""),
            other => panic!("{other} is no key of these tests"),
        };
        for kind in ["keyDown", "keyUp"] {
            let event = json!({
                "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code,
                "text": if kind == "keyDown" { text } else { "" }, "modifiers": i32::from(shift) * 8,
            });
            self.call("Input.dispatchKeyEvent", event);
        }
    }

    /// Replaces what a field holds, as a user would.
    pub fn fill(&mut self, selector: &str, text: &str) {
        self.value(&format!(
            "(() => {{ const f = document.querySelector({selector:?}); f.focus(); f.select(); }})()"
        ));
        match text {
            "" => drop(self.value("document.execCommand('delete')")),
            text => self.write(text),
        }
    }

    /// Makes the window so large; a phone has a finger in place of a mouse.
    pub fn resize(&mut self, width: u32, height: u32, phone: bool) {
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": phone});
        self.call("Emulation.setDeviceMetricsOverride", size);
        let touch = json!({ "enabled": phone });
        self.call("Emulation.setTouchEmulationEnabled", touch);
    }

    /// Lets the system have dark colours or light ones.
    pub fn system_colours(&mut self, scheme: &str) {
        let features = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call(
            "Emulation.setEmulatedMedia",
            json!({ "features": features }),
        );
    }

    /// The bodies of the requests that the page has sent to this path.
    pub fn sent(&mut self, path: &str) -> Vec<Value> {
        // The browser tells all earlier events before the answer to this.
        self.value("0");
        let requests = self
            .events
            .iter()
            .filter(|event| event["method"] == "Network.requestWillBeSent");
        let requests = requests.map(|event| &event["params"]["request"]);
        let requests = requests.filter(|r| r["url"].as_str().is_some_and(|u| u.ends_with(path)));
        let bodies = requests.filter_map(|request| request["postData"].as_str());
        bodies
            .map(|body| serde_json::from_str(body).expect("bodies are JSON"))
            .collect()
    }

    /// The errors in the page, without requests that were refused, and requests to other addresses than `own`.
    pub fn complaints(&mut self, own: &str) -> Vec<String> {
        self.value("0");
        let mut found = vec![];
        for event in &self.events {
            let params = &event["params"];
            match event["method"].as_str().unwrap_or_default() {
                "Runtime.exceptionThrown" => found.push(params.to_string()),
                "Log.entryAdded" if params["entry"]["source"] != "network" => {
                    found.push(params.to_string());
                }
                "Network.requestWillBeSent" => {
                    let url = params["request"]["url"].as_str().unwrap_or_default();
                    if !url.starts_with(own) && !url.starts_with("data:") {
                        found.push(url.to_owned());
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// Roles of what a user can operate that have no name for those who do not see.
    pub fn nameless(&mut self) -> Vec<String> {
        let tree = self.call("Accessibility.getFullAXTree", json!({}));
        let nodes = tree["nodes"].as_array().expect("a list");
        let operable = [
            "button",
            "textbox",
            "spinbutton",
            "combobox",
            "checkbox",
            "link",
        ];
        let mut found = vec![];
        let mut count = 0;
        for node in nodes {
            let role = node["role"]["value"].as_str().unwrap_or_default();
            if node["ignored"] == true || !operable.contains(&role) {
                continue;
            }
            count += 1;
            if node["name"]["value"]
                .as_str()
                .unwrap_or_default()
                .trim()
                .is_empty()
            {
                found.push(node.to_string());
            }
        }
        assert!(count > 0, "the page has nothing to operate");
        found
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends when its pipe does, and takes its helpers with it.
        self.commands = None;
        let end = Instant::now() + Duration::from_secs(10);
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
