//! `glimt batch`: a file of requests in OpenAI's batch format, answered as many at once as memory allows, and resumable.

mod input;
mod line;
mod order;
mod output;
mod progress;
mod work;

use std::path::{Path, PathBuf};

use clap::Args;

use super::batch_error::BatchError;
use super::error::CliError;
use super::interrupt;
use super::output::{complain, note};
use super::served::ServedArgs;
use crate::engine::{ModelSource, Serving};
use crate::files;
use crate::plural::count;
use crate::server::Batch as Answering;
use input::{Index, Requests, check};
use output::{Expected, Output};
use progress::Progress;
use work::{End, Outputs, Work};

const EXAMPLES: &str = "\
Examples:
  glimt batch requests.jsonl answers.jsonl
  glimt batch -m GLM-4.7-Flash-Q4_K_M.gguf -c 8192 --ordered requests.jsonl answers.jsonl
  glimt batch requests.jsonl answers.jsonl --errors errors.jsonl
  make-requests | glimt batch - - > answers.jsonl

A line of IN is {\"custom_id\": \"a\", \"method\": \"POST\", \"url\": \"/v1/chat/completions\", \"body\": {...}}, where the body is that \
of a request to glimt serve; url may also be /v1/completions. A request that is refused has its error in its line, and the exit \
code is 1 at the end. All lines and the names of models in them are checked before the model is loaded.

The same command again goes on where the last one ended: what is answered in OUT is kept, and the rest is computed. Ctrl-C ends a \
run so that nothing is lost but answers that were not complete.";

/// The note where a signal ends the process.
const GO_ON: &str = "what is answered is kept; the same command goes on with the rest";

/// Answer a file of requests in OpenAI's batch format
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Batch {
    /// The file of requests, a line of JSON each; - is standard input
    #[arg(value_name = "IN.jsonl")]
    input: PathBuf,
    /// The file of answers, to which is added what it lacks; - is standard output
    #[arg(value_name = "OUT.jsonl")]
    output: PathBuf,
    /// Write the errors of requests into this file; when it is removed, the same command asks them once more [default: OUT.jsonl]
    #[arg(long, value_name = "FILE")]
    errors: Option<PathBuf>,
    /// Write answers in the order of their requests
    #[arg(long)]
    ordered: bool,
    /// End with exit code 0 also if requests failed
    #[arg(long)]
    allow_errors: bool,
    /// Answer so many requests at once, 64 at most, as far as the cache has room for them [default: 64, and 8 on the CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(Serving::MOST)))]
    parallel: Option<u32>,
    #[command(flatten)]
    served: ServedArgs,
}

fn is_pipe(path: &Path) -> bool {
    path == Path::new("-")
}

impl Batch {
    pub(super) fn run(&self) -> Result<(), CliError> {
        let source = self.served.source()?;
        self.check_names()?;
        let mut index = match is_pipe(&self.input) {
            true => None,
            false => Some(check(&self.input)?),
        };
        let mut outputs = Outputs {
            answers: Output::open(&self.output)?,
            errors: self.errors.as_deref().map(Output::open).transpose()?,
        };
        let resumable = index.is_some() && outputs.answers.is_resumable();
        if !resumable {
            note(format_args!(
                "a run that ends early cannot be gone on with: that needs files for requests and answers"
            ));
        }
        if let Some(index) = index.as_ref().filter(|_| self.served.is_strict()) {
            index.check_models(&self.input, &self.served.name(&source))?;
        }
        let (kept, failed) = match &mut index {
            Some(index) => self.resume(index, &outputs, &source)?,
            None => {
                outputs.all().try_for_each(Output::check_new)?;
                (0, 0)
            }
        };
        let all = index.as_ref().map(Index::len);
        if all == Some(kept) {
            note(format_args!(
                "{} answered in {} already",
                count(kept, "request"),
                self.output.display()
            ));
            return self.judge(failed, kept);
        }
        interrupt::say_at_end(resumable.then_some(GO_ON));
        let requests = Requests::open(&self.input, index)?;
        let model = self.served.load(&source, self.parallel)?;
        let answering = Answering::start(model)?;
        let mut progress = Progress::new(all, kept);
        interrupt::begin_answer();
        let work = Work::new(&answering, &mut outputs, &mut progress, self.ordered);
        let worked = work.run(requests);
        progress.clear();
        let ended = self.ended(worked, &progress, resumable);
        let (idle, ended) = match (answering.end(), ended) {
            (Ok(idle), ended) => (idle, ended),
            (Err(error), Ok(())) => (true, Err(error.into())),
            (Err(_), Err(error)) => (true, Err(error)),
        };
        let ended = ended.and_then(|()| self.judge(failed + progress.errors(), progress.done()));
        interrupt::say_at_end(None);
        interrupt::end_answer();
        if !idle {
            // A driver that is taken down while it is used may crash.
            let code = ended.as_ref().map_or_else(CliError::exit_code, |()| 0);
            if let Err(error) = ended.as_ref().map_err(|error| error.to_string())
                && code == 1
            {
                complain(format_args!("glimt: error: {error}"));
            }
            interrupt::leave(i32::from(code));
        }
        ended
    }

    /// Tells how it has ended.
    fn ended(
        &self,
        worked: Result<End, CliError>,
        progress: &Progress,
        resumable: bool,
    ) -> Result<(), CliError> {
        match worked? {
            End::Done => note(format_args!("{}", progress.taken())),
            End::Interrupted => {
                let rest = if resumable { GO_ON } else { "the rest is lost" };
                note(format_args!("interrupted, {}; {rest}", progress.told()));
                return Err(CliError::Interrupted);
            }
            // The server's end gives the reason.
            End::Broken => note(format_args!("{}", progress.told())),
        }
        Ok(())
    }

    /// Judges whether the run is a success although `failed` requests failed.
    ///
    /// # Errors
    /// [`BatchError::Failed`].
    fn judge(&self, failed: usize, all: usize) -> Result<(), CliError> {
        if failed == 0 || self.allow_errors {
            return Ok(());
        }
        let path = self.errors.as_ref().unwrap_or(&self.output);
        let path = match is_pipe(path) {
            true => "standard output".to_owned(),
            false => path.display().to_string(),
        };
        Err(BatchError::Failed { failed, all, path }.into())
    }

    /// Checks that no file is named twice.
    fn check_names(&self) -> Result<(), BatchError> {
        let mut known = vec![];
        let all = [Some(&self.input), Some(&self.output), self.errors.as_ref()];
        for path in all.into_iter().flatten().filter(|path| !is_pipe(path)) {
            let own = path.canonicalize().unwrap_or_else(|_| path.to_owned());
            if !files::is_device(&own) && known.contains(&own) {
                let path = path.display().to_string();
                return Err(BatchError::SameFile { path });
            }
            known.push(own);
        }
        Ok(())
    }

    /// Notes which requests are answered; returns how many, and how many of them failed.
    fn resume(
        &self,
        index: &mut Index,
        outputs: &Outputs,
        source: &ModelSource,
    ) -> Result<(usize, usize), CliError> {
        let mut expected = Expected {
            index,
            input: self.input.display().to_string(),
            model: self.served.name(source),
            ordered: self.ordered,
        };
        let mut errors = 0;
        for output in outputs.all() {
            let found = output.resume(&mut expected)?;
            errors += found.errors;
            if found.cut {
                note(format_args!("an answer that was cut is computed again"));
            }
        }
        let kept = index.done();
        if self.ordered && !index.is_prefix() {
            return Err(BatchError::NotOrdered {
                path: self.output.display().to_string(),
                line: kept as u64,
                input: self.input.display().to_string(),
            }
            .into());
        }
        if kept > 0 {
            note(format_args!(
                "{} kept from before ({})",
                count(kept, "answer"),
                count(errors, "error")
            ));
        }
        Ok((kept, errors))
    }
}
