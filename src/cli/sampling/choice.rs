//! The choice of tokens for a model, from the flags of sampling and the recommendations.

use std::fmt;

use serde_json::{Map, Value};

use super::{HostArgs, SamplingArgs, Seed};
use crate::cli::error::CliError;
use crate::cli::text::unescaped;
use crate::engine::chooser::{Breakers, ChainSettings, Dry, Mirostat, Xtc};
use crate::engine::recommended::SamplingValues;
use crate::engine::{EngineError, Opened, Sampling};

/// The origin of a value.
#[derive(Clone, Copy, PartialEq)]
enum Origin {
    Flag,
    File,
    Publisher(&'static str),
    Default,
}

impl Origin {
    fn said(self) -> String {
        match self {
            Self::Flag => "as asked".to_owned(),
            Self::File => "recommended by the file".to_owned(),
            Self::Publisher(model) => format!("recommended for {model}"),
            Self::Default => "default".to_owned(),
        }
    }
}

/// A value that was settled for.
struct Setting {
    name: &'static str,
    value: Value,
    origin: Origin,
    /// Whether the setting has an effect.
    on: bool,
}

/// How tokens are chosen: what a device is told, and what only the host can do.
pub(in crate::cli) struct Choice {
    /// All settings; devices know those of `sampling` in it.
    pub(in crate::cli) chain: ChainSettings,
    /// The flags and keys of the file that ask for more than devices can do.
    pub(in crate::cli) host: Vec<&'static str>,
    settings: Vec<Setting>,
    random_seed: bool,
}

/// Settles for one value after another.
struct Picker<'a> {
    /// The recommendations, of which the first counts most.
    recommended: Vec<(Origin, &'a SamplingValues)>,
    settings: Vec<Setting>,
}

impl Picker<'_> {
    /// The value of a flag, else the first that is recommended, else `default`. It has no effect where it is `off`.
    fn pick<T: Copy + PartialEq + ToString>(
        &mut self,
        name: &'static str,
        flag: Option<T>,
        of: impl Fn(&SamplingValues) -> Option<T>,
        [default, off]: [T; 2],
    ) -> T {
        let asked = flag.map(|value| (Origin::Flag, value));
        let recommended = || {
            let mut all = self.recommended.iter();
            all.find_map(|(origin, values)| Some((*origin, of(values)?)))
        };
        let (origin, value) = asked
            .or_else(recommended)
            .unwrap_or((Origin::Default, default));
        self.settings.push(Setting {
            name,
            value: number(&value.to_string()),
            origin,
            on: value != off,
        });
        value
    }

    fn origin(&self, name: &str) -> Origin {
        let setting = self.settings.iter().find(|setting| setting.name == name);
        setting.map_or(Origin::Default, |setting| setting.origin)
    }
}

/// The number that is written so; the greatest count is written as -1.
fn number(text: &str) -> Value {
    if text == u32::MAX.to_string() {
        return Value::from(-1);
    }
    match text.parse::<i64>() {
        Ok(count) => Value::from(count),
        Err(_) => text.parse::<f64>().map_or(Value::Null, Value::from),
    }
}

impl Choice {
    /// The choice for the model that was opened; `no_thoughts` is whether it is told not to think.
    ///
    /// # Errors
    /// [`CliError::SamplerUnused`], or a bias on a token that the model does not have.
    pub(in crate::cli) fn new(
        args: &SamplingArgs,
        opened: &Opened,
        no_thoughts: bool,
    ) -> Result<Self, CliError> {
        let known = opened.recommended();
        let mut recommended = vec![(Origin::File, &known.file)];
        if let Some(publisher) = known.publisher {
            let values = publisher.values(no_thoughts);
            recommended.push((Origin::Publisher(publisher.model), values));
        }
        let mut picker = Picker {
            recommended,
            settings: vec![],
        };
        let (seed, random_seed) = match args.seed {
            Some(Seed::Is(seed)) => (seed, false),
            Some(Seed::Random) | None => (Sampling::DEFAULT.with_random_seed().seed, true),
        };
        let sampling = args.sampling(&mut picker, seed);
        let mut chain = ChainSettings::new(sampling);
        let vocab = opened.model().config().vocab_size;
        let foreign = |token: &u32| *token as usize >= vocab;
        let mut biased = args.host.logit_bias.iter().map(|(token, _)| *token);
        if let Some(token) = biased.find(foreign) {
            return Err(EngineError::UnknownToken { token, vocab }.into());
        }
        let host = args.host.settle(&mut picker, opened, &mut chain)?;
        if chain.mirostat.is_some()
            && let Some(flag) = args.unused_by_mirostat()
        {
            return Err(CliError::SamplerUnused { flag });
        }
        Ok(Self {
            chain,
            host,
            settings: picker.settings,
            random_seed,
        })
    }

