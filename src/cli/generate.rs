//! `glimt generate`: a prompt in, the answer out, token by token.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::answer::Answer;
use super::args::{ContextArgs, EngineArgs, ModelArgs, SaidArgs, ShareArgs, on_or_off};
use super::draft::{self, DraftArgs};
use super::error::CliError;
use super::grammar::GrammarArgs;
use super::guard::guarded;
use super::output::{self, detail, note};
use super::resumed::{Prompt, Resumed};
use super::run::{self, Ran};
use super::sampling::{self, Choice, SamplingArgs};
use super::sink::Sink;
use super::text::{self, PromptArgs};
use super::told::{self, Report};
use super::{interrupt, load};
use crate::engine::chooser::{Chain, Chooser, Constrained, Grammar, LogProbs};
use crate::engine::{Engine, EngineError, GenerateStats, Opened, Session, SessionFile, StopReason};
use crate::gpu::wait::Wait;
use crate::plural::count;
use crate::tokenizer::{ChatText, Message};

const EXAMPLES: &str = "\
Examples:
  glimt generate --raw \"Once upon a time there was a king, and one day the king said:\"
  glimt generate --raw --temp 0 -n 100 \"Once upon a time\"
  glimt generate -m GLM-4.7-Flash-Q4_K_M.gguf --think off -f question.txt > answer.txt
  git diff | glimt generate -m GLM-4.7-Flash-Q4_K_M.gguf \"Write a commit message for this:\"

Standard output receives only the answer. The thoughts of a model that thinks go to standard error, dimmed, and so \
does the last line with the token counts and rates. With --raw nothing is told apart: all text is answer. The built-in \
model seldom ends a story by itself, so its answers end with a sentence before the context is full. Ctrl-C stops \
the answer (exit code 130), a second Ctrl-C stops at once.";

/// Answer a prompt, streaming the answer to standard output
#[derive(Args)]
#[command(after_help = EXAMPLES, mut_arg("text", prompt_argument))]
pub(super) struct Generate {
    #[command(flatten)]
    prompt: PromptArgs,
    /// Generate at most N tokens; -1 is no limit [default: until the model ends its answer or the context is full]
    #[arg(
        short = 'n',
        long,
        alias = "predict",
        value_name = "N",
        value_parser = sampling::limit,
        allow_negative_numbers = true
    )]
    n_predict: Option<usize>,
    #[command(flatten)]
    model: ModelArgs,
    /// System prompt
    ///
    /// The model's chat template puts it before the prompt.
    #[arg(
        long,
        value_name = "TEXT",
        conflicts_with = "raw",
        allow_hyphen_values = true
    )]
    system: Option<String>,
    /// Go on from the conversation in this file, and keep it there; a file that does not exist is begun
    #[arg(long, value_name = "FILE", hide_short_help = true)]
    session: Option<PathBuf>,
    /// Let the model think before it answers, or not [default: what its chat template does]
    #[arg(long, value_name = "on|off", value_parser = on_or_off(), hide_possible_values = true, conflicts_with = "raw")]
    think: Option<bool>,
    /// End the thoughts after N tokens; the model then answers; -1 is no limit [default: none]
    #[arg(long, value_name = "N", value_parser = sampling::limit, allow_negative_numbers = true, conflicts_with = "raw", hide_short_help = true)]
    think_limit: Option<usize>,
    /// Continue the prompt as it is; use no chat template
    #[arg(long)]
    raw: bool,
    /// End the answer before this text; may be repeated
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    stop: Vec<String>,
    #[command(flatten)]
    grammar: GrammarArgs,
    /// Print one JSON object at the end: text, reasoning, tokens, times, sampling
    #[arg(long, hide_short_help = true)]
    json: bool,
    /// With --json: tell each token with its log-probability and the N best of the model, before any sampler
    #[arg(long, value_name = "N", requires = "json", hide_short_help = true)]
    logprobs: Option<usize>,
    /// Break lines of an answer in a terminal wherever they end there, and not between words
    #[arg(long, hide_short_help = true)]
    no_wrap: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    ctx: ContextArgs,
    #[command(flatten)]
    said: SaidArgs,
    #[command(flatten)]
    draft: DraftArgs,
    #[command(flatten)]
    share: ShareArgs,
    #[command(flatten)]
    engine: EngineArgs,
}

fn prompt_argument(argument: clap::Arg) -> clap::Arg {
    argument
        .value_name("PROMPT")
        .help("The prompt; - is standard input")
        .long_help(
            "The prompt; - is standard input, and what is piped there is added to another prompt",
        )
}

/// Why the callback ended the answer, where the session only knows that it did.
enum Ended {
    StopText,
    ThoughtLimit,
}

