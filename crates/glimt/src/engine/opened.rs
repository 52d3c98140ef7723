//! A model whose file is read and whose device is open, before its weights are loaded: what a prompt can be checked against.

use std::sync::{Arc, Mutex, PoisonError};

#[cfg(not(target_arch = "wasm32"))]
use super::beside::beside;
use super::chooser::{ChooserError, Grammar, Language, Vocabulary};
use super::device::Device;
use super::draft::{DraftOptions, DraftSource};
use super::many;
use super::partly::Partly;
use super::predicted::{self, Fitted, Wanted};
use super::recommended::Recommended;
use super::room::Holds;
use super::{
    CpuShare, EngineError, EngineOptions, ModelSource, PrecomposeChoice, Products, Serving,
    context_length,
};
use crate::gguf::Gguf;
use crate::gpu::pending::may_block;
use crate::gpu::{GpuError, Tier};
use crate::kernels::CacheType;
use crate::kernels::sequences::PAGE;
use crate::model::{ModelError, NextnSource};
use crate::models::{self, Model};
use crate::recipes::BatchSizes;
use crate::tokenizer::{ChatTemplate, ChatText, Message, Tokenizer, TokenizerError};

/// A model and a device, ready for the weights ([`Engine::load`](super::Engine::load)).
pub struct Opened {
    pub(super) model: Arc<dyn Model>,
    tokenizer: Tokenizer,
    chat_template: Template,
    /// The tokens for grammars, once there was one.
    vocabulary: Mutex<Option<Arc<Vocabulary>>>,
    recommended: Recommended,
    n_ctx: usize,
    /// The sizes of the steps of several sequences, where these are asked for.
    batch_sizes: Option<BatchSizes>,
    /// Where the experts lie, if not on the device with all else.
    partly: Option<Partly>,
    pub(super) ubatch: Option<u32>,
    pub(super) device: Device,
    pub(super) cpu_products: Products,
    pub(super) cpu_share: CpuShare,
    /// The products of weights that were asked for.
    pub(super) precompose: PrecomposeChoice,
    /// The drafts that were asked for.
    pub(super) draft: DraftOptions,
    /// Why the prediction layer is not in use, though drafts may be.
    layer_left_off: Option<String>,
    /// Why the cache is not in f16, if nobody asked for another type.
    chosen_cache: Option<String>,
}

impl Opened {
    /// Reads what is in the file of `source` beside the weights, and opens the device. Where a thread waits for it, another one reads the
    /// text meanwhile.
    ///
    /// With [`Auto`](crate::gpu::DeviceChoice::Auto) on a machine without a GPU the CPU reference is used, and [`no_gpu`](Self::no_gpu) tells why. Any
    /// other choice is met or refused.
    ///
    /// # Errors
    /// [`EngineError::Gguf`], [`EngineError::Model`] or [`EngineError::Tokenizer`] for the file,
    /// [`EngineError::ContextTooLong`], [`EngineError::TierWithoutGpu`] or [`EngineError::FlagWithoutGpu`] for the
    /// options, [`EngineError::Gpu`] for the device.
    pub async fn new(source: &ModelSource, options: &EngineOptions) -> Result<Self, EngineError> {
        Self::of_gguf(source.open()?, options).await
    }

    /// Opens a model like [`new`](Self::new), from a container that is open.
    ///
    /// # Errors
    /// The errors of [`new`](Self::new).
    pub async fn of_gguf(gguf: Gguf, options: &EngineOptions) -> Result<Self, EngineError> {
        let file = File::of(gguf, options)?;
        let device = Device::open(options);
        let (text, device) = match may_block() {
            // A vocabulary of 150000 tokens and a GPU take some tenths of a second each.
            #[cfg(not(target_arch = "wasm32"))]
            true => beside(|| file.text(), device),
            _ => (file.text(), device.await),
        };
        Self::of(file, text?, device?, options)
    }

