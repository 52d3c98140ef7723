//! Fetching a model: what the hub would give for a name, and getting it.

use std::fs;
use std::path::PathBuf;

use super::api::{self, HEAD, Listed, Listing, OfferedFile};
use super::cache::{RepoFolder, length};
use super::choice::{self, File, choose, is_computed, models, quantisation};
use super::download::Download;
use super::event::Event;
use super::http::{Client, Trouble};
use super::lock::Lock;
use super::name::no_name;
use super::{HubError, Name, Settings, space};
use crate::gguf::{Gguf, Table};

/// Bytes in which the table of a file's tensors is looked for. Behind a vocabulary of 150000 tokens it ends before 10 MB.
const TABLE: u64 = 32 << 20;
/// How often the list of files is asked for.
const LIST_TRIES: u32 = 4;

/// The files that the hub offers for a name.
#[derive(Debug, Clone)]
pub struct Offer {
    /// `user/repo`.
    pub repo: String,
    /// The commit that its files are of.
    pub commit: String,
    /// The quantisation, or the name of the file where that tells none.
    pub label: String,
    /// The other models of the repository.
    pub others: Vec<Other>,
    /// The architecture of the repository's models, where the hub has read it from them.
    pub architecture: Option<String>,
    /// The file, or the shards in order.
    pub files: Vec<OfferedFile>,
}

/// Another model of a repository than the one that is asked for.
#[derive(Debug, Clone)]
pub struct Other {
    /// The quantisation, or the name of the file where that tells none.
    pub label: String,
    /// The label in a sentence, with the size, and a word if glimt refuses it.
    pub told: String,
    /// The length of all files, where it is known of a model that glimt computes and of which no shard is missing.
    pub bytes: Option<u64>,
    files: Vec<Listed>,
}

impl Other {
    fn new(model: &choice::Model<Listed>) -> Self {
        let label = model.label();
        let may_run = quantisation(label).is_none() || is_computed(label);
        let bytes = model.files.iter().map(File::bytes).sum::<Option<u64>>();
        Self {
            told: model.told(label),
            bytes: bytes.filter(|_| may_run && model.is_whole()),
            label: label.to_owned(),
            files: model.files.clone(),
        }
    }
}

impl Offer {
    /// The length of all files.
    pub fn bytes(&self) -> u64 {
        let sizes = self.files.iter().map(|file| file.size);
        sizes.fold(0, u64::saturating_add)
    }
}

/// A hub and the cache for what comes from it.
pub struct Hub<'a> {
    settings: &'a Settings,
    client: Client,
}

impl<'a> Hub<'a> {
    /// A hub as `settings` describe it. Nothing is asked yet.
    pub fn new(settings: &'a Settings) -> Self {
        Self {
            settings,
            client: Client::new(settings),
        }
    }

