//! Loading a model for a command: progress bar and notes on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::error::CliError;
use super::guard::guarded;
use super::output::note;
use crate::engine::{Engine, EngineOptions, ModelSource, Opened};
use crate::gpu::GpuError;
use crate::tokenizer::Message;

/// A progress bar in bytes on standard error; indicatif hides it where that is no terminal.
pub(super) fn progress_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {eta}")
        .expect("the template is a constant that indicatif accepts");
    ProgressBar::new(0).with_style(style).with_message(what)
}

/// Shows on `bar` how much is done, of how much in all.
pub(super) fn told(bar: &ProgressBar) -> impl FnMut(u64, u64) + use<'_> {
    |done, total| {
        bar.set_length(total);
        bar.set_position(done);
    }
}

/// A prompt that takes longer shows a bar.
pub(super) const BAR_AFTER: Duration = Duration::from_millis(300);

/// A bar on standard error for the tokens of a long prompt, shown when its position is set.
pub(super) fn prompt_bar(what: &'static str, tokens: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len} tokens, {eta}")
        .expect("the template is a constant that indicatif accepts");
    let bar = ProgressBar::new(tokens as u64);
    bar.with_style(style).with_message(what)
}

/// Opens the model and the device that the flags name.
pub(super) fn open(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
) -> Result<Opened, CliError> {
    let options = EngineOptions {
        gpu: engine.device.options(),
        precompose: engine.precompose.choice,
        ctx: ctx.ctx,
        ubatch: ctx.ubatch,
        may_think: ctx.may_think,
        force: ctx.force,
    };
    let opened = Opened::new(&model.source(), &options)?;
    match opened.no_gpu() {
        Some(GpuError::OnlySoftware { found }) => note(format_args!(
            "no GPU found, only software ({found}): running on the CPU reference, which is faster; --device 0 takes the software"
        )),
        Some(_) => note(format_args!(
            "no GPU adapter found: running on the CPU reference; if this machine has a GPU, install its driver"
        )),
        None => {}
    }
    Ok(opened)
}

/// Why an answer of the model would be refused before anything is computed, on the device that is taken where none is asked for.
pub(super) fn refusal(source: &ModelSource, ctx: &ContextArgs) -> Option<CliError> {
    let options = EngineOptions {
        ctx: ctx.ctx,
        ubatch: ctx.ubatch,
        force: ctx.force,
        ..EngineOptions::default()
    };
    let try_all = || {
        let opened = Opened::new(source, &options)?;
        let prompt = [Message::new("user", "Hello")];
        let tokens = match opened.chat_template() {
            // Some hold weights for --raw alone.
            None => opened.tokenizer().encode("Hello", true)?,
            Some(_) => {
                let rendered = guarded("the chat template", || opened.render_chat(&prompt, None))?;
                opened.tokenizer().encode_chat(&rendered)?
            }
        };
        Ok(opened.check_tokens(&tokens, 0)?)
    };
    try_all().err()
}

/// Loads the weights and tells what was chosen.
pub(super) fn weights(opened: Opened) -> Result<Engine, CliError> {
    let bar = progress_bar("loading");
    let loaded = Engine::load(opened, &mut |progress| {
        bar.set_length(progress.total);
        bar.set_position(progress.done);
    });
    bar.finish_and_clear();
    let engine = loaded?;
    note(format_args!(
        "model: {}; device: {}; context: {} of {} tokens",
        engine.model().config().name,
        engine.device_name(),
        engine.n_ctx(),
        engine.model().config().context_length,
    ));
    if let Some(trial) = engine.tier_trial() {
        note(format_args!("{trial}"));
    }
    if let Some(precomposed) = engine.precomposed() {
        note(format_args!("{precomposed}"));
    }
    Ok(engine)
}
