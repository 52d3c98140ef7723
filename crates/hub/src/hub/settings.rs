//! The addresses of the hub and the folders of the stores, as the environment tells them.

use std::ffi::OsString;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::HubError;

const PUBLIC: &str = "https://huggingface.co";

/// An access token, which is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Token(String);

impl Token {
    /// A token that a header can carry; `origin` names where it is from.
    fn new(text: &str, origin: &str) -> Result<Self, HubError> {
        let text = text.trim();
        match text.bytes().all(|byte| byte.is_ascii_graphic()) {
            true => Ok(Self(text.to_owned())),
            false => Err(HubError::Token(origin.to_owned())),
        }
    }

    /// The header that carries it.
    pub(super) fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(..)")
    }
}

/// How long a hub that does not answer is borne.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Patience {
    /// A line that is silent for so long is dead.
    pub silence: Duration,
    /// The wait before the second try. Each further one is twice as long, up to half a minute.
    pub first_wait: Duration,
    /// How often in a row a file is asked for without a mebibyte coming.
    pub tries: u32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            silence: Duration::from_secs(10),
            first_wait: Duration::from_millis(500),
            tries: 8,
        }
    }
}

/// The addresses of the hub and the folders of the stores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The hub, without a slash at its end.
    pub endpoint: String,
    /// The folder of the cache, which has `models--user--repo`.
    pub cache: PathBuf,
    /// The access token.
    pub token: Option<Token>,
    /// Whether the hub may not be asked.
    pub offline: bool,
    /// Whether snapshots are links to blobs, where these are possible; else they are the files themselves.
    pub links: bool,
    /// Folders that may have ollama's `manifests` and `blobs`.
    pub ollama: Vec<PathBuf>,
    /// Folders that may have LM Studio's `user/repo/file.gguf`.
    pub lm_studio: Vec<PathBuf>,
    /// How long a hub that does not answer is borne.
    pub patience: Patience,
}

impl Settings {
    /// The settings of the environment, by the variables of `huggingface_hub` and ollama. An empty variable counts as unset.
    ///
    /// # Errors
    /// [`HubError::Variable`], [`HubError::Token`], [`HubError::NoHome`], and [`HubError::Read`] of the file of the token.
    pub fn from_env() -> Result<Self, HubError> {
        Self::of(&|name| std::env::var_os(name), dirs::home_dir())
    }

    fn of(env: &dyn Fn(&str) -> Option<OsString>, home: Option<PathBuf>) -> Result<Self, HubError> {
        let set = |name: &str| env(name).filter(|value| !value.is_empty());
        let text = |name: &str| set(name).map(|value| value.to_string_lossy().into_owned());
        let folder = |name: &str| set(name).map(|value| expanded(value.into(), home.as_deref()));
        let hugging_face = folder("HF_HOME").or_else(|| {
            let caches = folder("XDG_CACHE_HOME").or_else(|| Some(home.as_ref()?.join(".cache")));
            Some(caches?.join("huggingface"))
        });
        let cache = folder("HF_HUB_CACHE").or_else(|| folder("HUGGINGFACE_HUB_CACHE"));
        let cache = cache
            .or_else(|| Some(hugging_face.as_ref()?.join("hub")))
            .ok_or(HubError::NoHome)?;
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| PUBLIC.to_owned());
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        if !["http://", "https://"]
            .iter()
            .any(|scheme| endpoint.starts_with(scheme))
        {
            return Err(HubError::Variable {
                variable: "HF_ENDPOINT",
                found: endpoint,
                expected: "an address that begins with https:// or http://",
            });
        }
        let file = folder("HF_TOKEN_PATH").or_else(|| Some(hugging_face.as_ref()?.join("token")));
        let token = match text("HF_TOKEN").or_else(|| text("HUGGING_FACE_HUB_TOKEN")) {
            Some(token) => Some(Token::new(&token, "HF_TOKEN")?),
            None => file.map_or(Ok(None), |file| token_of(&file))?,
        };
        // As `huggingface_hub` reads a switch.
        let is_yes = |value: &str| ["1", "on", "yes", "true"].contains(&value);
        let yes = |name: &str| text(name).is_some_and(|value| is_yes(&value.to_ascii_lowercase()));
        let mut patience = Patience::default();
        if let Some(found) = text("HF_HUB_DOWNLOAD_TIMEOUT") {
            let seconds = found
                .parse()
                .ok()
                .filter(|seconds| (1..=86_400).contains(seconds));
            patience.silence = Duration::from_secs(seconds.ok_or(HubError::Variable {
                variable: "HF_HUB_DOWNLOAD_TIMEOUT",
                found,
                expected: "whole seconds, at least 1 and at most a day",
            })?);
        }
        Ok(Self {
            endpoint,
            cache,
            token,
            offline: yes("HF_HUB_OFFLINE") || yes("TRANSFORMERS_OFFLINE"),
            links: !yes("HF_HUB_DISABLE_SYMLINKS"),
            ollama: match folder("OLLAMA_MODELS") {
                Some(folder) => vec![folder],
                None => of_ollama(home.as_deref()),
            },
            lm_studio: of_lm_studio(home.as_deref()),
            patience,
        })
    }
}

