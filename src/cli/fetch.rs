//! Fetching a model with a progress bar.

use std::path::PathBuf;
use std::sync::Arc;

use super::bars::{Bar, progress_bar};
use super::error::CliError;
use super::output::{bytes, complain, note};
use super::{ask, interrupt};
use crate::engine::{self, EngineOptions, Memory, Place, Site};
use crate::gguf::Gguf;
use crate::gpu::wait::Wait;
use crate::hub::{self, Event, Hub, Name, Offer, Other};
use crate::models;
use crate::plural::{count, named};
use crate::quant::GgmlType;

/// The progress that is shown while files come.
struct Shown {
    bar: Option<Bar>,
    /// Bytes of the file that comes.
    bytes: u64,
}

impl Shown {
    fn new() -> Self {
        Self {
            bar: None,
            bytes: 0,
        }
    }

    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::File { name, bytes } => {
                self.bar = None;
                note(format_args!("{name}, {}", super::output::bytes(*bytes)));
                self.bar = Some(progress_bar("fetching"));
                self.bytes = *bytes;
            }
            Event::Fetched(bytes) => {
                let of = self.bytes;
                self.at("fetching", *bytes, of);
            }
            Event::Checked { bytes, of } => self.at("checking", *bytes, *of),
            Event::Again { why, wait } => {
                let wait = wait.as_secs_f64();
                complain(format_args!("{}; trying again in {wait:.1} s", why.cause()));
            }
            Event::StartOver { file, why } => {
                complain(format_args!("{file} is fetched from its beginning: {why}"));
            }
            Event::Waiting(file) => complain(format_args!(
                "another program fetches {file}, waiting for that"
            )),
        }
    }

    /// Shows how much is fetched or checked.
    fn at(&self, what: &str, done: u64, of: u64) {
        if let Some(bar) = &self.bar {
            bar.call(what);
            bar.at_of(done, of);
        }
    }
}

/// Asks whether to fetch `missing` bytes, and tells before how the model would run here.
pub(super) fn may(hub: &Hub<'_>, offer: &Offer, missing: u64) -> Result<bool, CliError> {
    if missing == 0 {
        // It is here, and may be linked anew.
        return Ok(true);
    }
    let mut shown = Shown::new();
    let described = hub.described(offer, &mut |event| shown.take(&event));
    let verdict = described.map(|gguf| gguf.and_then(verdict));
    match verdict {
        Ok(Some(Verdict::Runs(how))) => note(format_args!("{how}")),
        Ok(Some(Verdict::Refused(why))) => {
            note(format_args!("it would be refused here: {why}"));
            if let Some(other) = smaller(hub, offer, &mut shown) {
                let repo = &offer.repo;
                note(format_args!("{repo} has {other}, which would run here"));
            }
        }
        Ok(None) => {}
        // Fetching the file will tell the error to the user.
        Err(error) => log::info!("how the model would run is not known: {error}"),
    }
    drop(shown);
    ask::yes(&format!("Fetch {}?", bytes(missing)))
}

/// The largest model of the repository that is smaller than the offered one and would run here, in words. The files' own tables decide.
fn smaller(hub: &Hub<'_>, offer: &Offer, shown: &mut Shown) -> Option<String> {
    let size = |other: &&Other| other.bytes.filter(|bytes| *bytes < offer.bytes());
    let mut others: Vec<&Other> = offer.others.iter().filter(|o| size(o).is_some()).collect();
    others.sort_by_key(|other| other.bytes);
    // What fits is smaller than what does not, so few tables have to be fetched.
    let runs = |other: &&Other| {
        let described = hub.described_other(offer, other, &mut |event| shown.take(&event));
        let found = described.ok().flatten().and_then(verdict);
        matches!(found, Some(Verdict::Runs(_)))
    };
    let fitting = others.partition_point(runs);
    let largest = others.get(fitting.checked_sub(1)?)?;
    Some(largest.told.clone())
}

/// How a model would run.
enum Verdict {
    /// The device, and where the model would lie.
    Runs(String),
    /// Why it would be refused.
    Refused(String),
}

