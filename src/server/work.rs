//! The thread that drives the scheduler, for a server and for a batch.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::sync::oneshot;

use super::app::{App, Phase, Served};
use super::desk;
use super::error::ServerError;
use super::model::Model;

/// How the thread has ended.
pub(super) type Worked = oneshot::Receiver<Result<(), ServerError>>;

/// Starts it. What it returns comes when it ends.
///
/// # Errors
/// If the system gives no thread.
pub(super) fn start(app: &Arc<App>, model: Model) -> Result<Worked, ServerError> {
    app.metrics.name_model(&model.name);
    let (app, model) = (Arc::clone(app), Arc::new(model));
    let (done, worked) = oneshot::channel();
    let thread = std::thread::Builder::new().name("scheduler".to_owned());
    thread.spawn(move || {
        let ready = |desk| {
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
            if !begins {
                served.desk.end();
            }
        };
        let (queue, metrics) = (app.settings.queue, Arc::clone(&app.metrics));
        let arriving = app.arriving.clone();
        let work = AssertUnwindSafe(|| desk::work(&model, queue, metrics, arriving, ready));
        let result = match catch_unwind(work) {
            Ok(result) => result.map_err(ServerError::from),
            Err(_) => Err(ServerError::Panicked),
        };
        let _ = done.send(result);
    })?;
    Ok(worked)
}