    /// Asks the hub what a name means.
    ///
    /// # Errors
    /// An error of the line or of the hub, or a [`HubError`] about names and quantisations.
    pub fn offer(&self, name: &Name, told: &mut dyn FnMut(Event<'_>)) -> Result<Offer, HubError> {
        let (repo, quantisation) = match name {
            Name::Repository {
                repo, quantisation, ..
            } => (repo, quantisation.as_deref()),
            Name::Ollama { told: true, .. } => {
                let advice = format!("fetch it with: ollama pull {name}");
                return Err(HubError::Foreign {
                    name: name.to_string(),
                    store: "ollama, which fetches its models itself",
                    advice,
                });
            }
            Name::Ollama { .. } => {
                return Err(no_name(name, "it names no repository"));
            }
        };
        if self.settings.offline {
            return Err(HubError::Offline(name.to_string()));
        }
        let Listing {
            commit,
            files,
            architecture,
        } = self.patiently(told, || api::listing(&self.client, repo))?;
        let there = models(files.into_iter().map(|file| (file.name.clone(), file)));
        let chosen = choose(repo, &there, quantisation)?;
        let fact =
            |file: &Listed| self.patiently(told, || api::facts(&self.client, repo, &commit, file));
        let files = chosen.files.iter().map(fact).collect::<Result<_, _>>()?;
        let others = there.iter().filter(|other| other.stem != chosen.stem);
        Ok(Offer {
            repo: repo.clone(),
            label: chosen.label().to_owned(),
            others: others.map(Other::new).collect(),
            architecture,
            files,
            commit,
        })
    }

    /// The architecture that the first file of an offer begins with; `None` if it does not stand where files have it.
    ///
    /// # Errors
    /// The errors of the connection and of the hub, or [`HubError::Head`].
    pub fn architecture(
        &self,
        offer: &Offer,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<String>, HubError> {
        let Some(first) = offer.files.first() else {
            return Ok(None);
        };
        let bytes = self.head(offer, &first.name, HEAD, &mut |_| false, told)?;
        let name = format!("{} of {}", first.name, offer.repo);
        Ok(Gguf::architecture_of(&bytes, &name)?)
    }

    /// The model of an offer without its bytes: what the tables of its tensors tell. `None` of a model of which a table does not end in the
    /// first 32 MiB of its file.
    ///
    /// # Errors
    /// The errors of the connection and of the hub, or [`HubError::Head`].
    pub fn described(
        &self,
        offer: &Offer,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Gguf>, HubError> {
        let files = offer.files.iter().map(|file| (&*file.name, file.size));
        self.described_by(offer, files, told)
    }

    /// Another model of an offer's repository, as [`described`](Self::described) gives the offer's.
    ///
    /// # Errors
    /// As there.
    pub fn described_other(
        &self,
        offer: &Offer,
        other: &Other,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Gguf>, HubError> {
        let size = |file: &Listed| Some((file.name.clone(), file.bytes()?));
        let files: Option<Vec<_>> = other.files.iter().map(size).collect();
        let Some(files) = files else {
            return Ok(None);
        };
        let files = files.iter().map(|(name, size)| (name.as_str(), *size));
        self.described_by(offer, files, told)
    }

    /// The model of files of an offer's repository, by names and lengths.
    fn described_by<'f>(
        &self,
        offer: &Offer,
        files: impl Iterator<Item = (&'f str, u64)>,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<Option<Gguf>, HubError> {
        let mut tables = vec![];
        for (file, size) in files {
            let (name, shard) = (format!("{file} of {}", offer.repo), tables.len());
            let mut found = Ok(None);
            let mut enough = |bytes: &[u8]| {
                found = Table::of_start(bytes, size, shard, &name);
                !matches!(found, Ok(None))
            };
            self.head(offer, file, TABLE, &mut enough, told)?;
            match found? {
                Some(table) => tables.push(table),
                None => return Ok(None),
            }
        }
        Ok(Some(Gguf::of_tables(tables)?))
    }

    /// The first bytes of a file, at most `most`, until they are `enough`.
    fn head(
        &self,
        offer: &Offer,
        file: &str,
        most: u64,
        enough: &mut dyn FnMut(&[u8]) -> bool,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<Vec<u8>, HubError> {
        let (repo, commit) = (&offer.repo, &offer.commit);
        let mut ask = || api::head(&self.client, repo, commit, file, most, enough);
        self.patiently(told, &mut ask)
    }

    /// Tries again what passes.
    fn patiently<T>(
        &self,
        told: &mut dyn FnMut(Event<'_>),
        mut ask: impl FnMut() -> Result<T, Trouble>,
    ) -> Result<T, HubError> {
        let patience = &self.settings.patience;
        let mut tried = 1;
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(trouble) => {
                    trouble.wait(patience, tried, patience.tries.min(LIST_TRIES), told)?;
                }
            }
            tried += 1;
        }
    }

    /// The number of bytes of an offer that are still to be fetched.
    ///
    /// # Errors
    /// [`HubError::Read`].
    pub fn missing(&self, offer: &Offer) -> Result<u64, HubError> {
        let folder = RepoFolder::new(&self.settings.cache, &offer.repo)?;
        let missing = |file: &OfferedFile| match is_there(&folder, &offer.commit, file) {
            true => 0,
            false => file
                .size
                .saturating_sub(length(&folder.part(file.sum.as_str()))),
        };
        Ok(offer.files.iter().map(missing).fold(0, u64::saturating_add))
    }

    /// Fetches what is missing of an offer; returns where its first file is.
    ///
    /// # Errors
    /// An error of the line, the hub or the disk. The fetched bytes stay, and the next call goes on from there.
    pub fn pull(
        &self,
        offer: &Offer,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, HubError> {
        let folder = RepoFolder::new(&self.settings.cache, &offer.repo)?;
        let needed = self.missing(offer)?;
        if let Some(available) = space::free(&folder.path).filter(|free| *free < needed) {
            return Err(HubError::NoSpace {
                needed,
                available,
                path: self.settings.cache.clone(),
            });
        }
        folder.prepare(&self.settings.cache)?;
        let mut first = None;
        for file in &offer.files {
            let path = self.file(&folder, offer, file, told)?;
            first.get_or_insert(path);
        }
        let mut files = offer.files.iter();
        if let Some(gone) = files.find(|file| !is_there(&folder, &offer.commit, file)) {
            return Err(HubError::Vanished {
                file: gone.name.clone(),
                repo: offer.repo.clone(),
            });
        }
        folder.set_main(&offer.commit)?;
        first.ok_or_else(|| HubError::NoGguf(offer.repo.clone()))
    }

    /// Fetches a file and gives it its place.
    fn file(
        &self,
        folder: &RepoFolder,
        offer: &Offer,
        file: &OfferedFile,
        told: &mut dyn FnMut(Event<'_>),
    ) -> Result<PathBuf, HubError> {
        let sum = file.sum.as_str();
        let name = &file.name;
        let lock = Lock::take(&folder.lock(sum), &mut || told(Event::Waiting(name)))?;
        let fresh = !is_there(folder, &offer.commit, file);
        if fresh {
            told(Event::File {
                name,
                bytes: file.size,
            });
            let part = folder.part(sum);
            let url = api::file_url(&self.client, &offer.repo, &offer.commit, name);
            let download = Download {
                client: &self.client,
                patience: &self.settings.patience,
                url: &url,
                repo: &offer.repo,
                file,
                part: &part,
            };
            download.run(told)?;
            let blob = folder.blob(sum);
            fs::rename(&part, &blob).map_err(HubError::write(blob))?;
        }
        let links = self.settings.links;
        let path = folder.link(&offer.commit, name, sum, links, fresh)?;
        drop(lock);
        Ok(path)
    }
}

/// Whether the file is in the cache: as a blob, or where links are impossible in the snapshot.
fn is_there(folder: &RepoFolder, commit: &str, file: &OfferedFile) -> bool {
    let places = [
        folder.blob(file.sum.as_str()),
        folder.pointer(commit, &file.name),
    ];
    places.iter().any(|place| {
        fs::metadata(place).is_ok_and(|there| there.is_file() && there.len() == file.size)
    })
}
