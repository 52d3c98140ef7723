//! One file: fetched from where an earlier try ended, checked, and only then given its name.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

use ureq::Body;
use ureq::http::Response;

use super::api::OfferedFile;
use super::cache::length;
use super::event::Event;
use super::http::{Client, Trouble, Wanted, header};
use super::{HubError, Patience};

/// The number of bytes that show that a line works, so that tries are counted anew.
const PROGRESS: u64 = 1 << 20;

/// A file to fetch.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) patience: &'a Patience,
    pub(super) url: &'a str,
    pub(super) repo: &'a str,
    pub(super) file: &'a OfferedFile,
    /// The file with the part that is there.
    pub(super) part: &'a Path,
}

impl Download<'_> {
    /// Fetches what is missing and checks all. The part then is the whole file.
    ///
    /// # Errors
    /// An error of the line, the hub or the disk. The fetched bytes stay, except where they are wrong.
    pub(super) fn run(&self, told: &mut dyn FnMut(Event<'_>)) -> Result<(), HubError> {
        // If the checksum is wrong, the bytes that an earlier run left may be at fault. Then the file is fetched once more.
        let mut inherited = length(self.part) > 0;
        loop {
            self.fetch(told)?;
            let Err(error) = self.check(told) else {
                return Ok(());
            };
            if !matches!(error, HubError::Checksum { .. }) {
                return Err(error);
            }
            fs::remove_file(self.part).map_err(HubError::write(self.part))?;
            if !std::mem::replace(&mut inherited, false) {
                return Err(error);
            }
            told(Event::StartOver {
                file: &self.file.name,
                why: "what an earlier run had fetched of it is damaged",
            });
        }
    }

    fn fetch(&self, told: &mut dyn FnMut(Event<'_>)) -> Result<(), HubError> {
        let mut tried = 0;
        let mut ranges = true;
        loop {
            let before = length(self.part);
            let Err(trouble) = self.attempt(&mut ranges, told) else {
                return Ok(());
            };
            tried = if length(self.part) >= before.saturating_add(PROGRESS) {
                1
            } else {
                tried + 1
            };
            trouble.wait(self.patience, tried, self.patience.tries, told)?;
        }
    }

    /// One request for what is missing. `ranges` becomes false where the hub refuses to begin in the middle.
    fn attempt(&self, ranges: &mut bool, told: &mut dyn FnMut(Event<'_>)) -> Result<(), Trouble> {
        let OfferedFile { name, size, .. } = self.file;
        let open = OpenOptions::new().create(true).append(true).open(self.part);
        let mut part = open.map_err(|error| self.unwritable(error))?;
        let mut have = length(self.part);
        if have > *size || have > 0 && have < *size && !*ranges {
            have = self.restart(&part)?;
        }
        told(Event::Fetched(have));
        if have == *size {
            return Ok(());
        }
        let what = format!("file {name} in {}", self.repo);
        let response = self.client.ask(self.url, &what, Wanted::From(have))?;
        let broken = |problem| Err(Trouble::line(self.url, problem));
        let refused = |why| Event::StartOver { file: name, why };
        match response.status().as_u16() {
            206 if begins(&response) == Some((have, *size)) => {}
            200 if have == 0 => {}
            200 if whole(&response).is_none_or(|whole| whole == *size) => {
                told(refused("the hub sends it from the beginning only"));
                have = self.restart(&part)?;
            }
            200 => return broken("the answer has another length than the file"),
            _ if have == 0 => return broken("the answer is a part that nobody asked for"),
            _ => {
                told(refused("the hub refuses to send the rest of it"));
                *ranges = false;
                return self.attempt(ranges, told);
            }
        }
        self.copy(response, &mut part, have, told)
    }

    /// Drops what is there.
    fn restart(&self, part: &File) -> Result<u64, Trouble> {
        part.set_len(0).map_err(|error| self.unwritable(error))?;
        Ok(0)
    }

    fn unwritable(&self, error: io::Error) -> Trouble {
        Trouble::lasting(HubError::write(self.part)(error))
    }

    /// Appends what comes to the `have` bytes that are there.
    fn copy(
        &self,
        mut response: Response<Body>,
        part: &mut File,
        mut have: u64,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<(), Trouble> {
        let OfferedFile { name, size, .. } = self.file;
        let mut reader = self.client.reader(&mut response);
        let mut bytes = vec![0; 256 << 10];
        loop {
            let n = match reader.read(&mut bytes) {
                Ok(0) if have == *size => break,
                Ok(0) => {
                    return Err(Trouble::line(
                        self.url,
                        format_args!("the line broke after {have} of {size} bytes"),
                    ));
                }
                Ok(n) => n,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    let after = format_args!(", after {have} of {size} bytes");
                    return Err(Trouble::reading(self.url, &error, after));
                }
            };
            let after = have.saturating_add(n as u64);
            if after > *size {
                return Err(Trouble::lasting(HubError::TooLong {
                    file: name.clone(),
                    size: *size,
                }));
            }
            part.write_all(&bytes[..n])
                .map_err(|error| self.unwritable(error))?;
            have = after;
            told(Event::Fetched(have));
        }
        part.sync_data().map_err(|error| self.unwritable(error))
    }

    /// Compares the checksum of what is on the disk.
    fn check(&self, told: &mut dyn FnMut(Event<'_>)) -> Result<(), HubError> {
        let OfferedFile { name, size, sum } = self.file;
        let mut read = 0;
        let mut tell = |n| {
            read += n;
            told(Event::Checked {
                bytes: read,
                of: *size,
            });
        };
        let found = sum
            .of_file(self.part, &mut tell)
            .map_err(HubError::read(self.part))?;
        match found == sum.as_str() {
            true => Ok(()),
            false => Err(HubError::Checksum {
                file: name.clone(),
                expected: sum.as_str().to_owned(),
                found,
            }),
        }
    }
}

/// The beginning of the part that an answer holds, and the length of the whole.
fn begins(response: &Response<Body>) -> Option<(u64, u64)> {
    let range = header(response, "content-range")?.strip_prefix("bytes ")?;
    let (range, whole) = range.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    Some((first.trim().parse().ok()?, whole.trim().parse().ok()?))
}

/// The length of an answer.
fn whole(response: &Response<Body>) -> Option<u64> {
    header(response, "content-length")?.parse().ok()
}