impl Generate {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let inputs = self.prompt.inputs()?;
        let may_think = !self.raw && self.think != Some(false);
        let mut ctx = self.ctx.for_answers(&self.model.source()?, may_think);
        ctx.parse_special = self.said.parse_special;
        ctx.cpu_share = self.share.asked();
        self.draft.ask(&mut ctx)?;
        let opened = load::open(&self.model, &self.engine, &ctx)?;
        let prompt = text::read_all(&inputs, text::most_bytes(opened.n_ctx()))?;
        let rendered = (!self.raw).then(|| self.render(&opened, &prompt));
        let rendered = rendered.transpose()?;
        let tokens = match &rendered {
            Some(text) => opened.tokenizer().encode_said(text)?,
            None => opened.tokenizer().encode(&prompt, true)?,
        };
        let rendered = rendered.map(ChatText::into_string);
        // Before the weights, which may take many seconds to load.
        opened.check_tokens(&tokens, 0)?;
        let choice = self.choice(&opened)?;
        let grammar = self.grammar.grammar(&opened)?;
        if let Some(path) = &self.session {
            SessionFile::check(path, &opened)?;
        }
        let engine = load::weights(opened)?;
        detail(format_args!("{}", load::context(&engine)));
        choice.tell(detail);
        let Some(path) = &self.session else {
            let begun = (engine.session().wait()?, tokens, None);
            return self.answer(begun, rendered.as_deref(), &choice, grammar);
        };
        let mut kept = Resumed::open(path, &engine, self.raw)?;
        let system = self.system.as_deref();
        let Prompt { tokens, rendered } = kept.prompt(&engine, system, &prompt, self.think)?;
        let (session, left) = kept.begin(&engine, &tokens)?;
        let begun = (session, left, Some(kept));
        self.answer(begun, rendered.as_deref(), &choice, grammar)
    }

    /// Answers a prompt, given by its session and the tokens left to evaluate, and says what it took.
    fn answer(
        &self,
        (session, mut tokens, kept): (Session, Vec<u32>, Option<Resumed>),
        rendered: Option<&str>,
        choice: &Choice,
        grammar: Option<Grammar>,
    ) -> Result<(), CliError> {
        let engine = &session.engine().clone();
        let sink = match self.json {
            true => Sink::kept(),
            false => Sink::streamed(!self.no_wrap),
        };
        let limit = self.n_predict.unwrap_or(usize::MAX);
        let mut answer = Answer::new(engine, &self.stop, rendered, sink);
        answer.think_limit = self.think_limit;
        let mut turn = Turn {
            session,
            kept,
            choice,
            chooser: self.chooser(choice, grammar, &answer),
            answer,
            ended: None,
        };
        if let Some(close) = turn.answer.closing_mark()
            && turn.answer.is_over_think_limit()
        {
            // No thoughts at all: they end where the template has opened them.
            tokens.push(close);
            turn.end_thoughts(close)?;
        }
        let stats = turn.thoughts_and_answer(&tokens, limit)?;
        // The answer is shown also where it cannot be saved.
        let save = |kept: Resumed| kept.end(&mut turn.session, &self.stop);
        let saved = turn.kept.map_or(Ok(()), save);
        let (ended, mut chooser) = (turn.ended, turn.chooser);
        let thinking = turn.answer.is_thinking();
        let thought = turn.answer.thought_tokens() > 0;
        let (sink, text) = turn.answer.finish(ended.is_some())?;
        let interrupted = interrupt::requested();
        let complete = chooser
            .as_mut()
            .and_then(|host| is_complete(host.inner(), engine, stats.stop, &text));
        if self.json {
            let log_probs = chooser.as_ref().and_then(LogProbs::kept);
            let report = Report::new(
                engine,
                sink,
                &stats,
                interrupted,
                complete,
                choice,
                log_probs,
            );
            output::json(&report)?;
        }
        let why = match ended {
            _ if interrupted => "interrupted".to_owned(),
            Some(_) => "stop text".to_owned(),
            None => why(stats.stop, limit, engine.n_ctx()),
        };
        let (rates, seed) = (rates(&stats, interrupted), choice.drawn_seed());
        let seed = seed.map_or_else(String::new, |seed| format!("; seed {seed}"));
        note(format_args!("{rates}{seed}"));
        detail(format_args!("stopped: {why}"));
        saved?;
        if interrupted {
            return Err(CliError::Interrupted);
        }
        let no_answer = match stats.stop {
            StopReason::Limit | StopReason::ContextFull => thinking || thought && text.is_empty(),
            StopReason::StopToken | StopReason::SentenceEnd => thinking,
            StopReason::Caller => false,
        };
        match complete {
            _ if no_answer => Err(CliError::StillThinking { why }),
            Some(false) => Err(cut(stats.stop, why)),
            _ => Ok(()),
        }
    }

    /// How tokens are chosen.
    fn choice(&self, opened: &Opened) -> Result<Choice, CliError> {
        let no_thoughts = self.think == Some(false);
        let mut choice = Choice::new(&self.sampling, opened, no_thoughts)?;
        choice.host.extend(self.logprobs.map(|_| "--logprobs"));
        choice.host.extend(self.grammar.flag());
        Ok(choice)
    }

    /// The chooser on the host, where there must be one.
    fn chooser(
        &self,
        choice: &Choice,
        grammar: Option<Grammar>,
        answer: &Answer<'_>,
    ) -> Option<LogProbs<Constrained<Chain>>> {
        if choice.host.is_empty() {
            return None;
        }
        let chain = Chain::new(choice.chain.clone());
        // Thoughts are free.
        let end = answer.closing_mark().filter(|_| answer.is_thinking());
        let constrained = Constrained::new(chain, grammar, end);
        Some(LogProbs::new(constrained, self.logprobs))
    }

    /// The prompt in the model's chat template.
    fn render(&self, opened: &Opened, prompt: &str) -> Result<ChatText, CliError> {
        let system = self.system.iter().map(|text| Message::new("system", text));
        let messages: Vec<_> = system.chain([Message::new("user", prompt)]).collect();
        let rendered = || opened.render_chat(&messages, self.think);
        Ok(guarded(rendered)?)
    }
}

