//! A bound on the memory that a file's own program takes: templates are programs, and some double a text in every step.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use sysinfo::{ProcessRefreshKind, ProcessesToUpdate, System};

use super::fault;
use super::interrupt;
use super::output::complain;

/// The most bytes that rendering a template may take: a hundred times what the longest conversation does.
const MOST: u64 = 256 << 20;
/// A doubling template takes some tenths of a second from here to the end of memory.
const INTERVAL: Duration = Duration::from_millis(5);

/// The result of `work` on a chat template. If it takes more than 256 MiB meanwhile, the process ends with a sentence: nothing else can
/// stop an expression of a template.
pub(super) fn guarded<T>(work: impl FnOnce() -> T) -> T {
    let (done, over) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut system = System::new();
            let Some(before) = memory(&mut system) else {
                return;
            };
            while over.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                let now = memory(&mut system).unwrap_or(before);
                if now.saturating_sub(before) > MOST {
                    complain(format_args!(
                        "glimt: error: the chat template takes more than {} MiB of memory: it is damaged or hostile; glimt generate --raw goes without it",
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

/// Bytes of memory that this process holds; `None` where the system does not tell.
fn memory(system: &mut System) -> Option<u64> {
    let process = sysinfo::get_current_pid().ok()?;
    let only = ProcessesToUpdate::Some(&[process]);
    let memory = ProcessRefreshKind::nothing().with_memory();
    system.refresh_processes_specifics(only, false, memory);
    Some(system.process(process)?.memory())
}
