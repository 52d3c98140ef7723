//! The settings of a conversation, which flags give, and later /set.

use clap::builder::NonEmptyStringValueParser;
use clap::{Args, Command, FromArgMatches, ValueEnum};

use crate::cli::config;
use crate::cli::error::CliError;
use crate::cli::grammar::GrammarArgs;
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
    /// Generate at most N tokens for an answer; -1 is no limit [default: until the model ends its answer or the context is full]
    #[arg(short = 'n', long, alias = "predict", value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true)]
    pub(super) n_predict: Option<usize>,
    /// Let the model think before it answers, or not, or think with only the number of its tokens shown [default: what its chat
    /// template does, shown]
    #[arg(long, value_name = "WHEN")]
    pub(super) think: Option<Think>,
    /// End the thoughts after N tokens; the model then answers; -1 is no limit [default: none]
    #[arg(long, value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true, hide_short_help = true)]
    pub(super) think_limit: Option<usize>,
    /// End answers before this text; may be given several times
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub(super) stop: Vec<String>,
    #[command(flatten)]
    pub(super) grammar: GrammarArgs,
    #[command(flatten)]
    pub(super) sampling: SamplingArgs,
}

impl Settings {
    /// The switch for thinking that the template gets. A template without this switch gets none where thoughts are only hidden.
    pub(super) fn thinks(&self, template: Option<&ChatTemplate>) -> Option<bool> {
        let has_switch = template.is_none_or(ChatTemplate::supports_thinking);
        match self.think? {
            Think::Hide => has_switch.then_some(true),
            think => Some(think == Think::On),
        }
    }

    /// The settings that `/set` changes beside the sampling, with the `seed`.
    pub(super) fn line(&self, seed: u64) -> String {
        let most = |limit: Option<usize>| match limit {
            None | Some(usize::MAX) => "-1".to_owned(),
            Some(limit) => limit.to_string(),
        };
        let think = match self.think {
            None => "as the template does".to_owned(),
            Some(think) => format!("{think:?}").to_lowercase(),
        };
        let stops = self.stop.iter().map(|stop| format!("; stop: {stop:?}"));
        let flag = self.grammar.flag();
        let grammar = flag.map(|flag| format!("; {} is set", flag.trim_start_matches('-')));
        format!(
            "n-predict: {}; think: {think}; think-limit: {}; seed: {seed}{}{}",
            most(self.n_predict),
            most(self.think_limit),
            stops.collect::<String>(),
            grammar.unwrap_or_default(),
        )
    }

    /// The most tokens of an answer.
    pub(super) fn limit(&self) -> usize {
        self.n_predict.unwrap_or(usize::MAX)
    }

    /// Changes what `text` names, as `temp 0.5` or `--temp 0.5`. Two quotes take a text or a grammar away.
    ///
    /// # Errors
    /// [`CliError::Setting`] with what is wrong, in a sentence; then nothing is changed.
    pub(super) fn set(&mut self, text: &str) -> Result<(), CliError> {
        let (word, value) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let (name, value) = (word.trim_start_matches('-'), value.trim());
        // The names that ollama and Python's programs have.
        let hyphened = name.replace('_', "-");
        let name = match &*hyphened {
            "temperature" => "temp",
            "num-predict" | "max-tokens" => "n-predict",
            name => name,
        };
        let definition =
            Self::augment_args(Command::new("/set").no_binary_name(true)).disable_help_flag(true);
        let flag = config::flag(&definition, name);
        let is_short = word.starts_with('-') && !word.starts_with("--");
        let refused = |problem: String| Err(config::wrong("/set", problem));
        let Some(flag) = flag.filter(|_| !is_short) else {
            return refused(format!(
                "there is no setting {word}; names are ctx, n-predict, think, think-limit, stop, grammar, json-schema and the flags of sampling, \
                 such as temp"
            ));
        };
        let is_text = flag.is_allow_hyphen_values_set();
        if !is_text && value.contains(char::is_whitespace) {
            let problem = "more than a name and a value; change one setting at a time";
            return refused(problem.to_owned());
        }
        let mut changed = self.clone();
        match name {
            "stop" => changed.stop.clear(),
            "grammar" | "grammar-file" | "json-schema" => changed.grammar = GrammarArgs::default(),
            _ => {}
        }
        if !(is_text && value == "\"\"") {
            let word = match value {
                "" => format!("--{name}"),
                value => format!("--{name}={value}"),
            };
            let set = definition.try_get_matches_from([word]);
            let set = set.and_then(|matches| changed.update_from_arg_matches(&matches));
            if let Err(error) = set {
                return refused(config::told(&error));
            }
        }
        *self = changed;
        Ok(())
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
        settings.set("top_k 7").expect("it is a flag");
        settings
            .set("num_predict 9")
            .expect("it is ollama's name of a flag");
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
        settings.set("stop THE END").expect("it is a text");
        settings
            .set("grammar root ::= \"a\" | \"b\"")
            .expect("it is a text");
        let line = settings.line(3);
        assert!(
            line.ends_with("; stop: \"THE END\"; grammar is set"),
            "{line}"
        );
        settings
            .set("json-schema {\"type\": \"string\"}")
            .expect("it takes the place of the grammar");
        assert_eq!(settings.grammar.flag(), Some("--json-schema"));
        settings.set("json-schema \"\"").expect("it is taken away");
        settings.set("stop \"\"").expect("it is taken away");
        assert_eq!((settings.grammar.flag(), settings.stop.len()), (None, 0));
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