    /// Whether the repeat penalty was asked for.
    pub(in crate::cli) fn is_penalty_asked(&self) -> bool {
        let asked =
            |setting: &Setting| setting.name == "repeat_penalty" && setting.origin == Origin::Flag;
        self.settings.iter().any(asked)
    }

    /// The seed, where one was asked for.
    pub(in crate::cli) fn asked_seed(&self) -> Option<u64> {
        (!self.random_seed).then_some(self.sampling().seed)
    }

    /// The sampling that devices compute.
    pub(in crate::cli) fn sampling(&self) -> &Sampling {
        &self.chain.sampling
    }

    /// Keeps the earlier random seed, if the present one is random, too.
    pub(in crate::cli) fn keep_seed(&mut self, before: &Self) {
        if self.random_seed && before.random_seed {
            self.chain.sampling.seed = before.chain.sampling.seed;
        }
    }

    /// The random seed, if tokens are drawn by one.
    pub(in crate::cli) fn drawn_seed(&self) -> Option<u64> {
        let draws = self.random_seed && self.sampling().temperature > 0.0;
        draws.then_some(self.sampling().seed)
    }

    /// Says what was settled for, and who chooses, as lines of `say`.
    pub(in crate::cli) fn tell(&self, say: fn(fmt::Arguments<'_>)) {
        say(format_args!("sampling: {}", self.line()));
        if !self.host.is_empty() {
            let why = self.host.join(", ");
            say(format_args!(
                "tokens are chosen on the host, one at a time: {why}"
            ));
        }
    }

    /// The settings that have an effect, by who recommends them.
    fn line(&self) -> String {
        let greedy = self.sampling().temperature <= 0.0;
        let mirostat = self.chain.mirostat.is_some();
        let cuts = ["top_k", "top_p", "min_p"];
        let penalties = ["repeat_penalty", "presence_penalty", "frequency_penalty"];
        let has_effect = |setting: &&Setting| {
            let is_cut = (greedy || mirostat) && cuts.contains(&setting.name);
            let is_penalty = mirostat && penalties.contains(&setting.name);
            setting.on && !is_cut && !is_penalty
        };
        let mut groups: Vec<(Origin, Vec<String>)> = vec![];
        for setting in self.settings.iter().filter(has_effect) {
            let text = match setting.name {
                "temperature" if greedy => "greedy".to_owned(),
                name => format!("{} {}", name.replace('_', "-"), setting.value),
            };
            match groups
                .iter_mut()
                .find(|(origin, _)| *origin == setting.origin)
            {
                Some((_, texts)) => texts.push(text),
                None => groups.push((setting.origin, vec![text])),
            }
        }
        let groups = groups
            .iter()
            .map(|(origin, texts)| format!("{} ({})", texts.join(", "), origin.said()));
        groups.collect::<Vec<_>>().join("; ")
    }

    /// The settings by name.
    pub(in crate::cli) fn json(&self) -> Map<String, Value> {
        let settings = self.settings.iter();
        settings
            .map(|setting| (setting.name.to_owned(), setting.value.clone()))
            .collect()
    }
}

impl SamplingArgs {
    /// The sampling that devices can compute.
    fn sampling(&self, picker: &mut Picker<'_>, seed: u64) -> Sampling {
        // Greedy is always something, and called so.
        let default = Sampling::DEFAULT;
        let values = [default.temperature, -1.0];
        let temperature = picker.pick("temperature", self.temp, |v| v.temperature, values);
        // Greedy stays the plain argmax, whatever is recommended for draws.
        let penalty = |v: &SamplingValues| v.repeat_penalty.filter(|_| temperature > 0.0);
        let (presence, frequency) = (self.presence_penalty, self.frequency_penalty);
        let last_n = self.repeat_last_n;
        Sampling {
            temperature,
            top_k: picker.pick("top_k", self.top_k, |v| v.top_k, [default.top_k, 0]),
            top_p: picker.pick("top_p", self.top_p, |v| v.top_p, [default.top_p, 1.0]),
            min_p: picker.pick("min_p", self.min_p, |v| v.min_p, [default.min_p, 0.0]),
            repeat_penalty: picker.pick("repeat_penalty", self.repeat_penalty, penalty, [1.0; 2]),
            presence_penalty: picker.pick("presence_penalty", presence, |_| None, [0.0; 2]),
            frequency_penalty: picker.pick("frequency_penalty", frequency, |_| None, [0.0; 2]),
            repeat_last_n: picker.pick("repeat_last_n", last_n, |v| v.repeat_last_n, [64; 2]),
            seed,
        }
    }

