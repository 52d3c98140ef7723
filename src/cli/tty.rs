//! The settings of the terminal that a conversation is held in: keys are not shown in the middle of an answer, and whatever ends the
//! program leaves the terminal as it was.

#[cfg(unix)]
mod settings {
    use std::io::{self, Write};
    use std::sync::OnceLock;

    use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

    /// Ends what the editor asks of a terminal while somebody types: marks around what is pasted, and a cursor that is hidden while it draws.
    const PLAIN: &str = "\x1b[?2004l\x1b[?25h";

    /// How the terminal was before the conversation.
    static BEFORE: OnceLock<Termios> = OnceLock::new();

    fn set(settings: &Termios) {
        // A terminal that is gone needs no settings.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, settings);
    }

    pub(in crate::cli) fn remember() {
        if let Ok(settings) = tcgetattr(io::stdin()) {
            BEFORE.get_or_init(|| settings);
        }
    }

    pub(in crate::cli) fn restore() {
        let (Some(before), Ok(now)) = (BEFORE.get(), tcgetattr(io::stdin())) else {
            return;
        };
        if now.local_modes != before.local_modes {
            set(before);
        }
        if !now.local_modes.contains(LocalModes::ICANON) {
            let _ = writeln!(io::stderr(), "{PLAIN}");
        }
    }

    /// Keys are not shown until it is dropped. Those that are typed stay for whoever reads next.
    pub(in crate::cli) struct Unseen(());

    impl Unseen {
        pub(in crate::cli) fn new() -> Self {
            if let Some(before) = BEFORE.get() {
                let mut unseen = before.clone();
                unseen.local_modes.remove(LocalModes::ECHO);
                set(&unseen);
            }
            Self(())
        }
    }

    impl Drop for Unseen {
        fn drop(&mut self) {
            if let Some(before) = BEFORE.get() {
                set(before);
            }
        }
    }
}

/// The console of this system shows no keys that nobody has read, and its settings end with the program.
#[cfg(not(unix))]
mod settings {
    pub(in crate::cli) fn remember() {}

    pub(in crate::cli) fn restore() {}

    pub(in crate::cli) struct Unseen(());

    impl Unseen {
        pub(in crate::cli) fn new() -> Self {
            Self(())
        }
    }
}

pub(super) use settings::{Unseen, remember, restore};
