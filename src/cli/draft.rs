//! The flags of drafts: tokens that are proposed ahead, and computed together with the last one.

use std::path::PathBuf;

use clap::Args;

use super::args::ContextArgs;
use super::error::CliError;
use super::lookup;
use crate::engine::ModelSource;
use crate::engine::draft::{DraftOptions, DraftSource};

/// The drafts that answers take.
#[derive(Args)]
pub(super) struct DraftArgs {
    #[arg(long, value_name = "auto|off|mtp|ngram", value_parser = source, help = summary(), long_help = help(), hide_short_help = true)]
    draft: Option<DraftSource>,
    /// Propose at most N tokens for a step [default: as many as pay]
    #[arg(long, value_name = "N", hide_short_help = true)]
    draft_max: Option<usize>,
    /// Take the prediction layer from this file, which has it alone or with a model
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    draft_model: Option<PathBuf>,
}

/// The help of `--draft` in one sentence.
fn summary() -> String {
    format!(
        "Propose tokens ahead, and compute them in one step with the last one: mtp (by the prediction layer of the model's file), ngram (by what \
         followed the last tokens earlier in the text), auto (either where it is faster), or off [default: {}]",
        DraftSource::default().name()
    )
}

/// The long help of `--draft`.
fn help() -> String {
    let more = "The text is the same with and without. The number of drafts follows the share that is accepted and the times of steps on this \
                device; where no number pays, there are none. auto leaves the prediction layer off if the rest of the model or its context would \
                have no room beside it.";
    format!("{}\n\n{more}", summary())
}

/// Reads a source of drafts. llama.cpp's names of the same are known.
pub(super) fn source(text: &str) -> Result<DraftSource, String> {
    match text {
        "draft-mtp" => Ok(DraftSource::Mtp),
        "none" => Ok(DraftSource::Off),
        _ if text.starts_with("ngram-") => Ok(DraftSource::Ngram),
        _ if text.parse::<usize>().is_ok() => Err(format!(
            "expected auto, off, mtp or ngram; a number of drafts is given by --draft-max {text}"
        )),
        _ => text.parse(),
    }
}

impl DraftArgs {
    /// The drafts that are asked for: who names a file of the layer wants its drafts.
    pub(super) fn options(&self) -> DraftOptions {
        let source = match (self.draft, &self.draft_model) {
            (None, Some(_)) => DraftSource::Mtp,
            (source, _) => source.unwrap_or_default(),
        };
        DraftOptions {
            source,
            most: self.draft_max,
        }
    }

    /// The file of the prediction layer, if it is not the model's own.
    ///
    /// # Errors
    /// The error that no model has this name.
    pub(super) fn model(&self) -> Result<Option<ModelSource>, CliError> {
        self.draft_model.as_deref().map(lookup::source).transpose()
    }

    /// Has a session with this context take these drafts.
    ///
    /// # Errors
    /// The errors of [`model`](Self::model).
    pub(super) fn ask(&self, ctx: &mut ContextArgs) -> Result<(), CliError> {
        (ctx.draft, ctx.draft_model) = (self.options(), self.model()?);
        Ok(())
    }
}

/// The drafts of an answer, as `; 52 of 63 drafts accepted`; nothing where there were none.
pub(super) fn told(drafted: usize, accepted: usize) -> String {
    match drafted {
        0 => String::new(),
        _ => format!("; {accepted} of {drafted} drafts accepted"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_tell_the_default() {
        let name = DraftSource::default().name();
        let cli = include_str!("../../docs/cli.md");
        let row = |source: DraftSource| {
            let begin = format!("| `--draft {}` |", source.name());
            let found = cli.lines().find(|line| line.starts_with(&begin));
            found.expect("each has a row").ends_with("; the default |")
        };
        for source in DraftSource::ALL {
            assert_eq!(row(source), source.name() == name, "{source:?}");
        }
        let serving = include_str!("../../docs/serving.md");
        assert!(serving.contains(&format!("`--draft {name}`, the default,")));
        assert!(help().contains(&format!("[default: {name}]")));
    }
}
