//! The files of a repository, as the hub tells them.

use std::io::Read;

use serde::Deserialize;

use super::choice::File;
use super::http::{Client, Trouble, Wanted, escaped, header};
use super::{HubError, Sum};

/// Bytes of a file that are read for its architecture. It stands at the beginning of what comes before the weights.
pub(super) const HEAD: u64 = 64 << 10;
/// The longest listing that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// A file that the hub offers.
#[derive(Debug, Clone)]
pub struct OfferedFile {
    /// The file's name in the repository, with `/` between folders. A name from the hub is checked: joined to a folder, it stays below it.
    pub name: String,
    /// The file's length in bytes.
    pub size: u64,
    /// The file's checksum.
    pub sum: Sum,
}

/// The GGUF files of a repository at one commit.
pub(super) struct Listing {
    pub(super) commit: String,
    pub(super) files: Vec<Listed>,
    /// The architecture of its models, where the hub has read it from them.
    pub(super) architecture: Option<String>,
}

/// A file as a listing tells it.
#[derive(Debug, Clone)]
pub(super) struct Listed {
    pub(super) name: String,
    size: Option<u64>,
    sum: Option<Sum>,
}

#[derive(Deserialize)]
struct Answer {
    sha: String,
    siblings: Vec<Sibling>,
    #[serde(default)]
    gguf: serde_json::Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Sibling {
    rfilename: String,
    size: Option<u64>,
    blob_id: Option<String>,
    lfs: Option<Lfs>,
}

#[derive(Deserialize)]
struct Lfs {
    #[serde(alias = "oid")]
    sha256: String,
    size: Option<u64>,
}

/// Whether a name of a hub may become a path below a folder, on every system.
fn is_safe(name: &str) -> bool {
    let part = |part: &str| !matches!(part, "" | "." | "..");
    !name.contains(['\\', ':', '\0'])
        && !name.chars().any(char::is_control)
        && name.len() < 1024
        && name.split('/').all(part)
}

/// Whether a text is a commit: it becomes the name of a folder.
pub(super) fn is_commit(text: &str) -> bool {
    (7..=64).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// The address of a file.
pub(super) fn file_url(client: &Client, repo: &str, commit: &str, name: &str) -> String {
    let (endpoint, name) = (&client.endpoint, escaped(name));
    format!("{endpoint}/{repo}/resolve/{commit}/{name}")
}

impl File for Listed {
    fn bytes(&self) -> Option<u64> {
        self.size
    }
}

/// Bytes that are read before it is asked whether they are enough.
const PART: u64 = 1 << 20;

/// The first bytes of a file, at most `most`, until they are `enough`.
///
/// # Errors
/// The errors of the connection and of the hub.
pub(super) fn head(
    client: &Client,
    repo: &str,
    commit: &str,
    name: &str,
    most: u64,
    enough: &mut dyn FnMut(&[u8]) -> bool,
) -> Result<Vec<u8>, Trouble> {
    let url = file_url(client, repo, commit, name);
    let what = format!("file {name} in {repo}");
    let mut response = client.ask(&url, &what, Wanted::First(most))?;
    let mut bytes = vec![];
    // A hub without ranges sends all. The rest of that is not read.
    let mut reader = client.reader(&mut response).take(most);
    loop {
        let read = reader.by_ref().take(PART).read_to_end(&mut bytes);
        let read = read.map_err(|error| Trouble::reading(&url, &error, ""))?;
        if read == 0 || enough(&bytes) {
            return Ok(bytes);
        }
    }
}

/// Asks what a repository has.
///
/// # Errors
/// An error of the line or of the hub, [`HubError::Answer`], [`HubError::UnsafeName`].
pub(super) fn listing(client: &Client, repo: &str) -> Result<Listing, Trouble> {
    let endpoint = &client.endpoint;
    let url = format!("{endpoint}/api/models/{repo}/revision/main?blobs=true");
    let what = format!("repository {repo}");
    let mut response = client.ask(&url, &what, Wanted::From(0))?;
    let mut text = String::new();
    let mut reader = client.reader(&mut response).take(LONGEST);
    let read = reader.read_to_string(&mut text);
    match read {
        Ok(length) if length as u64 == LONGEST => {
            return Err(wrong(&url, "its list of files is too long".to_owned()));
        }
        Err(error) if error.kind() == std::io::ErrorKind::InvalidData => {
            return Err(wrong(&url, "its list of files is no text".to_owned()));
        }
        Err(error) => return Err(Trouble::reading(&url, &error, "")),
        Ok(_) => {}
    }
    let answer: Answer = serde_json::from_str(&text)
        .map_err(|error| wrong(&url, format!("it gives no list of files as JSON: {error}")))?;
    let commit = answer.sha.to_ascii_lowercase();
    if !is_commit(&commit) {
        let sha = answer.sha;
        let problem = format!("found the commit '{sha}', expected hexadecimal digits");
        return Err(wrong(&url, problem));
    }
    let models = answer
        .siblings
        .into_iter()
        .filter(|file| file.rfilename.to_ascii_lowercase().ends_with(".gguf"));
    let file = |file: Sibling| {
        if !is_safe(&file.rfilename) {
            let repo = repo.to_owned();
            return Err(Trouble::lasting(HubError::UnsafeName {
                repo,
                file: file.rfilename,
            }));
        }
        let sum = match &file.lfs {
            Some(lfs) => Sum::read(&lfs.sha256).filter(|sum| matches!(sum, Sum::Sha256(_))),
            None => file.blob_id.as_deref().and_then(Sum::read),
        };
        let size = file.lfs.and_then(|lfs| lfs.size).or(file.size);
        Ok(Listed {
            name: file.rfilename,
            size,
            sum,
        })
    };
    let files = models.map(file).collect::<Result<_, _>>()?;
    let architecture = answer.gguf["architecture"].as_str().map(str::to_owned);
    Ok(Listing {
        commit,
        files,
        architecture,
    })
}

fn wrong(url: &str, problem: String) -> Trouble {
    const ADVICE: &str =
        "look at HF_ENDPOINT, which must name a hub that speaks as Hugging Face's does";
    Trouble::answer(url, problem, ADVICE)
}

/// Length and checksum of a file: as the listing tells them, else as the headers of the file do.
///
/// # Errors
/// An error of the line or of the hub, [`HubError::NoChecksum`].
pub(super) fn facts(
    client: &Client,
    repo: &str,
    commit: &str,
    file: &Listed,
) -> Result<OfferedFile, Trouble> {
    let name = file.name.clone();
    if let (Some(size), Some(sum)) = (file.size, file.sum.clone()) {
        return Ok(OfferedFile { name, size, sum });
    }
    let url = file_url(client, repo, commit, &name);
    let what = format!("file {name} in {repo}");
    let response = client.ask(&url, &what, Wanted::Head)?;
    let told = |linked: &str, own: &str| {
        header(&response, linked)
            .or_else(|| header(&response, own))
            .map(str::to_owned)
    };
    let size = told("x-linked-size", "content-length").and_then(|size| size.parse().ok());
    let sum = told("x-linked-etag", "etag").and_then(|etag| Sum::read(&etag));
    match (file.size.or(size), file.sum.clone().or(sum)) {
        (Some(size), Some(sum)) => Ok(OfferedFile { name, size, sum }),
        _ => Err(Trouble::lasting(HubError::NoChecksum(name))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_a_folder_are_told() {
        for safe in [
            "a.gguf",
            "Q4_K_M/a b-00001-of-00002.gguf",
            "..a.gguf",
            "ü.gguf",
        ] {
            assert!(is_safe(safe), "{safe}");
        }
        for wrong in [
            "../a.gguf",
            "a/../../b.gguf",
            "/etc/a.gguf",
            "a//b.gguf",
            "./a.gguf",
            "C:a.gguf",
            "a\\..\\b.gguf",
            "a\n.gguf",
            "a\0.gguf",
        ] {
            assert!(!is_safe(wrong), "{wrong:?}");
        }
        assert!(is_commit("0123456789abcdef0123456789abcdef01234567"));
        assert!(!is_commit("../../../../x") && !is_commit("main"));
    }
}