/// An answer while it is generated.
struct Turn<'a> {
    session: Session,
    /// The file that it is kept in, if any.
    kept: Option<Resumed>,
    choice: &'a Choice,
    /// The chooser on the host, if the device cannot choose.
    chooser: Option<LogProbs<Constrained<Chain>>>,
    answer: Answer<'a>,
    ended: Option<Ended>,
}

impl Turn<'_> {
    /// Generates thoughts and answer: where the thoughts are as many as they may be, the model goes on as if it had ended them itself.
    fn thoughts_and_answer(
        &mut self,
        tokens: &[u32],
        limit: usize,
    ) -> Result<GenerateStats, CliError> {
        let mut stats = self.generate(tokens, limit)?;
        let (Some(Ended::ThoughtLimit), Some(close)) = (&self.ended, self.answer.closing_mark())
        else {
            return Ok(stats);
        };
        self.ended = None;
        let left = limit.saturating_sub(stats.generated + 1);
        // The mark that ends the thoughts takes a place of the context, and so does a token of the answer.
        if left == 0 {
            stats.stop = StopReason::Limit;
        } else if self.session.engine().n_ctx() < self.session.position() + 2 {
            stats.stop = StopReason::ContextFull;
        } else {
            self.end_thoughts(close)?;
            stats = joined(&stats, &self.generate(&[close], left)?);
        }
        Ok(stats)
    }

    /// Ends the thoughts with their closing mark, as if the model had generated it.
    fn end_thoughts(&mut self, mark: u32) -> Result<(), CliError> {
        self.answer.token(mark)?;
        journal(&mut self.kept, mark)?;
        if let Some(host) = &mut self.chooser {
            host.accept(mark).map_err(EngineError::from)?;
        }
        Ok(())
    }

    /// Evaluates `tokens` and takes up to `limit` tokens of the answer.
    fn generate(&mut self, tokens: &[u32], limit: usize) -> Result<GenerateStats, CliError> {
        let (kept, answer) = (&mut self.kept, &mut self.answer);
        let take = &mut |token| {
            journal(kept, token)?;
            Ok(match answer.token(token)? {
                true => Some(Ended::StopText),
                false => answer.is_over_think_limit().then_some(Ended::ThoughtLimit),
            })
        };
        let host = self.chooser.as_mut().map(|host| host as &mut dyn Chooser);
        let how = (&self.choice.chain, host);
        let ran = run::run(&mut self.session, tokens, how, limit, take);
        if matches!(ran, Err(CliError::Engine(_))) {
            // The text of the answer so far ends with a line break, so that the error has a line of its own.
            self.answer.end_line()?;
        }
        let Ran { stats, ended } = ran?;
        self.ended = ended;
        Ok(stats)
    }
}

/// Keeps a token of the answer, if it is to be kept.
fn journal(kept: &mut Option<Resumed>, token: u32) -> Result<(), CliError> {
    kept.as_mut().map_or(Ok(()), |kept| kept.journal(token))
}

