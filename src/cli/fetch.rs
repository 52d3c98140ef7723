//! Fetching a model with a progress bar.

use std::path::PathBuf;

use indicatif::ProgressBar;

use super::bars::{progress_bar, told};
use super::error::CliError;
use super::interrupt;
use super::output::{bytes, complain, note};
use crate::hub::{Event, Hub, Name, Offer};
use crate::plural::count;

/// What is shown while files come.
struct Shown {
    bar: ProgressBar,
    /// Whether the speed is still measured from a file's beginning, which an earlier run may have fetched.
    fresh: bool,
}

impl Shown {
    fn new() -> Self {
        Self {
            bar: ProgressBar::hidden(),
            fresh: true,
        }
    }

    fn take(&mut self, event: &Event<'_>) {
        match event {
            Event::File { name, bytes } => {
                self.bar.finish_and_clear();
                note(format_args!("{name}, {}", super::output::bytes(*bytes)));
                self.bar = progress_bar("fetching");
                self.bar.set_length(*bytes);
                self.fresh = true;
            }
            Event::Fetched(bytes) => {
                self.bar.set_position(*bytes);
                if std::mem::replace(&mut self.fresh, false) {
                    self.bar.reset_eta();
                }
            }
            Event::Checked { bytes, of } => {
                self.bar.set_message("checking");
                told(&self.bar)(*bytes, *of);
            }
            Event::Again { why, wait } => {
                let wait = wait.as_secs_f64();
                self.tell(&format!("{}; trying again in {wait:.1} s", why.cause()));
            }
            Event::StartOver { file, why } => {
                self.bar.set_message("fetching");
                self.tell(&format!("{file} is fetched from its beginning: {why}"));
            }
            Event::Waiting(file) => self.tell(&format!(
                "{file}: another program fetches it, waiting for that"
            )),
        }
    }

    fn tell(&self, text: &str) {
        self.bar.suspend(|| complain(format_args!("{text}")));
    }
}

/// Asks what a name means, and tells it with its size.
pub(super) fn offer(hub: &Hub<'_>, name: &Name) -> Result<Offer, CliError> {
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
        note(format_args!("it also has {}", offer.others.join(", ")));
    }
    Ok(offer)
}

/// Fetches what is missing; returns the first file.
pub(super) fn pull(hub: &Hub<'_>, offer: &Offer) -> Result<PathBuf, CliError> {
    interrupt::say_at_end(Some(
        "what was fetched is kept; the same command goes on there",
    ));
    let mut shown = Shown::new();
    let pulled = hub.pull(offer, &mut |event| shown.take(&event));
    shown.bar.finish_and_clear();
    interrupt::say_at_end(None);
    Ok(pulled?)
}
