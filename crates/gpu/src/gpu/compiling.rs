//! Tells that pipelines are compiled, which takes seconds with some drivers.

use std::sync::OnceLock;

/// How far the pipelines of a step are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compiling {
    /// Pipelines that are compiled.
    pub done: usize,
    /// Pipelines that the step lacked.
    pub of: usize,
}

/// The listener to every pipeline that is compiled, on any thread.
type Listener = dyn Fn(Compiling) + Send + Sync;

static LISTENER: OnceLock<Box<Listener>> = OnceLock::new();

/// Has `listener` told of all pipelines that this process compiles from now on, on whatever device. The first listener stays.
pub fn listen(listener: impl Fn(Compiling) + Send + Sync + 'static) {
    // A process has one terminal to show it in.
    let _ = LISTENER.set(Box::new(listener));
}

/// Tells the listener, if there is one.
pub(super) fn tell(compiling: Compiling) {
    if let Some(listener) = LISTENER.get() {
        listener(compiling);
    }
}
