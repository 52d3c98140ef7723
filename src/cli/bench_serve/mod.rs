//! `glimt bench-serve`: how long the users of a server wait.

mod client;
mod load;
mod plan;
mod report;

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use serde_json::{Map, Value, json};

use super::bars::runs_bar;
use super::bench_serve_error::LoadError;
use super::error::CliError;
use super::output::{self, complain, note};
use super::serve::read_keys;
use crate::bench::Format;
use crate::plural::count;
use client::Client;
use load::{Beside, Came, Load};
use plan::{Random, Rate};
use report::Report;

const EXAMPLES: &str = "\
Examples:
  glimt bench-serve
  glimt bench-serve --url http://10.0.0.7:8000 --api-key-file keys.txt --rate 4 --requests 200
  glimt bench-serve --concurrency 32 --requests 32 --shared-prefix 4000 -p 16
  glimt bench-serve --concurrency 16 --requests 16 -n 1024 --join 8192 -o json
  glimt bench-serve --requests 31 --over 60 -p 256 -n 128 --beside 1 --beside-prompt 8192

The server runs already: glimt serve, or another with OpenAI's API. Prompts are random tokens, and answers have exactly -n tokens. \
The figures have the names of vLLM's bench serve: TTFT is the time from sending a request to its first token, TPOT the time per token \
after that, ITL the gap between two events of a stream, E2EL the time to the last token.

A request that is not counted comes first. It has the shared beginning, so that the server knows that when the others come.";

/// The most requests at once: each has a thread.
const MOST_AT_ONCE: i64 = 1024;
/// Tokens of the answers to long prompts.
const JOINED: usize = 2;
/// Tokens of the answer that is not counted.
const WARM_UP: usize = 8;

/// Measure how long the users of a running server wait, at a rate or all at once
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct BenchServe {
    /// Where the server is
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", value_parser = NonEmptyStringValueParser::new())]
    url: String,
    /// The key that the server asks for
    #[arg(long, value_name = "KEY", env = "GLIMT_API_KEY", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    api_key: Option<String>,
    /// A file whose first line is this key
    #[arg(long, value_name = "FILE", conflicts_with = "api_key")]
    api_key_file: Option<PathBuf>,
    /// The model's name in requests [default: the first that the server names]
    #[arg(long, value_name = "NAME", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    served_model_name: Option<String>,
    /// Requests in all
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    requests: u32,
    /// Requests per second, in random pauses (Poisson); inf sends all at once, as far as --concurrency lets them
    #[arg(long, value_name = "RATE", default_value = "inf", value_parser = plan::rate)]
    rate: Rate,
    /// Requests that are open at the same time at most, 1024 or fewer; the others are sent when one has ended [default: all, 1024 at most]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_AT_ONCE))]
    concurrency: Option<u32>,
    /// Tokens of each prompt of its own
    #[arg(short = 'p', long = "n-prompt", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    prompt: u32,
    /// Tokens of each answer
    #[arg(short = 'n', long = "n-gen", value_name = "N", default_value_t = 128, value_parser = clap::value_parser!(u32).range(1..))]
    generate: u32,
    /// Tokens that all prompts begin with, before their own
    #[arg(long, value_name = "N", default_value_t = 0)]
    shared_prefix: u32,
    /// When the others are being decoded, send a prompt of so many tokens beside them, and tell how long their gaps are meanwhile
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    join: Option<u32>,
    /// Spread the requests evenly over so many seconds, in place of --rate
    #[arg(long, value_name = "SECONDS", conflicts_with = "rate", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    over: Option<u32>,
    /// Have so many others send long prompts without a pause beside them, as long as --beside-prompt says; the figures are not theirs [default: 1 with --beside-prompt]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_AT_ONCE), requires = "beside_prompt")]
    beside: Option<u32>,
    /// Tokens of each long prompt that is sent beside the others
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    beside_prompt: Option<u32>,
    /// Seed of tokens and pauses: the same seed asks the same, which the server may still know [default: random]
    #[arg(long, value_name = "N")]
    seed: Option<u32>,
    /// Tokens that the model knows, of which prompts are drawn [default: what the server's /detokenize takes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    vocab: Option<u32>,
    /// Give up a request after so many seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 600, value_parser = clap::value_parser!(u32).range(1..))]
    timeout: u32,
    /// Format of the results on standard output
    #[arg(short = 'o', long, value_name = "FORMAT", default_value = "md")]
    output: Format,
}

