//! Waiting for a thread, for native builds: grammars are read by recursion, which takes more stack than a thread usually has.

use std::io;
use std::thread;

use crate::effort::Effort;

/// Bytes of stack for the rules of a grammar, one within the other.
const STACK: usize = 256 << 20;

/// What `read` returns, on a thread with much stack.
pub(super) fn with_deep_stack<T: Send>(read: impl FnOnce() -> T + Send) -> io::Result<T> {
    let effort = Effort::current();
    thread::scope(|scope| {
        let reader = thread::Builder::new().stack_size(STACK);
        let reader = reader.spawn_scoped(scope, || effort.on(read))?;
        match reader.join() {
            Ok(read) => Ok(read),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