/// `~` at the beginning stands for the home folder.
fn expanded(path: PathBuf, home: Option<&Path>) -> PathBuf {
    match (path.strip_prefix("~"), home) {
        (Ok(rest), Some(home)) => home.join(rest),
        _ => path,
    }
}

/// The token in a file, where there is one.
fn token_of(file: &Path) -> Result<Option<Token>, HubError> {
    match fs::read_to_string(file) {
        Ok(text) if text.trim().is_empty() => Ok(None),
        Ok(text) => Token::new(&text, &file.display().to_string()).map(Some),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(HubError::read(file)(error)),
    }
}

/// The user's folder and that of the service, as ollama's installer makes them.
fn of_ollama(home: Option<&Path>) -> Vec<PathBuf> {
    let own = home.map(|home| home.join(".ollama/models"));
    let service = (!cfg!(windows)).then(|| PathBuf::from("/usr/share/ollama/.ollama/models"));
    own.into_iter().chain(service).collect()
}

/// The folder that LM Studio's pointer names, its usual one and that of earlier versions. The pointer is a file with the path of LM
/// Studio's home, which its users can move.
fn of_lm_studio(home: Option<&Path>) -> Vec<PathBuf> {
    let Some(home) = home else { return vec![] };
    let pointer = fs::read_to_string(home.join(".lmstudio-home-pointer")).unwrap_or_default();
    let moved = Some(pointer.trim()).filter(|path| !path.is_empty());
    let moved = moved.map(|path| expanded(path.into(), Some(home)).join("models"));
    let usual = [".lmstudio/models", ".cache/lm-studio/models"].map(|folder| home.join(folder));
    let moved = moved.filter(|moved| !usual.contains(moved));
    moved.into_iter().chain(usual).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(set: &[(&str, &str)]) -> Result<Settings, HubError> {
        let value = |name: &str| set.iter().find(|(one, _)| *one == name);
        Settings::of(
            &|name| Some(value(name)?.1.into()),
            Some(PathBuf::from("/home/u")),
        )
    }

    #[test]
    fn the_cache_is_where_huggingface_hub_has_it() {
        for (set, expected) in [
            (&[][..], "/home/u/.cache/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c")], "/c/huggingface/hub"),
            (&[("XDG_CACHE_HOME", "/c"), ("HF_HOME", "/h")], "/h/hub"),
            (
                &[("HF_HOME", "/h"), ("HF_HUB_CACHE", "~/models")],
                "/home/u/models",
            ),
            (
                &[("HF_HOME", "/h"), ("HUGGINGFACE_HUB_CACHE", "/old")],
                "/old",
            ),
            (
                &[("HF_HOME", ""), ("HF_HUB_CACHE", "")],
                "/home/u/.cache/huggingface/hub",
            ),
        ] {
            assert_eq!(
                settings(set).expect("they are fine").cache,
                Path::new(expected),
                "{set:?}"
            );
        }
        let nothing = Settings::of(&|_| None, None);
        assert!(matches!(nothing, Err(HubError::NoHome)));
    }

    #[test]
    fn lm_studio_is_looked_for_where_its_pointer_says() {
        let home = tempfile::tempdir().expect("a folder");
        let usual = [".lmstudio/models", ".cache/lm-studio/models"].map(|at| home.path().join(at));
        let folders = || of_lm_studio(Some(home.path()));
        assert_eq!(folders(), usual);
        let point = |to: &str| {
            let pointer = home.path().join(".lmstudio-home-pointer");
            fs::write(pointer, to).expect("it can be written");
        };
        for same in ["", "\n", "~/.lmstudio"] {
            point(same);
            assert_eq!(folders(), usual, "{same:?}");
        }
        point("/big/lm studio\n");
        let moved = [PathBuf::from("/big/lm studio/models")];
        assert_eq!(folders(), [&moved[..], &usual].concat());
        assert!(of_lm_studio(None).is_empty());
    }

    #[test]
    fn variables_are_read_and_refused_as_they_say() {
        let all = [
            ("HF_ENDPOINT", "http://localhost:8000/"),
            ("HF_TOKEN", " hf_abc\n"),
            ("HF_HUB_OFFLINE", "yes"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "3"),
            ("OLLAMA_MODELS", "/o"),
        ];
        let read = settings(&all).expect("they are fine");
        assert_eq!(read.endpoint, "http://localhost:8000");
        assert_eq!(
            read.token.as_ref().map(Token::header).as_deref(),
            Some("Bearer hf_abc")
        );
        assert!(!format!("{read:?}").contains("hf_abc"));
        assert!(read.offline && read.patience.silence == Duration::from_secs(3));
        assert_eq!(read.ollama, [PathBuf::from("/o")]);
        let none = all.map(|(name, _)| (name, ""));
        let none = settings(&none).expect("empty is unset");
        assert_eq!(
            (none.endpoint.as_str(), none.token, none.offline),
            (PUBLIC, None, false)
        );
        for wrong in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_TOKEN", "hf_a\nX-Other: b"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        ] {
            assert!(settings(&[wrong]).is_err(), "{wrong:?}");
        }
    }
}