impl BenchServe {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let name = self.served_model_name.as_deref();
        let timeout = Duration::from_secs(self.timeout.into());
        let limits = (self.concurrency() + self.beside() + 1, timeout);
        let client = Client::connect(&self.url, self.key()?, name, limits)?;
        self.check_context(&client)?;
        let vocabulary = match self.vocab {
            Some(vocabulary) => vocabulary,
            None => client.vocabulary()?,
        };
        let seed = self.seed.unwrap_or_else(random_seed);
        note(format_args!(
            "model: {}; {} of {} and {} each, seed {seed}",
            client.model,
            count(self.requests as usize, "request"),
            count((self.shared_prefix + self.prompt) as usize, "token"),
            count(self.generate as usize, "token"),
        ));
        let load = self.load(&client, vocabulary, seed)?;
        let bar = runs_bar("requests".to_owned(), self.requests.into());
        let came = load.run(&bar);
        bar.end();
        let came = came.map_err(CliError::Threads)?;
        let report = self.report(&client, seed, &came)?;
        output::print(&report.text(self.output))
    }

    fn key(&self) -> Result<Option<String>, CliError> {
        match &self.api_key_file {
            Some(path) => Ok(read_keys(path)?.into_iter().next()),
            None => Ok(self.api_key.clone()),
        }
    }

    fn concurrency(&self) -> usize {
        let most = self.requests.min(MOST_AT_ONCE as u32);
        self.concurrency.unwrap_or(most) as usize
    }

    /// The number of users who send long prompts beside the others.
    fn beside(&self) -> usize {
        let default = u32::from(self.beside_prompt.is_some());
        self.beside.unwrap_or(default) as usize
    }

    fn check_context(&self, client: &Client) -> Result<(), LoadError> {
        let usual = self.shared_prefix as usize + self.prompt as usize + self.generate as usize;
        let long = self.join.max(self.beside_prompt);
        let long = long.map_or(0, |tokens| tokens as usize + JOINED);
        let needed = usual.max(long);
        match client.context {
            Some(most) if needed > most => Err(LoadError::TooLong { needed, most }),
            _ => Ok(()),
        }
    }

    /// Makes all requests, and sends the one that is not counted.
    fn load<'a>(
        &self,
        client: &'a Client,
        vocabulary: u32,
        seed: u32,
    ) -> Result<Load<'a>, LoadError> {
        let mut random = Random::new(seed.into());
        let shared = random.tokens(self.shared_prefix as usize, vocabulary);
        let generate = self.generate as usize;
        let mut body = |generate: usize| {
            let own = random.tokens(self.prompt as usize, vocabulary);
            client.body(&[&*shared, &*own].concat(), generate)
        };
        let warm_up = body(generate.min(WARM_UP));
        let bodies: Vec<_> = (0..self.requests).map(|_| body(generate)).collect();
        let arrivals = match self.over {
            Some(seconds) => plan::spread(bodies.len(), Duration::from_secs(seconds.into())),
            None => random.arrivals(bodies.len(), self.rate),
        };
        let join = self.join.map(|tokens| {
            let prompt = random.tokens(tokens as usize, vocabulary);
            client.body(&prompt, JOINED)
        });
        let warmed = client.stream(&warm_up, &mut || ());
        warmed.map_err(|first| LoadError::NoneAnswered { asked: 1, first })?;
        Ok(Load {
            client,
            requests: arrivals.into_iter().zip(bodies).collect(),
            concurrency: self.concurrency(),
            join,
            beside: Beside {
                users: self.beside(),
                prompt: self.beside_prompt.unwrap_or(0) as usize,
                generate: JOINED,
                vocabulary,
                seed: seed.into(),
            },
        })
    }

    fn report(&self, client: &Client, seed: u32, came: &Came) -> Result<Report, LoadError> {
        let mut failed = came
            .answers
            .iter()
            .filter_map(|answer| answer.as_ref().err());
        let first = failed.next().cloned().unwrap_or_default();
        if came.answers.iter().all(Result::is_err) {
            let asked = came.answers.len();
            return Err(LoadError::NoneAnswered { asked, first });
        }
        if let Some(Err(problem)) = &came.join {
            return Err(LoadError::JoinFailed(problem.clone()));
        }
        if let Some(Err(problem)) = came.beside.iter().find(|answer| answer.is_err()) {
            complain(format_args!(
                "a long prompt beside the others failed: {problem}"
            ));
        }
        let report = Report::new(self.asked(client, seed), came);
        if report.failed > 0 {
            let failed = count(report.failed, "request");
            complain(format_args!("{failed} failed; the first: {first}"));
        }
        match report.joined_late() {
            true => Err(LoadError::JoinedLate),
            false => Ok(report),
        }
    }

    /// The flags and the server of a measurement, for a record.
    fn asked(&self, client: &Client, seed: u32) -> Map<String, Value> {
        let asked = json!({
            "test_time": jiff::Timestamp::now().to_string(),
            "base_url": self.url,
            "model_id": client.model,
            "num_prompts": self.requests,
            // Without a value it is all at once.
            "request_rate": self.rate,
            "max_concurrency": self.concurrency(),
            "n_prompt": self.prompt,
            "n_gen": self.generate,
            "shared_prefix": self.shared_prefix,
            "join": self.join,
            "over": self.over,
            "beside": self.beside(),
            "beside_prompt": self.beside_prompt,
            "seed": seed,
        });
        match asked {
            Value::Object(asked) => asked,
            _ => Map::new(),
        }
    }
}

fn random_seed() -> u32 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id()) as u32
}
