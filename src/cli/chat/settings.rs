//! What of a conversation can be set by flags, and later by /set.

use clap::error::ErrorKind;
use clap::{Args, Command, FromArgMatches, ValueEnum};

use crate::cli::config;
use crate::cli::error::CliError;
use crate::cli::sampling::{self, SamplingArgs};
use crate::tokenizer::ChatTemplate;

/// Whether the model thinks, and whether that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Think {
    /// Think, and show it dimmed.
    On,
    /// Do not think.
    Off,
    /// Think, and show only how much.
    Hide,
}

/// How answers are generated.
#[derive(Args, Clone)]
pub(super) struct Settings {
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
    /// Generate at most N tokens for an answer; -1 is no limit [default: until the model ends its answer or the context is full]
    #[arg(short = 'n', long, alias = "predict", value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true)]
    pub(super) n_predict: Option<usize>,
    /// Let the model think before it answers, or not, or think with only the number of its tokens shown [default: what its chat
    /// template does, shown]
    #[arg(long, value_name = "WHEN")]
    pub(super) think: Option<Think>,
    /// End the thoughts after N tokens; the model then answers; -1 is no limit [default: none]
    #[arg(long, value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true)]
    pub(super) think_limit: Option<usize>,
}

impl Settings {
    /// What the template is told of thinking. One without a switch for it is told nothing of thoughts that are only hidden.
    pub(super) fn thinks(&self, template: Option<&ChatTemplate>) -> Option<bool> {
        let has_switch = template.is_none_or(ChatTemplate::supports_thinking);
        match self.think? {
            Think::Hide => has_switch.then_some(true),
            think => Some(think == Think::On),
        }
    }

    /// What `/set` changes beside the sampling, with the `seed`.
    pub(super) fn line(&self, seed: u64) -> String {
        let most = |limit: Option<usize>| match limit {
            None | Some(usize::MAX) => "-1".to_owned(),
            Some(limit) => limit.to_string(),
        };
        let think = match self.think {
            None => "as the template does".to_owned(),
            Some(think) => format!("{think:?}").to_lowercase(),
        };
        format!(
            "n-predict: {}; think: {think}; think-limit: {}; seed: {seed}",
            most(self.n_predict),
            most(self.think_limit)
        )
    }

    /// The most tokens of an answer.
    pub(super) fn limit(&self) -> usize {
        self.n_predict.unwrap_or(usize::MAX)
    }

    /// Changes what `text` names, as `temp 0.5` or `--temp 0.5`.
    ///
    /// # Errors
    /// [`CliError::Setting`] with what is wrong, in a sentence; then nothing is changed.
    pub(super) fn set(&mut self, text: &str) -> Result<(), CliError> {
        let words = text.split_whitespace().enumerate().map(|(i, word)| {
            let is_name = i == 0 && !word.starts_with('-');
            let dashes = if is_name { "--" } else { "" };
            format!("{dashes}{word}")
        });
        let definition =
            Self::augment_args(Command::new("/set").no_binary_name(true)).disable_help_flag(true);
        let name = text.split_whitespace().next().unwrap_or_default();
        let is_known = config::flag(&definition, name.trim_start_matches('-')).is_some();
        let set = definition.try_get_matches_from(words);
        let set = set.and_then(|matches| self.update_from_arg_matches(&matches));
        set.map_err(|error| {
            let problem = match error.kind() {
                ErrorKind::UnknownArgument if is_known => {
                    "more than a name and a value; change one setting at a time".to_owned()
                }
                ErrorKind::UnknownArgument => {
                    format!("there is no setting {name}; names are those of the flags of glimt chat, such as temp")
                }
                _ => config::told(&error),
            };
            config::wrong("/set", problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        settings: Settings,
    }

    #[test]
    fn settings_change_alone_and_wrong_ones_say_why() {
        let mut settings = Flags::parse_from(["chat", "--temp", "0.5", "-n", "9"]).settings;
        settings.set("top-k 7").expect("it is a flag");
        settings.set("--think hide").expect("it is a flag");
        assert_eq!((settings.sampling.temp, settings.limit()), (Some(0.5), 9));
        assert_eq!(
            (settings.think, settings.thinks(None)),
            (Some(Think::Hide), Some(true))
        );
        settings.set("temp 0").expect("it is a flag");
        assert_eq!(settings.sampling.temp, Some(0.0));
        settings.set("think-limit 5").expect("it is a flag");
        let line = settings.line(3);
        assert_eq!(line, "n-predict: 9; think: hide; think-limit: 5; seed: 3");
        settings.set("think-limit -1").expect("it is a flag");
        assert!(settings.line(3).contains("think-limit: -1;"));
        for (wrong, said) in [
            ("warmth 3", "no setting warmth"),
            ("temp", "temp"),
            ("temp 0 top-k 4", "one setting at a time"),
            ("temp 0 hot", "one setting at a time"),
            ("temp hot", "not a number"),
            ("temp -1", "0 or more"),
            ("think maybe", "maybe"),
        ] {
            let error = settings.set(wrong).expect_err("it is wrong").to_string();
            assert!(error.contains(said), "{error}");
            assert!(!error.contains('\n') && !error.contains("  "), "{error}");
        }
        assert_eq!(settings.sampling.temp, Some(0.0));
    }
}