/// How a model would run on the device that `generate` takes; `None` where that cannot be told.
fn verdict(gguf: Gguf) -> Option<Verdict> {
    let model = models::load(Arc::new(gguf)).ok()?;
    let adapter = engine::adapter(&EngineOptions::default()).wait().ok()?;
    let (name, site) = match &adapter {
        None => ("the CPU, since there is no GPU", Site::Cpu),
        Some(on) => {
            let memory = Memory::of_adapter(on, None);
            (on.name.as_str(), Site::Gpu(&on.target, memory))
        }
    };
    let place = Place {
        site,
        model: &*model,
        ubatch: None,
        has_flag: true,
    };
    let n_ctx = engine::context_length(None, model.config().context_length).ok()?;
    Some(match place.check(n_ctx) {
        Err(refused) => Verdict::Refused(refused.to_string()),
        Ok(Some(partly)) => Verdict::Runs(format!("it would run on {name}: {partly}")),
        Ok(None) => Verdict::Runs(match place.computed(n_ctx).ok().flatten() {
            Some(speed) => format!("all of it would run on {name}; computed: {speed:.0} tokens/s"),
            None => format!("all of it would run on {name}"),
        }),
    })
}

/// Refuses a model that would not run, by what is known before it is fetched.
fn check(hub: &Hub<'_>, offer: &Offer, shown: &mut Shown) -> Result<(), CliError> {
    let refused = |reason| CliError::WouldNotRun {
        model: format!("{}:{}", offer.repo, offer.label),
        reason,
    };
    if !hub::is_computed(&offer.label) && hub::quantisation(&offer.label).is_some() {
        let known: Vec<_> = GgmlType::ALL.iter().map(|ty| ty.name()).collect();
        return Err(refused(format!(
            "it computes with {}; name another quantisation{}",
            known.join(", "),
            others(offer)
        )));
    }
    if offer.architecture.as_deref().is_some_and(models::runs) {
        return Ok(());
    }
    // A hub's words about a repository may be about another of its files.
    let found = hub.architecture(offer, &mut |event| shown.take(&event))?;
    match found.or_else(|| offer.architecture.clone()) {
        Some(found) if !models::runs(&found) => Err(refused(format!(
            "its architecture is {found:?}, and glimt runs {}",
            models::all_that_run()
        ))),
        _ => Ok(()),
    }
}

/// The other models of the repository, in a clause.
fn others(offer: &Offer) -> String {
    match offer.others.is_empty() {
        true => String::new(),
        false => {
            let others = offer.others.iter().map(|other| &other.told);
            format!("; it also has {}", named(others, offer.others.len()))
        }
    }
}

/// Asks what a name means, and tells it with its size. Returned is also how many bytes are missing.
///
/// # Errors
/// The errors of the hub, or [`CliError::WouldNotRun`].
pub(super) fn offer(hub: &Hub<'_>, name: &Name) -> Result<(Offer, u64), CliError> {
    let mut shown = Shown::new();
    let offer = hub.offer(name, &mut |event| shown.take(&event))?;
    if let Name::Repository {
        alias: Some(alias),
        repo,
        ..
    } = name
    {
        note(format_args!(
            "{alias} stands for {repo}, which nobody has verified; look at it before you trust it"
        ));
    }
    let missing = hub.missing(&offer)?;
    if missing > 0 {
        check(hub, &offer, &mut shown)?;
    }
    let all = offer.bytes();
    let left = match missing {
        0 => ", already here".to_owned(),
        part if part < all => format!(", {} of it to fetch", bytes(part)),
        _ => String::new(),
    };
    let files = count(offer.files.len(), "file");
    note(format_args!(
        "{}:{}, {} in {files}{left}",
        offer.repo,
        offer.label,
        bytes(all)
    ));
    if !offer.others.is_empty() {
        let others: Vec<_> = offer.others.iter().map(|o| o.told.as_str()).collect();
        note(format_args!("it also has {}", others.join(", ")));
    }
    Ok((offer, missing))
}

/// Fetches what is missing; returns the first file.
pub(super) fn pull(hub: &Hub<'_>, offer: &Offer) -> Result<PathBuf, CliError> {
    interrupt::say_at_end(Some(
        "what was fetched is kept; the same command goes on there",
    ));
    let mut shown = Shown::new();
    let pulled = hub.pull(offer, &mut |event| shown.take(&event));
    drop(shown);
    interrupt::say_at_end(None);
    Ok(pulled?)
}