/// Whether an answer is all of a text of its grammar; `None` without one. `text` is what of it was shown.
fn is_complete(
    chooser: &mut Constrained<Chain>,
    engine: &Engine,
    stop: StopReason,
    text: &str,
) -> Option<bool> {
    match stop {
        StopReason::StopToken => chooser.may_end().map(|_| true),
        // The stop text itself is not shown.
        StopReason::Caller => {
            let tokens = engine.tokenizer().encode(text, false);
            let grammar = chooser.grammar()?;
            Some(tokens.is_ok_and(|tokens| grammar.accepts(&tokens)))
        }
        StopReason::SentenceEnd | StopReason::Limit | StopReason::ContextFull => chooser.may_end(),
    }
}

/// The error of an answer that its grammar does not end.
fn cut(stop: StopReason, why: String) -> CliError {
    let advice = match stop {
        StopReason::Caller => "leave out that --stop, or end the grammar before it",
        _ => "give it more room (-n, -c), or a grammar with shorter answers",
    };
    CliError::CutAnswer { why, advice }
}

/// The figures of an answer whose thoughts were ended: `thoughts`, and what came `after` the token that ended them.
fn joined(thoughts: &GenerateStats, after: &GenerateStats) -> GenerateStats {
    GenerateStats {
        generated: thoughts.generated + after.prompt_tokens + after.generated,
        steps: thoughts.steps + after.prompt_tokens + after.steps,
        generate_time: thoughts.generate_time + after.prompt_time + after.generate_time,
        drafted: thoughts.drafted + after.drafted,
        accepted: thoughts.accepted + after.accepted,
        stop: after.stop,
        ..*thoughts
    }
}

/// Why the session ended the answer.
fn why(stop: StopReason, limit: usize, n_ctx: usize) -> String {
    match stop {
        StopReason::StopToken => "end of text".to_owned(),
        StopReason::SentenceEnd => format!(
            "end of a sentence, since the context of {} is nearly full",
            count(n_ctx, "token")
        ),
        StopReason::Limit => format!("limit of {}", count(limit, "token")),
        StopReason::ContextFull => format!("context of {} is full", count(n_ctx, "token")),
        StopReason::Caller => "caller".to_owned(),
    }
}

/// `prompt: 16 tokens, 123/s; generated: 87 tokens, 55.5/s`. An end that is not the model's own stands in brackets. The line fits 80 columns, unless there were
/// drafts.
fn rates(stats: &GenerateStats, interrupted: bool) -> String {
    let end = match stats.stop {
        StopReason::StopToken | StopReason::SentenceEnd if !interrupted => String::new(),
        stop => format!(" ({})", told::stopped(stop, interrupted)),
    };
    format!(
        "prompt: {}{}; generated: {}{end}{}{}",
        count(stats.prompt_tokens, "token"),
        rate(stats.prompt_tokens, stats.prompt_time),
        count(stats.generated, "token"),
        rate(stats.steps, stats.generate_time),
        draft::told(stats.drafted, stats.accepted),
    )
}

/// Tokens in a second, as `, 55.5/s`. It is empty if there were no tokens or no time was measured.
fn rate(tokens: usize, time: Duration) -> String {
    match tokens as f64 / time.as_secs_f64() {
        rate if !rate.is_normal() => String::new(),
        rate if rate < 100.0 => format!(", {rate:.1}/s"),
        rate => format!(", {rate:.0}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_statistics_line_leaves_out_rates_that_mean_nothing() {
        let mut stats = GenerateStats {
            prompt_tokens: 16,
            prompt_time: Duration::from_millis(500),
            generated: 9,
            steps: 8,
            generate_time: Duration::from_secs(4),
            drafted: 0,
            accepted: 0,
            stop: StopReason::Limit,
        };
        assert_eq!(
            rates(&stats, false),
            "prompt: 16 tokens, 32.0/s; generated: 9 tokens (limit), 2.0/s"
        );
        (stats.drafted, stats.accepted) = (7, 4);
        assert_eq!(
            rates(&stats, false),
            "prompt: 16 tokens, 32.0/s; generated: 9 tokens (limit), 2.0/s; 4 of 7 drafts accepted"
        );
        (stats.drafted, stats.stop) = (0, StopReason::StopToken);
        (stats.prompt_tokens, stats.generated, stats.steps) = (4096, 1, 0);
        stats.generate_time = Duration::ZERO;
        assert_eq!(
            rates(&stats, false),
            "prompt: 4096 tokens, 8192/s; generated: 1 token"
        );
        assert_eq!(
            rates(&stats, true),
            "prompt: 4096 tokens, 8192/s; generated: 1 token (interrupted)"
        );
    }
}