    /// An opened model of the file and the device, with the text that was read.
    ///
    /// # Errors
    /// [`EngineError::NoRoom`], or what loading would refuse.
    fn of(
        mut file: File,
        (tokenizer, chat_template): (Tokenizer, Template),
        device: Device,
        options: &EngineOptions,
    ) -> Result<Self, EngineError> {
        let chat_template = match options.parse_special {
            true => chat_template,
            false => chat_template
                .map(|template| template.map(|known| known.with_marks_as_text(&tokenizer))),
        };
        let template = chat_template.as_ref().ok().and_then(Option::as_ref);
        let thinks = options.may_think && template.is_some_and(ChatTemplate::supports_thinking);
        let wanted = Wanted {
            options,
            n_ctx: file.n_ctx,
            thinks,
        };
        let layer_bytes = file.model.nextn_bytes();
        let (fitted, model) = file.fit(&wanted, &device)?;
        let layer_left_off = match layer_bytes > 0 && !model.nextn() {
            true => predicted::left_off(&device, options.serving.is_some(), layer_bytes),
            false => None,
        };
        let Fitted {
            n_ctx,
            batch_sizes,
            partly,
        } = fitted;
        let are_many = batch_sizes.is_some_and(|sizes| sizes.sequences > 1);
        if are_many && options.precompose != PrecomposeChoice::Off {
            let choice = options.precompose.name();
            return Err(EngineError::PrecomposeForMany { choice });
        }
        Ok(Self {
            batch_sizes,
            partly,
            recommended: Recommended::new(model.gguf(), model.config()),
            model,
            tokenizer,
            chat_template,
            vocabulary: Mutex::new(None),
            n_ctx,
            ubatch: partly.and_then(|partly| partly.at_once).or(options.ubatch),
            layer_left_off,
            chosen_cache: file.chosen_cache,
            device,
            cpu_products: options.cpu_products,
            cpu_share: options.cpu_share,
            precompose: options.precompose,
            draft: options.draft,
        })
    }

    /// The model: configuration and weights.
    pub fn model(&self) -> &dyn Model {
        &*self.model
    }

    /// The model's tokenizer.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// The grammar of a language for answers of the model.
    ///
    /// # Errors
    /// The errors of [`Grammar::new`], and [`ChooserError::NoStopToken`].
    pub fn grammar(&self, language: Language) -> Result<Grammar, ChooserError> {
        Grammar::new(&*self.vocabulary()?, language)
    }

    /// Makes the model's tokens ready for grammars, which the first call of [`grammar`](Self::grammar) does otherwise.
    ///
    /// # Errors
    /// [`ChooserError::NoStopToken`].
    pub fn prepare_grammars(&self) -> Result<(), ChooserError> {
        self.vocabulary().map(drop)
    }

    /// The tokens for grammars, which are made once.
    fn vocabulary(&self) -> Result<Arc<Vocabulary>, ChooserError> {
        let kept = self.vocabulary.lock();
        let mut kept = kept.unwrap_or_else(PoisonError::into_inner);
        if let Some(vocabulary) = &*kept {
            return Ok(Arc::clone(vocabulary));
        }
        let made = Arc::new(Vocabulary::new(&self.tokenizer)?);
        *kept = Some(Arc::clone(&made));
        Ok(made)
    }

    /// The chat template of the model's file, where it has one that can be read.
    pub fn chat_template(&self) -> Option<&ChatTemplate> {
        self.needed_template().ok()
    }

