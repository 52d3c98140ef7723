//! Loading a model for a command: progress bar and notes on standard error.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{ContextArgs, EngineArgs, ModelArgs};
use super::error::CliError;
use super::output::{is_quiet, note};
use crate::engine::{Engine, EngineOptions, Opened};

/// A progress bar in bytes on standard error; indicatif hides it where that is no terminal.
pub(super) fn progress_bar(what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {bytes} of {total_bytes}, {eta}")
        .expect("the template is a constant that indicatif accepts");
    bar(0).with_style(style).with_message(what)
}

/// A bar that is shown unless notes are left out.
fn bar(length: u64) -> ProgressBar {
    let target = match is_quiet() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    ProgressBar::with_draw_target(Some(length), target)
}

/// A prompt that takes longer shows a bar.
pub(super) const BAR_AFTER: Duration = Duration::from_millis(300);

/// A bar on standard error for the tokens of a long prompt, shown when its position is set.
pub(super) fn prompt_bar(what: &'static str, tokens: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{msg} {bar:30} {pos} of {len} tokens, {eta}")
        .expect("the template is a constant that indicatif accepts");
    bar(tokens as u64).with_style(style).with_message(what)
}

/// Opens the model and the device that the flags name.
///
/// # Errors
/// What [`Opened::new`] refuses.
pub(super) fn open(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
) -> Result<Opened, CliError> {
    let device = &engine.device;
    let options = EngineOptions {
        device: device.device.clone(),
        tier: device.tier,
        no_matrices: device.matrices.off,
        serial_passes: device.serial.serial_passes,
        packed_halves: device.halves.packed,
        precompose: engine.precompose.choice,
        ctx: ctx.ctx,
        ubatch: ctx.ubatch,
    };
    let opened = Opened::new(&model.source(), &options)?;
    if opened.is_cpu_fallback() {
        note(format_args!(
            "no GPU adapter found: running on the CPU reference, which is slow; install your GPU's driver, or on \
             Debian and Ubuntu the software driver with `apt-get install mesa-vulkan-drivers`"
        ));
    }
    Ok(opened)
}

/// Loads the weights and tells what was chosen.
///
/// # Errors
/// What [`Engine::load`] refuses.
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
