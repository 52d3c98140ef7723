//! A model that answers requests of OpenAI's API, for `serve` and `batch`.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};

use super::args::{ContextArgs, DEVICE, EngineArgs, ModelArgs, SaidArgs};
use super::draft::DraftArgs;
use super::error::CliError;
use super::guard::guarded;
use super::load;
use super::output::{complain, note};
use super::sampling::{self, Choice, SamplingArgs};
use crate::engine::{ModelSource, Opened, Serving};
use crate::kernels::sequences::PAGE;
use crate::plural::count;
use crate::recipes::BatchSizes;
use crate::server::Model;
use crate::tokenizer::Message;

/// Which model answers, where, and what requests that leave it open get.
#[derive(Args)]
pub(super) struct ServedArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The model's name in requests [default: the name of its file without .gguf, or glimt]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    alias: Option<String>,
    /// Generate at most N tokens for a request that names no limit; -1 is no limit [default: until the model ends its answer or
    /// the context is full]
    #[arg(short = 'n', long, alias = "predict", value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true)]
    n_predict: Option<usize>,
    /// Let the model think where a request does not say it, or not [default: what its chat template does]
    #[arg(long, value_name = "WHEN")]
    think: Option<Think>,
    /// Refuse requests that name another model [default: answer them with the one there is]
    #[arg(long)]
    strict_model: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    ctx: ContextArgs,
    /// Give the cache that all requests share room for so many tokens [default: what they need if each fills its context, as far as
    /// there is memory]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), hide_short_help = true, help_heading = DEVICE)]
    cache_tokens: Option<u32>,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    said: SaidArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Think {
    On,
    Off,
}

impl ServedArgs {
    /// The file of the model, or the one that is compiled into the program.
    pub(super) fn source(&self) -> Result<ModelSource, CliError> {
        self.model.source()
    }

    /// Loads the model, for `parallel` requests at once or as many as suit the device, and tells what was chosen.
    pub(super) fn load(
        &self,
        source: &ModelSource,
        parallel: Option<u32>,
    ) -> Result<Model, CliError> {
        let may_think = !matches!(self.think, Some(Think::Off));
        let mut ctx = self.ctx.for_answers(source, may_think);
        ctx.parse_special = self.said.parse_special;
        self.draft.ask(&mut ctx)?;
        let serving = Serving {
            parallel,
            cache_tokens: self.cache_tokens.map(|tokens| tokens as usize),
        };
        let opened = load::open_for(&self.model, &self.engine, &ctx, Some(serving))?;
        try_template(&opened);
        let thinking = Choice::new(&self.sampling, &opened, !may_think)?;
        let answering = Choice::new(&self.sampling, &opened, true)?;
        let engine = load::weights(opened)?;
        note(format_args!("{}", load::context(&engine)));
        if let Some(sizes) = engine.batch_sizes() {
            note_cache(sizes);
        }
        if engine.tier().is_none() {
            note(format_args!(
                "the CPU computes, more slowly than a GPU would"
            ));
        }
        let name = self.name(source);
        let title = match self.alias.is_none() && source.is_built_in() {
            true => engine.model().config().name.clone(),
            false => name.clone(),
        };
        Ok(Model {
            engine,
            name,
            title,
            strict_name: self.strict_model,
            seed: thinking.asked_seed(),
            penalty_asked: thinking.is_penalty_asked(),
            thinking: thinking.chain,
            answering: answering.chain,
            think: self.think.map(|think| matches!(think, Think::On)),
            limit: self.n_predict,
            drafts: self.draft.options(),
            created: jiff::Timestamp::now().as_second(),
        })
    }

    /// Whether requests that name another model are refused.
    pub(super) fn is_strict(&self) -> bool {
        self.strict_model
    }

    /// The name of the model in requests.
    pub(super) fn name(&self, source: &ModelSource) -> String {
        let stem = match source {
            ModelSource::Embedded => None,
            ModelSource::File(path) => path.file_stem().and_then(|stem| stem.to_str()),
        };
        let name = self.alias.as_deref().or(stem);
        name.unwrap_or("glimt").to_owned()
    }
}

/// Tells how many are answered at once, and what they share.
fn note_cache(sizes: BatchSizes) {
    let rows = sizes.pages as usize * PAGE as usize;
    let all = sizes.sequences as usize * sizes.n_ctx;
    let rest = match rows < all {
        true => format!("; {all} would be the whole context of each, so some may have to wait"),
        false => String::new(),
    };
    note(format_args!(
        "up to {} at once; the cache that they share holds {}{rest}",
        count(sizes.sequences as usize, "request"),
        count(rows, "token"),
    ));
}

/// Tries the model's template, so that one that takes all memory ends the program here and not while it serves.
fn try_template(opened: &Opened) {
    let messages = [Message::new("user", "Hello")];
    let rendered = guarded(|| opened.render_chat(&messages, None));
    if let Err(error) = rendered {
        complain(format_args!("conversations are refused: {error}"));
    }
}