    /// The chat template of the model's file, for those who cannot do without.
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`], or [`EngineError::UnreadableTemplate`].
    pub fn needed_template(&self) -> Result<&ChatTemplate, EngineError> {
        match &self.chat_template {
            Ok(Some(template)) => Ok(template),
            Ok(None) => Err(EngineError::NoChatTemplate),
            Err(error) => Err(EngineError::UnreadableTemplate {
                reason: error.to_string(),
            }),
        }
    }

    /// The sampling that is recommended for the model.
    pub fn recommended(&self) -> &Recommended {
        &self.recommended
    }

    /// Context length of sessions, in tokens.
    pub fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// The sizes of the steps of several sequences, where these are asked for.
    pub fn batch_sizes(&self) -> Option<BatchSizes> {
        self.batch_sizes
    }

    /// Where the experts lie, if the device has no room for all of them.
    pub fn partly(&self) -> Option<&Partly> {
        self.partly.as_ref()
    }

    /// Why the file's prediction layer is not in use, where [`DraftSource::Auto`] would take it if it had room.
    pub fn layer_left_off(&self) -> Option<&str> {
        self.layer_left_off.as_deref()
    }

    /// Why the cache is in q8_0, where no type was asked for and the device has room for more of the model so.
    pub fn chosen_cache(&self) -> Option<&str> {
        self.chosen_cache.as_deref()
    }

    /// The sizes of the steps of a scheduler: those that are asked for, else of one sequence.
    pub(super) fn sizes_to_serve(&self) -> Result<BatchSizes, EngineError> {
        let serving = Serving {
            parallel: Some(1),
            cache_tokens: None,
        };
        let one = (serving, self.draft);
        let of_one = || {
            let (device, model) = (&self.device, &*self.model);
            many::batch_sizes(device, model, self.n_ctx, one, self.ubatch, true)
        };
        match self.batch_sizes {
            Some(sizes) => Ok(sizes),
            None => Ok(of_one()?.sizes),
        }
    }

    /// Checks that the cache that requests share has room for a prompt of `prompt` tokens and one more; where each has its own, it does.
    ///
    /// # Errors
    /// [`EngineError::CacheTooSmall`].
    pub fn check_cache(&self, prompt: usize) -> Result<(), EngineError> {
        let rows = self
            .batch_sizes
            .map(|sizes| sizes.pages as usize * PAGE as usize);
        match rows {
            Some(rows) if rows < self.n_ctx && prompt >= rows => {
                Err(EngineError::CacheTooSmall { prompt, rows })
            }
            _ => Ok(()),
        }
    }

    /// The name of the device.
    pub fn device_name(&self) -> String {
        match &self.device {
            Device::Cpu { .. } => self.cpu_products.device(),
            Device::Gpu(gpu) => format!(
                "{} ({}, tier {})",
                gpu.info.name,
                gpu.info.backend,
                gpu.tier.name()
            ),
        }
    }

    /// The name of the adapter alone.
    pub fn adapter_name(&self) -> String {
        match &self.device {
            Device::Cpu { .. } => self.device_name(),
            Device::Gpu(gpu) => gpu.info.name.clone(),
        }
    }

    /// Whether the device is a GPU that software on the CPU plays.
    pub fn is_software(&self) -> bool {
        match &self.device {
            Device::Cpu { .. } => false,
            Device::Gpu(gpu) => gpu.info.device_type == wgpu::DeviceType::Cpu,
        }
    }

    /// The tier of its kernels; the CPU reference has none.
    pub fn tier(&self) -> Option<Tier> {
        match &self.device {
            Device::Cpu { .. } => None,
            Device::Gpu(gpu) => Some(gpu.tier),
        }
    }

    /// Why [`Auto`](crate::gpu::DeviceChoice::Auto) means the CPU reference here: [`GpuError::NoAdapter`] or [`GpuError::OnlySoftware`].
    pub fn no_gpu(&self) -> Option<&GpuError> {
        match &self.device {
            Device::Cpu { because } => because.as_ref(),
            Device::Gpu(_) => None,
        }
    }

    /// The text of a conversation in the model's chat template, up to where the model's answer begins. `think` turns
    /// the model's thinking on or off, `None` leaves it to the template.
    ///
    /// # Errors
    /// The errors of [`needed_template`](Self::needed_template), and the refusals of the template itself, such as that of a switch for
    /// thinking that it does not have.
    pub fn render_chat(
        &self,
        messages: &[Message],
        think: Option<bool>,
    ) -> Result<ChatText, EngineError> {
        let template = self.needed_template()?;
        Ok(template.render_said(messages, true, think)?)
    }

    /// Checks tokens that come after `used` others, against vocabulary and context.
    ///
    /// # Errors
    /// [`EngineError::NoTokens`], [`EngineError::UnknownToken`] or [`EngineError::PromptTooLong`].
    pub fn check_tokens(&self, tokens: &[u32], used: usize) -> Result<(), EngineError> {
        if tokens.is_empty() {
            return Err(EngineError::NoTokens);
        }
        let config = &self.model.config();
        let vocab = config.vocab_size;
        if let Some(&token) = tokens.iter().find(|&&token| token as usize >= vocab) {
            return Err(EngineError::UnknownToken { token, vocab });
        }
        if used + tokens.len() > self.n_ctx {
            return Err(EngineError::PromptTooLong {
                prompt: tokens.len(),
                used,
                n_ctx: self.n_ctx,
                model: config.context_length,
            });
        }
        Ok(())
    }
}

/// The file that gives the model its prediction layer, as `options` ask for drafts.
fn nextn_source(options: &EngineOptions) -> Result<NextnSource, EngineError> {
    Ok(match (options.draft.source, &options.draft_model) {
        (DraftSource::Off | DraftSource::Ngram, _) => NextnSource::None,
        (DraftSource::Auto, None) => NextnSource::IfAny,
        (DraftSource::Mtp, None) => NextnSource::Own,
        (_, Some(other)) => NextnSource::Other(Arc::new(other.open()?)),
    })
}

/// The chat template of a file. One that cannot be read keeps nobody from using the file without it.
type Template = Result<Option<ChatTemplate>, TokenizerError>;

/// A model's file, of which the text is not read yet.
struct File {
    model: Arc<dyn Model>,
    /// The model without its prediction layer, if that is to be used only where it has room.
    without: Option<Arc<dyn Model>>,
    /// The context that was asked for, in tokens; `None` is the default.
    n_ctx: Option<usize>,
    /// Why the cache is in q8_0, though nobody asked for that.
    chosen_cache: Option<String>,
}

impl File {
    /// The model of a container, and the context that `options` ask for.
    fn of(gguf: Gguf, options: &EngineOptions) -> Result<Self, EngineError> {
        // The model first: of an unknown architecture nothing else need be understood.
        let nextn = nextn_source(options)?;
        let gguf = Arc::new(gguf);
        let model = models::load_with_nextn(Arc::clone(&gguf), &nextn)?;
        let without = match options.draft.source == DraftSource::Auto && model.nextn() {
            true => Some(models::load(gguf)?),
            false => None,
        };
        let asked = |ctx| context_length(Some(ctx), model.config().context_length);
        let n_ctx = options.ctx.map(asked).transpose()?;
        let mut file = Self {
            model,
            without,
            n_ctx,
            chosen_cache: None,
        };
        file.set_cache_type(options.cache_type.unwrap_or_default())?;
        Ok(file)
    }

    /// Has the model have a cache of this type, with its prediction layer and without.
    fn set_cache_type(&mut self, cache: CacheType) -> Result<(), ModelError> {
        for model in [&mut self.model].into_iter().chain(&mut self.without) {
            let own = Arc::get_mut(model).expect("nobody else has the model yet");
            own.set_cache_type(cache)?;
        }
        Ok(())
    }

    /// The room of the model, and which of the two models gets it. If nobody asked for a type of the cache, it is in q8_0 where the device has room for
    /// more of the model so.
    fn fit(
        &mut self,
        wanted: &Wanted<'_>,
        device: &Device,
    ) -> Result<(Fitted, Arc<dyn Model>), EngineError> {
        let mut found = self.fit_as_it_is(wanted, device);
        if let (None, Some(why)) = (wanted.options.cache_type, predicted::lacks_room(&found))
            && self.set_cache_type(CacheType::Q8_0).is_ok()
        {
            let with_codes = self.fit_as_it_is(wanted, device);
            let holds = |found: &Result<(Fitted, _), _>| {
                Holds::of(found.as_ref().map(|(fitted, _)| fitted.partly.as_ref()))
            };
            if holds(&with_codes) > holds(&found) {
                self.chosen_cache = Some(why);
                found = with_codes;
            } else {
                self.set_cache_type(CacheType::F16)?;
            }
        }
        let (fitted, with_layer) = found?;
        let without = self.without.as_ref().filter(|_| !with_layer);
        Ok((fitted, Arc::clone(without.unwrap_or(&self.model))))
    }

    /// The room of the model with the cache that it has, and whether the model with the prediction layer gets it, where there are two.
    fn fit_as_it_is(
        &self,
        wanted: &Wanted<'_>,
        device: &Device,
    ) -> Result<(Fitted, bool), EngineError> {
        match &self.without {
            None => Ok((wanted.fit(device, &*self.model)?, true)),
            Some(without) => wanted.fit_auto(device, [&*self.model, &**without]),
        }
    }

    /// Reads the text.
    fn text(&self) -> Result<(Tokenizer, Template), TokenizerError> {
        let gguf = self.model.gguf();
        Ok((Tokenizer::from_gguf(gguf)?, ChatTemplate::from_gguf(gguf)))
    }
}