    /// A flag given whose place Mirostat takes.
    fn unused_by_mirostat(&self) -> Option<&'static str> {
        let host = &self.host;
        let flags = [
            (self.top_k.is_some(), "--top-k"),
            (self.top_p.is_some(), "--top-p"),
            (self.min_p.is_some(), "--min-p"),
            (self.repeat_penalty.is_some(), "--repeat-penalty"),
            (self.presence_penalty.is_some(), "--presence-penalty"),
            (self.frequency_penalty.is_some(), "--frequency-penalty"),
            (host.typical.is_some(), "--typical"),
            (host.dry_multiplier.is_some(), "--dry-multiplier"),
            (host.xtc_probability.is_some(), "--xtc-probability"),
        ];
        let given = flags.into_iter().find(|(given, _)| *given);
        given.map(|(_, flag)| flag)
    }
}

impl HostArgs {
    /// Adds to `chain` what only the host can do; returns what asks for it.
    fn settle(
        &self,
        picker: &mut Picker<'_>,
        opened: &Opened,
        chain: &mut ChainSettings,
    ) -> Result<Vec<&'static str>, CliError> {
        let mut why = vec![];
        if !self.logit_bias.is_empty() {
            chain.logit_bias = self.logit_bias.as_slice().into();
            let of = |(token, bias): &(u32, f32)| format!("{token}{bias:+}");
            let biases: Vec<String> = self.logit_bias.iter().map(of).collect();
            picker.settings.push(Setting {
                name: "logit_bias",
                value: biases.into(),
                origin: Origin::Flag,
                on: true,
            });
        }
        chain.dry = self.dry(picker, opened)?;
        if chain.dry.is_some() {
            why.push("--dry-multiplier");
        }
        if self.typical.is_some_and(|p| p < 1.0) {
            chain.typical_p = picker.pick("typical_p", self.typical, |_| None, [1.0; 2]);
            why.push("--typical");
        }
        chain.xtc = self.xtc(picker);
        if chain.xtc.is_some() {
            why.push(match picker.origin("xtc_probability") {
                Origin::Flag => "--xtc-probability",
                _ => "general.sampling.xtc_probability",
            });
        }
        chain.mirostat = self.mirostat(picker);
        if chain.mirostat.is_some() {
            why.push(match picker.origin("mirostat") {
                Origin::Flag => "--mirostat",
                _ => "general.sampling.mirostat",
            });
        }
        // The device adds some biases by itself.
        if why.is_empty() && chain.on_device().is_none() {
            why.push("--logit-bias");
        }
        Ok(why)
    }

    fn dry(&self, picker: &mut Picker<'_>, opened: &Opened) -> Result<Option<Dry>, CliError> {
        let Some(multiplier) = self.dry_multiplier.filter(|multiplier| *multiplier > 0.0) else {
            return Ok(None);
        };
        picker.pick("dry_multiplier", Some(multiplier), |_| None, [0.0; 2]);
        let base = picker.pick("dry_base", self.dry_base, |_| None, [Dry::BASE, 0.0]);
        let allowed = self.dry_allowed_length;
        let allowed = picker.pick(
            "dry_allowed_length",
            allowed,
            |_| None,
            [Dry::ALLOWED_LENGTH; 2],
        );
        let last_n = self.dry_penalty_last_n;
        let last_n = picker.pick("dry_penalty_last_n", last_n, |_| None, [Dry::LAST_N; 2]);
        let breakers: Vec<String> = match self.dry_sequence_breaker.as_slice() {
            [] => Dry::BREAKERS.map(str::to_owned).to_vec(),
            [none] if none == "none" => vec![],
            given => given.iter().map(|text| unescaped(text)).collect(),
        };
        let breakers = Breakers::new(opened.tokenizer(), &breakers)?;
        Ok(Some(Dry {
            multiplier,
            base,
            allowed_length: allowed as usize,
            last_n,
            breakers,
        }))
    }

    fn xtc(&self, picker: &mut Picker<'_>) -> Option<Xtc> {
        let of = |v: &SamplingValues| v.xtc_probability;
        let probability = picker.pick("xtc_probability", self.xtc_probability, of, [0.0; 2]);
        let of = |v: &SamplingValues| v.xtc_threshold;
        let threshold = picker.pick(
            "xtc_threshold",
            self.xtc_threshold,
            of,
            [Xtc::THRESHOLD, -1.0],
        );
        let on = probability > 0.0 && threshold <= 0.5;
        if !on {
            picker.settings.retain(|s| !s.name.starts_with("xtc"));
        }
        on.then_some(Xtc {
            probability,
            threshold,
        })
    }

    fn mirostat(&self, picker: &mut Picker<'_>) -> Option<Mirostat> {
        let version = picker.pick("mirostat", self.mirostat, |v| v.mirostat, [0; 2]);
        let of = |v: &SamplingValues| v.mirostat_tau;
        let tau = picker.pick("mirostat_ent", self.mirostat_ent, of, [Mirostat::TAU, 0.0]);
        let of = |v: &SamplingValues| v.mirostat_eta;
        let eta = picker.pick("mirostat_lr", self.mirostat_lr, of, [Mirostat::ETA, 0.0]);
        if version == 0 {
            picker.settings.retain(|s| !s.name.starts_with("mirostat"));
        }
        (version == 2).then_some(Mirostat { tau, eta })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_were_given() {
        assert_eq!(number("0.95").to_string(), "0.95");
        assert_eq!(number("1").to_string(), "1");
        assert_eq!(number(&u32::MAX.to_string()).to_string(), "-1");
    }

    #[test]
    fn flags_go_before_the_file_and_that_before_the_publisher() {
        let file = SamplingValues {
            top_k: Some(7),
            ..SamplingValues::default()
        };
        let publisher = SamplingValues {
            temperature: Some(1.0),
            top_k: Some(20),
            ..SamplingValues::default()
        };
        let mut picker = Picker {
            recommended: vec![(Origin::File, &file), (Origin::Publisher("M"), &publisher)],
            settings: vec![],
        };
        let t = picker.pick("temperature", None, |v| v.temperature, [0.8, -1.0]);
        let k = picker.pick("top_k", None, |v| v.top_k, [40, 0]);
        let p = picker.pick("top_p", Some(0.5), |v| v.top_p, [0.95, 1.0]);
        let m = picker.pick("min_p", None, |v| v.min_p, [0.05, 0.0]);
        assert_eq!((t, k, p, m), (1.0, 7, 0.5, 0.05));
        let choice = Choice {
            chain: ChainSettings::new(Sampling {
                temperature: 1.0,
                ..Sampling::GREEDY
            }),
            host: vec![],
            settings: picker.settings,
            random_seed: false,
        };
        assert_eq!(
            choice.line(),
            "temperature 1 (recommended for M); top-k 7 (recommended by the file); top-p 0.5 (as asked); min-p 0.05 (default)"
        );
    }
}
