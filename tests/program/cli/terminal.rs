//! A terminal for the program: a pseudo-terminal whose screen tests can read.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use portable_pty::{Child, CommandBuilder, MasterPty, PtySize, native_pty_system};

/// The time in which everything that a test waits for comes, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(240);
/// The sequence by which programs ask a terminal where its cursor is.
const WHERE: &[u8] = b"\x1b[6n";

/// The output of the program.
struct Written {
    screen: vt100::Parser,
    /// All text, without what controls the terminal.
    bytes: Vec<u8>,
}

/// A program in a terminal.
pub struct Terminal {
    child: Box<dyn Child + Send + Sync>,
    master: Box<dyn MasterPty + Send>,
    keys: Arc<Mutex<Box<dyn Write + Send>>>,
    written: Arc<Mutex<Written>>,
    /// How much of what was written has been waited for.
    seen: usize,
}

fn size(rows: u16, cols: u16) -> PtySize {
    PtySize {
        rows,
        cols,
        pixel_width: 0,
        pixel_height: 0,
    }
}

impl Terminal {
    /// Starts the program with `args` and its state in `home`.
    pub fn start(args: &[&str], home: &std::path::Path, size: [u16; 2]) -> Self {
        Self::start_in(args, home, size, &[])
    }

    /// Starts like [`start`](Self::start), with these variables.
    pub fn start_in(
        args: &[&str],
        home: &std::path::Path,
        [rows, cols]: [u16; 2],
        variables: &[(&str, &str)],
    ) -> Self {
        let pair = native_pty_system()
            .openpty(size(rows, cols))
            .expect("the system has pseudo-terminals");
        let mut command = CommandBuilder::new(env!("CARGO_BIN_EXE_glimt"));
        command.args(args);
        for name in [
            "GLIMT_MODEL",
            "GLIMT_DEVICE",
            "RUST_LOG",
            "NO_COLOR",
            "CLICOLOR",
            "CLICOLOR_FORCE",
            "DISPLAY",
            "WAYLAND_DISPLAY",
        ] {
            command.env_remove(name);
        }
        command.env("GLIMT_CONFIG", "");
        command.env("TERM", "xterm-256color");
        command.env("HOME", home);
        command.env("XDG_STATE_HOME", home.join("state"));
        for (name, value) in variables {
            command.env(name, value);
        }
        let child = pair.slave.spawn_command(command);
        let child = child.expect("the binary was built with this test");
        // Only the program may hold this end, so that its end is seen.
        drop(pair.slave);
        let mut reader = pair.master.try_clone_reader().expect("it can be read");
        let keys = pair.master.take_writer().expect("it can be written to");
        let keys = Arc::new(Mutex::new(keys));
        let written = Arc::new(Mutex::new(Written {
            screen: vt100::Parser::new(rows, cols, 0),
            bytes: Vec::new(),
        }));
        let (to, answers) = (Arc::clone(&written), Arc::clone(&keys));
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                let mut to = to.lock().expect("no test panics with it");
                to.bytes.extend_from_slice(&buffer[..count]);
                to.screen.process(&buffer[..count]);
                if buffer[..count]
                    .windows(WHERE.len())
                    .any(|part| part == WHERE)
                {
                    let (row, column) = to.screen.screen().cursor_position();
                    let mut keys = answers.lock().expect("no test panics with it");
                    let _ = write!(keys, "\x1b[{};{}R", row + 1, column + 1);
                }
            }
        });
        Self {
            child,
            master: pair.master,
            keys,
            written,
            seen: 0,
        }
    }

    /// Types.
    pub fn keys(&mut self, text: &str) {
        let mut keys = self.keys.lock().expect("no test panics with it");
        keys.write_all(text.as_bytes()).expect("the program reads");
        keys.flush().expect("the program reads");
    }

    /// Types a line when the program waits for one.
    pub fn line(&mut self, text: &str) {
        self.wait("> ");
        self.keys(text);
        self.keys("\r");
    }

    /// Waits until the program has written `text` after what was waited for before. Returned is all it wrote up to there.
    pub fn wait(&mut self, text: &str) -> String {
        let until = Instant::now() + PATIENCE;
        loop {
            let new = self.text()[self.seen..].to_owned();
            if let Some(at) = new.find(text) {
                self.seen += at + text.len();
                return new[..at].to_owned();
            }
            assert!(
                Instant::now() < until,
                "no {text:?} in: {new}\nscreen:\n{}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Whether anything was written that moves the cursor or colours text.
    pub fn is_controlled(&self) -> bool {
        let written = self.written.lock().expect("no test panics with it");
        written.bytes.contains(&0x1b)
    }

    /// The text of all output, without control sequences.
    pub fn text(&self) -> String {
        let written = self.written.lock().expect("no test panics with it");
        plain(&String::from_utf8_lossy(&written.bytes))
    }

    /// All that was written, with what controls the terminal.
    pub fn raw(&self) -> String {
        let written = self.written.lock().expect("no test panics with it");
        String::from_utf8_lossy(&written.bytes).into_owned()
    }

    /// Waits for the end of the program and of what it writes. Returned is all of it, without control sequences.
    pub fn all(&mut self) -> String {
        self.end();
        // The reader may be behind.
        let mut before = usize::MAX;
        while before != self.raw().len() {
            before = self.raw().len();
            std::thread::sleep(Duration::from_millis(50));
        }
        self.text()
    }

    /// The text on the screen.
    pub fn screen(&self) -> String {
        let written = self.written.lock().expect("no test panics with it");
        written.screen.screen().contents()
    }

    /// The rows of the screen.
    pub fn rows(&self) -> Vec<String> {
        let written = self.written.lock().expect("no test panics with it");
        let (_, columns) = written.screen.screen().size();
        written.screen.screen().rows(0, columns).collect()
    }

    /// Changes the size.
    pub fn resize(&mut self, [rows, cols]: [u16; 2]) {
        self.master
            .resize(size(rows, cols))
            .expect("it can be resized");
        let mut written = self.written.lock().expect("no test panics with it");
        written.screen.screen_mut().set_size(rows, cols);
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: i32) {
        let id = self.child.process_id().expect("it was started");
        // SAFETY: the process is this one's child and has not been waited for, so its number is its own.
        unsafe { libc::kill(id as i32, signal) };
    }

    /// Whether the terminal shows keys and hands them on line by line, as it does when a program begins.
    pub fn is_plain(&self) -> bool {
        let settings = format!("{:?}", self.master.get_termios());
        settings.contains("ICANON") && settings.contains("ECHO")
    }

    /// Waits for the end of the program. Returned is its exit code.
    pub fn end(&mut self) -> u32 {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.child.try_wait().expect("it was started") {
                return status.exit_code();
            }
            assert!(
                Instant::now() < until,
                "it does not end:\n{}",
                self.screen()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
    }
}

/// `text` without escape sequences.
fn plain(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match (c, rest.peek()) {
            ('\x1b', Some('[')) => {
                rest.next();
                while rest.next().is_some_and(|c| !('@'..='~').contains(&c)) {}
            }
            ('\x1b', _) => {
                rest.next();
            }
            (c, _) => plain.push(c),
        }
    }
    plain
}
