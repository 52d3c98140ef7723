//! The thread that drives the scheduler, for a server and for a batch.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::RecvError;

use super::app::{App, Phase, Served};
use super::desk;
use super::error::ServerError;
use super::model::Model;

/// Threads that serve, and those for what may wait for the system.
const THREADS: [usize; 2] = [2, 2];
/// How long the thread of the scheduler may take to end: a piece of a prompt.
pub(super) const LAST_STEP: Duration = Duration::from_secs(20);

/// How far a server is before it takes requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Steps of the device are run once before the first request.
    Warming {
        /// Steps that ran.
        done: usize,
        /// Steps in all.
        of: usize,
    },
    /// Requests are taken.
    Ready,
}

/// Hears how far a server is.
pub(super) type Told = dyn Fn(Start) + Send + Sync;

/// How the thread has ended.
pub(super) type Worked = oneshot::Receiver<Result<(), ServerError>>;

/// The error of a thread that has ended although nobody asked it to. A thread that panicked has sent no result.
pub(super) fn why(worked: Result<Result<(), ServerError>, RecvError>) -> ServerError {
    match worked {
        Ok(Err(error)) => error,
        Ok(Ok(())) | Err(_) => ServerError::Panicked,
    }
}

/// The runtime that serves requests. Its threads have this name.
///
/// # Errors
/// If the system gives no threads.
pub(super) fn runtime(name: &str) -> io::Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(THREADS[0])
        .max_blocking_threads(THREADS[1])
        .thread_name(name)
        .enable_all()
        .build()
}

/// Starts it. What it returns comes when it ends. If it tells somebody of its start, it runs every step of the device once
/// before.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn start(
    app: &Arc<App>,
    model: Model,
    told: Option<Box<Told>>,
) -> Result<Worked, ServerError> {
    app.metrics.figures().model.clone_from(&model.name);
    let (app, model) = (Arc::clone(app), Arc::new(model));
    let (done, worked) = oneshot::channel();
    let thread = std::thread::Builder::new().name("scheduler".to_owned());
    thread.spawn(move || {
        let begin = |desk| {
            let model = Arc::clone(&model);
            let served = Served { model, desk };
            // It is set once: here.
            let served = app.served.get_or_init(|| served);
            let begins = app.phase.send_if_modified(|phase| {
                let begins = *phase == Phase::Loading;
                if begins {
                    *phase = Phase::Ready;
                }
                begins
            });
            match (begins, &told) {
                (true, Some(told)) => told(Start::Ready),
                (true, None) => {}
                (false, _) => served.desk.end(),
            }
        };
        let (queue, metrics) = (app.settings.queue, Arc::clone(&app.metrics));
        let arriving = Arc::clone(&app.arriving);
        let warmed = &mut |done, of| {
            if let Some(told) = &told {
                told(Start::Warming { done, of });
            }
        };
        let warmed: Option<&mut (dyn FnMut(usize, usize) + Send)> = match &told {
            Some(_) => Some(warmed),
            None => None,
        };
        let result = desk::work(&model, queue, metrics, arriving, warmed, begin);
        // Whoever is told that this has ended may end the process, and then nothing may still take the device down.
        drop((app, model));
        let _ = done.send(result.map_err(ServerError::from));
    })?;
    Ok(worked)
}
