//! A bound on the memory that a file's own program takes: templates are programs, and some double a text in every step.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, System};

use super::fault;
use super::interrupt;
use super::output::complain;

/// Bytes that rendering a template may take: a hundred times what the longest conversation does.
const MOST: u64 = 256 << 20;
/// A doubling template takes some tenths of a second from here to the end of memory.
const INTERVAL: Duration = Duration::from_millis(5);

/// What `work` makes of `what`, a template of a model's file. If it takes more than 256 MiB meanwhile, the process ends with a sentence:
/// nothing else can stop an expression of a template.
pub(super) fn guarded<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut memory = Memory::new();
            let Some(before) = memory.bytes() else {
                return;
            };
            while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = memory.bytes().unwrap_or(before);
                if now.saturating_sub(before) > MOST {
                    complain(format_args!(
                        "glimt: error: {what} takes more than {} MiB of memory: it is damaged or hostile; --raw goes without it",
                        MOST >> 20
                    ));
                    interrupt::leave(1);
                }
            }
        });
        fault::set_rendering(true);
        let result = work();
        fault::set_rendering(false);
        drop(done);
        result
    })
}

/// The memory of this process.
struct Memory {
    system: System,
    process: Option<Pid>,
}

impl Memory {
    fn new() -> Self {
        Self {
            system: System::new(),
            process: sysinfo::get_current_pid().ok(),
        }
    }

    /// Bytes; `None` where the system does not tell.
    fn bytes(&mut self) -> Option<u64> {
        let process = self.process?;
        let only = ProcessesToUpdate::Some(&[process]);
        let memory = ProcessRefreshKind::nothing().with_memory();
        self.system.refresh_processes_specifics(only, false, memory);
        Some(self.system.process(process)?.memory())
    }
}
