//! Loading a model for a command: progress bar and notes on standard error.

use std::sync::Arc;

use super::args::{ContextArgs, EngineArgs, ModelArgs};
pub(super) use super::bars::{BAR_AFTER, progress_bar, prompt_bar, runs_bar, told};
use super::error::CliError;
use super::guard::guarded;
use super::output::{complain, note};
use crate::engine::{Engine, EngineError, EngineOptions, ModelSource, Opened, Serving};
use crate::gguf::Gguf;
use crate::gpu::GpuError;
use crate::models::{self, Model};
use crate::plural::count;
use crate::tokenizer::Message;

/// Opens the model and the device that the flags name.
pub(super) fn open(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
) -> Result<Opened, CliError> {
    open_for(model, engine, ctx, None)
}

/// As [`open`], for so many users.
pub(super) fn open_for(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
    serving: Option<Serving>,
) -> Result<Opened, CliError> {
    let options = EngineOptions {
        gpu: engine.device.options(),
        precompose: engine.precompose.choice,
        ctx: ctx.ctx,
        ubatch: ctx.ubatch,
        may_think: ctx.may_think,
        force: ctx.force,
        serving,
    };
    let source = model.source()?;
    let opened = Opened::new(&source, &options);
    let opened = opened.map_err(|error| CliError::from(error).in_file(&source))?;
    if let Some(error) = opened.no_gpu() {
        no_gpu(error);
    }
    Ok(opened)
}

/// Tells that the CPU reference is taken, and why.
pub(super) fn no_gpu(error: &GpuError) {
    match error {
        GpuError::OnlySoftware { found } => complain(format_args!(
            "no GPU found, only software ({found}): running on the CPU reference, which is faster; --device 0 takes the software"
        )),
        _ => complain(format_args!(
            "no GPU adapter found: running on the CPU reference; if this machine has a GPU, install its driver"
        )),
    }
}

/// The model's file and what it says of its model.
pub(super) fn described(source: &ModelSource) -> Result<(Arc<Gguf>, Arc<dyn Model>), CliError> {
    let read = || {
        let gguf = Arc::new(source.open()?);
        let model = models::load(Arc::clone(&gguf))?;
        Ok((gguf, model))
    };
    let described: Result<_, EngineError> = read();
    described.map_err(|error| CliError::from(error).in_file(source))
}

/// An answer that a model would give.
pub(super) struct Tried {
    /// The context that it would have, in tokens.
    pub(super) n_ctx: usize,
    /// Why there is an answer to a raw prompt alone.
    pub(super) no_chat: Option<EngineError>,
}

/// The answer that the model would give.
///
/// # Errors
/// Why it would be refused before anything is computed.
pub(super) fn try_answer(source: &ModelSource, options: &EngineOptions) -> Result<Tried, CliError> {
    let try_all = || {
        let opened = Opened::new(source, options)?;
        let prompt = [Message::new("user", "Hello")];
        let raw = || opened.tokenizer().encode("Hello", true);
        let (tokens, no_chat) = match guarded(|| opened.render_chat(&prompt, None)) {
            Ok(rendered) => (opened.tokenizer().encode_chat(&rendered)?, None),
            // Some hold weights for --raw alone.
            Err(error) => (raw()?, Some(error)),
        };
        opened.check_tokens(&tokens, 0)?;
        Ok(Tried {
            n_ctx: opened.n_ctx(),
            no_chat,
        })
    };
    try_all().map_err(|error: CliError| error.in_file(source))
}

/// Does `work` while a bar shows its progress. `work` tells how many bytes are done, and of how many.
pub(super) fn with_bar<T>(
    what: &'static str,
    work: impl FnOnce(&mut dyn FnMut(u64, u64)) -> T,
) -> T {
    let bar = progress_bar(what);
    let made = work(&mut told(&bar));
    bar.finish_and_clear();
    made
}

/// Loads the weights and tells what was chosen.
pub(super) fn weights(opened: Opened) -> Result<Engine, CliError> {
    let engine = with_bar("loading", |told| {
        Engine::load(opened, &mut |progress| told(progress.done, progress.total))
    })?;
    note(format_args!(
        "model: {}; device: {}; context: {} of {}",
        engine.model().config().name,
        engine.device_name(),
        engine.n_ctx(),
        count(engine.model().config().context_length, "token"),
    ));
    if let Some(trial) = engine.tier_trial() {
        note(format_args!("{trial}"));
    }
    if let Some(precomposed) = engine.precomposed() {
        note(format_args!("{precomposed}"));
    }
    Ok(engine)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::{ProgressDrawTarget, TermLike};

    use super::*;

    /// A terminal of so many columns that keeps what is written.
    #[derive(Debug, Clone)]
    struct Narrow(u16, Arc<Mutex<Vec<String>>>);

    impl TermLike for Narrow {
        fn width(&self) -> u16 {
            self.0
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            let mut written = self.1.lock().expect("no writer panics");
            written.push(text.to_owned());
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn bars_fit_into_one_line_of_a_narrow_terminal() {
        for width in [40, 80, 200] {
            for bar in [progress_bar("writing"), prompt_bar("prompt", 131_072)] {
                let terminal = Narrow(width, Arc::default());
                bar.set_draw_target(ProgressDrawTarget::term_like(Box::new(terminal.clone())));
                bar.set_length(bar.length().filter(|&n| n > 0).unwrap_or(1023 << 30));
                bar.set_position(bar.length().expect("it is set") - (1 << 10));
                bar.tick();
                let written = terminal.1.lock().expect("no writer panics");
                let lines: Vec<_> = written
                    .iter()
                    .filter(|text| text.contains(" of "))
                    .collect();
                assert!(!lines.is_empty(), "{written:?}");
                for line in lines {
                    let columns = line.trim_end().chars().count();
                    assert!(
                        columns <= usize::from(width),
                        "{columns} of {width}: {line}"
                    );
                }
            }
        }
    }
}
