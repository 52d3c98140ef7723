//! The models on this machine: in the cache shared with `huggingface_hub`, in LM Studio's folder, in ollama's store. They are only
//! read.

use std::fmt;
use std::path::{Path, PathBuf};

use super::cache::{self, Files, walk};
use super::choice::{Model, choose, models};
use super::ollama::{self, OllamaModel};
use super::{HubError, Name, Settings};

/// The most folders below LM Studio's `user/repo` that are looked into.
const DEPTH: usize = 2;

/// A program's store of models.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Store {
    /// The cache shared with `huggingface_hub`.
    HuggingFace,
    /// LM Studio's folder.
    LmStudio,
    /// Ollama's store.
    Ollama,
}

impl fmt::Display for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::HuggingFace => "Hugging Face cache",
            Self::LmStudio => "LM Studio",
            Self::Ollama => "ollama",
        })
    }
}

/// A model on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The name that `-m` takes: `user/repo`, without the quantisation, or `ollama:NAME:TAG`.
    pub name: String,
    /// The quantisation that its name or the store tells.
    pub quantisation: Option<String>,
    /// The size of all its files.
    pub bytes: u64,
    /// The store that it belongs to.
    pub store: Store,
    /// The file of the model, or its shards in order.
    pub files: Vec<PathBuf>,
    /// Whether no shard is missing.
    pub whole: bool,
}

/// All models that were found.
#[derive(Debug, Default)]
pub struct Inventory {
    /// The models of the cache first, then LM Studio's, then ollama's.
    pub found: Vec<Found>,
    /// Repositories of the cache in which something was begun and not finished, with its bytes.
    pub begun: Vec<(String, u64)>,
    /// The errors about folders and files that could not be read.
    pub unread: Vec<HubError>,
}

/// A repository of the cache or of LM Studio.
struct Group {
    repo: String,
    store: Store,
    models: Vec<Model<PathBuf>>,
}

/// The files of a folder that are there, as models.
fn group(repo: &str, store: Store, files: Files) -> Group {
    // A link may lead nowhere.
    let files = files.into_iter().filter(|(_, path)| path.is_file());
    Group {
        repo: repo.to_owned(),
        store,
        models: models(files),
    }
}

/// The repositories of the cache, and behind them those of LM Studio. A repository of the cache has one group for each snapshot, the newest
/// first.
fn groups(settings: &Settings, unread: &mut Vec<HubError>) -> Vec<Group> {
    let mut found = vec![];
    for (repo, folder) in readable(cache::repositories(&settings.cache), unread) {
        let snapshots = readable(folder.snapshots(), unread).into_iter();
        found.extend(snapshots.map(|files| group(&repo, Store::HuggingFace, files)));
    }
    for root in &settings.lm_studio {
        found.extend(readable(of_lm_studio(root), unread));
    }
    found
}

/// The items that were read, or nothing and one more error in `unread`.
fn readable<T>(read: Result<Vec<T>, HubError>, unread: &mut Vec<HubError>) -> Vec<T> {
    read.unwrap_or_else(|error| {
        unread.push(error);
        vec![]
    })
}

fn of_lm_studio(root: &Path) -> Result<Vec<Group>, HubError> {
    let mut found = vec![];
    for user in cache::names(root)? {
        for repo in cache::names(&root.join(&user))? {
            let mut files = vec![];
            walk(&root.join(&user).join(&repo), "", DEPTH, &mut files)?;
            found.push(group(&format!("{user}/{repo}"), Store::LmStudio, files));
        }
    }
    Ok(found)
}

fn bytes(files: &[PathBuf]) -> u64 {
    files.iter().map(|path| cache::length(path)).sum()
}

fn of_repo(group: &Group, model: &Model<PathBuf>) -> Found {
    Found {
        name: group.repo.clone(),
        quantisation: model.quantisation.clone(),
        bytes: bytes(&model.files),
        store: group.store,
        files: model.files.clone(),
        whole: model.is_whole(),
    }
}

fn of_ollama(model: &OllamaModel) -> Found {
    Found {
        name: format!("ollama:{}:{}", model.name, model.tag),
        quantisation: model.quantisation.clone(),
        bytes: model.bytes,
        store: Store::Ollama,
        files: vec![model.path.clone()],
        whole: true,
    }
}

/// Everything that is there.
pub fn all(settings: &Settings) -> Inventory {
    let mut unread = vec![];
    let mut found: Vec<Found> = vec![];
    for group in groups(settings, &mut unread) {
        for model in &group.models {
            let one = of_repo(&group, model);
            // An older snapshot mostly has the same.
            let same = |other: &Found| {
                (&other.name, &other.quantisation, other.store)
                    == (&one.name, &one.quantisation, one.store)
                    && names(&other.files) == names(&one.files)
            };
            if !found.iter().any(same) {
                found.push(one);
            }
        }
    }
    found.extend(
        ollama::models(&settings.ollama, &mut unread)
            .iter()
            .map(of_ollama),
    );
    found.sort_by(|a, b| {
        (a.store, &a.name, &a.quantisation).cmp(&(b.store, &b.name, &b.quantisation))
    });
    Inventory {
        found,
        begun: begun(settings),
        unread,
    }
}

/// The repositories of the cache with files that were begun and not finished. Unreadable folders are told of elsewhere.
fn begun(settings: &Settings) -> Vec<(String, u64)> {
    let repositories = cache::repositories(&settings.cache).unwrap_or_default();
    let parts = |(repo, folder): (String, cache::RepoFolder)| {
        let parts = folder.parts().unwrap_or_default();
        (!parts.is_empty()).then(|| (repo, bytes(&parts)))
    };
    repositories.into_iter().filter_map(parts).collect()
}

fn names(files: &[PathBuf]) -> Vec<Option<&std::ffi::OsStr>> {
    files.iter().map(|path| path.file_name()).collect()
}

/// The model of a name, where it is here: in the cache, else LM Studio's, else ollama's.
///
/// # Errors
/// [`HubError::Several`] and [`HubError::MissingShards`].
pub fn find(settings: &Settings, name: &Name) -> Result<Option<Found>, HubError> {
    let mut unread = vec![];
    let found = look(settings, name, &mut unread);
    if let Ok(None) = found {
        // It may be in what cannot be read.
        unread.iter().for_each(|error| log::warn!("{error}"));
    }
    found
}

fn look(
    settings: &Settings,
    name: &Name,
    unread: &mut Vec<HubError>,
) -> Result<Option<Found>, HubError> {
    let (model, tag) = match name {
        Name::Repository {
            repo,
            quantisation,
            alias,
        } => {
            let mut refused = None;
            for group in groups(settings, unread) {
                if !group.repo.eq_ignore_ascii_case(repo) {
                    continue;
                }
                match choose(repo, &group.models, quantisation.as_deref()) {
                    Ok(model) => return Ok(Some(of_repo(&group, model))),
                    Err(HubError::NoGguf(_) | HubError::NoQuantisation { .. }) => {}
                    Err(error) => {
                        refused.get_or_insert(error);
                    }
                }
            }
            match (refused, alias) {
                (Some(error), _) => return Err(error),
                (None, None) => return Ok(None),
                (None, Some(alias)) => (*alias, quantisation),
            }
        }
        Name::Ollama { model, tag, .. } => (model.as_str(), tag),
    };
    let all = ollama::models(&settings.ollama, unread);
    Ok(ollama::choose(&all, model, tag.as_deref())?.map(of_ollama))
}
