//! Loading a model for a command: progress bar and notes on standard error.

use std::sync::Arc;

use super::args::{ContextArgs, EngineArgs, ModelArgs};
pub(super) use super::bars::{progress_bar, prompt_bar, told};
use super::error::CliError;
use super::guard::guarded;
use super::output::{detail, note};
use crate::engine::{
    CacheType, DeviceChoice, Engine, EngineError, EngineOptions, ModelSource, Opened, Partly,
    Serving, Share,
};
use crate::gguf::Gguf;
use crate::gpu::GpuError;
use crate::gpu::wait::Wait;
use crate::model::{ModelError, NextnSource};
use crate::models::{self, Model};
use crate::plural::count;
use crate::tokenizer::{Message, Tokenizer};

/// Opens the model and the device that the flags name.
pub(super) fn open(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
) -> Result<Opened, CliError> {
    open_for(model, engine, ctx, None)
}

/// Opens like [`open`], for the users of `serving`.
pub(super) fn open_for(
    model: &ModelArgs,
    engine: &EngineArgs,
    ctx: &ContextArgs,
    serving: Option<Serving>,
) -> Result<Opened, CliError> {
    let options = EngineOptions {
        gpu: engine.device.options(),
        precompose: engine.precompose.choice.unwrap_or_default(),
        cpu_products: engine.cpu_products(),
        cpu_share: ctx.cpu_share,
        ctx: ctx.ctx,
        cache_type: ctx.cache_type,
        ubatch: ctx.ubatch,
        may_think: ctx.may_think,
        parse_special: ctx.parse_special,
        force: ctx.force,
        serving,
        draft: ctx.draft,
        draft_model: ctx.draft_model.clone(),
    };
    let source = model.source()?;
    let opened = Opened::new(&source, &options).wait();
    let opened = opened.map_err(|error| CliError::from(error).in_file(&source))?;
    if let Some(error) = opened.no_gpu() {
        detail(format_args!(
            "{}",
            no_gpu(error, engine.device.is_by_layers())
        ));
    }
    if let Some(flag) = engine.asks_for_gpu()
        && options.gpu.device == DeviceChoice::Auto
        && opened.is_software()
    {
        leaves_cpu(&flag, &opened.adapter_name());
    }
    if engine.asks_for_products() && opened.tier().is_some() {
        idle_products(&opened.adapter_name());
    }
    Ok(opened)
}

/// Tells that `--cpu-products` changes nothing, because the model runs elsewhere.
pub(super) fn idle_products(where_it_runs: &str) {
    note(format_args!(
        "--cpu-products changes nothing here: the model runs on {where_it_runs}; --device cpu runs it on the CPU"
    ));
}

/// Tells that a flag has software take the place of the CPU.
pub(super) fn leaves_cpu(flag: &str, adapter: &str) {
    note(format_args!(
        "no GPU found: for {flag} this leaves the CPU, which is faster, and runs on software ({adapter})"
    ));
}

/// Why the CPU is taken, and what else there is. `by_layers` says whether `--gpu-layers` stands where `--device` would.
pub(super) fn no_gpu(error: &GpuError, by_layers: bool) -> String {
    let place = match by_layers {
        true => "in place of --gpu-layers, ",
        false => "",
    };
    match error {
        GpuError::OnlySoftware { found } => format!(
            "no GPU found, only software ({found}): running on the CPU, which is faster; {place}--device 0 takes the software"
        ),
        _ => "no GPU adapter found: running on the CPU; if this machine has a GPU, install its driver".to_owned(),
    }
}

/// Checks what a model's file says of its model and vocabulary, without reading the weights or all of the vocabulary.
///
/// # Errors
/// Why it would be refused.
pub(super) fn check(source: &ModelSource) -> Result<(), EngineError> {
    let gguf = Arc::new(source.open()?);
    models::load(Arc::clone(&gguf))?;
    Ok(Tokenizer::check(&gguf)?)
}

/// A file, and its model with a cache of each type that it can have, f16 first.
pub(super) type Described = (Arc<Gguf>, Vec<Arc<dyn Model>>);

/// The model's file and what it says of its model, with a cache of each type that it can have, f16 first.
///
/// # Errors
/// An error of the file, or of the type of the cache that is `asked` for.
pub(super) fn described(
    source: &ModelSource,
    asked: Option<CacheType>,
) -> Result<Described, CliError> {
    let read = || {
        let gguf = Arc::new(source.open()?);
        let mut all = vec![];
        for cache in CacheType::ALL {
            match models::load_with_cache(Arc::clone(&gguf), &NextnSource::None, cache) {
                Ok(model) => all.push(model),
                Err(ModelError::CacheType { .. }) if asked != Some(cache) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok((gguf, all))
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
        let opened = Opened::new(source, options).wait()?;
        let prompt = [Message::new("user", "Hello")];
        let raw = || opened.tokenizer().encode("Hello", true);
        let (tokens, no_chat) = match guarded(|| opened.render_chat(&prompt, None)) {
            Ok(rendered) => (opened.tokenizer().encode_said(&rendered)?, None),
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
    work: impl FnOnce(&mut (dyn FnMut(u64, u64) + Send)) -> T,
) -> T {
    let bar = progress_bar(what);
    work(&mut told(&bar))
}

/// Tells where the experts of a model lie that the device has no room for.
pub(super) fn partly(found: &Partly) {
    note(format_args!("{found}"));
}

/// Tells what the CPU multiplies of the experts that the device has no room for.
pub(super) fn share(share: &Share) {
    note(format_args!("{share}"));
}

/// Loads the weights and tells which model runs on which device. That it is no GPU is told unless the CPU was asked for.
pub(super) fn weights(opened: Opened) -> Result<Engine, CliError> {
    opened.partly().map(partly);
    let reasons = [opened.layer_left_off(), opened.chosen_cache()];
    for reason in reasons.into_iter().flatten() {
        note(format_args!("{reason}"));
    }
    let engine = with_bar("loading", |told| {
        Engine::load(opened, &mut |progress| told(progress.done, progress.total)).wait()
    })?;
    let no_gpu = match engine.no_gpu() {
        Some(_) => " (no GPU found: see glimt devices)",
        None => "",
    };
    note(format_args!(
        "model: {}; device: {}{no_gpu}",
        engine.model().config().name,
        engine.device_name(),
    ));
    if let Some(trial) = engine.tier_trial() {
        detail(format_args!("{trial}"));
    }
    engine.cpu_share().map(share);
    if let Some(precomposed) = engine.precomposed() {
        detail(format_args!("{}", precomposed.line));
    }
    Ok(engine)
}

/// The context that was taken, of that which the model has.
pub(super) fn context(engine: &Engine) -> String {
    let all = count(engine.model().config().context_length, "token");
    format!("context: {} of {all}", engine.n_ctx())
}
