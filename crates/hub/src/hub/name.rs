//! Names of models.

use std::fmt;
use std::path::Path;

use super::HubError;
use crate::aliases::ALIASES;

/// The longest name of a user or a repository, as Hugging Face has it.
const LONGEST: usize = 96;

/// The name of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Name {
    /// A repository of a hub, or a folder of LM Studio.
    Repository {
        /// `user/repo`.
        repo: String,
        /// The quantisation asked for.
        quantisation: Option<String>,
        /// The short name that it was given by.
        alias: Option<&'static str>,
    },
    /// A model of ollama's.
    Ollama {
        /// Ollama's name: `glm-4.7-flash`, or with a user or a host before it.
        model: String,
        /// The tag asked for.
        tag: Option<String>,
        /// Whether `ollama:` stands before it.
        told: bool,
    },
}

impl Name {
    /// Reads a name: `user/repo`, `user/repo:QUANTISATION`, a short name of [`ALIASES`], `ollama:NAME:TAG`, or ollama's `NAME:TAG`.
    ///
    /// # Errors
    /// [`HubError::Name`].
    pub fn parse(text: &str) -> Result<Self, HubError> {
        let wrong = |problem| no_name(text, problem);
        let page = of_page(text);
        let name = page.as_deref().unwrap_or(text);
        let name = without_host(name.strip_prefix("https://").unwrap_or(name)).unwrap_or(name);
        let (name, told) = match name.strip_prefix("ollama:") {
            Some(rest) => (rest, true),
            None => (name, false),
        };
        let (base, detail) = match name.rsplit_once(':') {
            Some((_, "")) => return Err(wrong("nothing follows the colon")),
            Some((base, detail)) => (base, Some(detail)),
            None => (name, None),
        };
        if detail.is_some_and(|detail| !is_plain(detail)) {
            return Err(wrong(
                "behind a colon stand letters, digits, '-', '_' and '.'",
            ));
        }
        let detail = detail.map(str::to_owned);
        let parts: Vec<&str> = base.split('/').collect();
        if let Some(problem) = parts.iter().find_map(|part| problem(part)) {
            return Err(wrong(problem));
        }
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| base.eq_ignore_ascii_case(alias));
        match (told, alias, parts.len()) {
            (false, Some((alias, repo)), _) => Ok(Self::Repository {
                repo: (*repo).to_owned(),
                quantisation: detail,
                alias: Some(alias),
            }),
            (false, None, 2) => Ok(Self::Repository {
                repo: base.to_owned(),
                quantisation: detail,
                alias: None,
            }),
            (true, _, 1..=3) | (false, None, 1) => Ok(Self::Ollama {
                model: base.to_owned(),
                tag: detail,
                told,
            }),
            _ => Err(wrong("it has too many parts")),
        }
    }

    /// Whether a text that names no file can only be meant as a path: it has what no name has, or ends as model files do.
    pub fn is_path(text: &Path) -> bool {
        let Some(text) = text.to_str() else {
            return true;
        };
        let begins = |prefix: &[char]| text.starts_with(prefix);
        let lower = text.to_ascii_lowercase();
        if of_page(text).is_some() {
            return false;
        }
        text.is_empty()
            || begins(&['/', '.', '~'])
            || text.contains(['\\', ' '])
            || [".gguf", ".bin", ".safetensors"]
                .iter()
                .any(|end| lower.ends_with(end))
            || Self::parse(text).is_err()
    }
}

/// The error for a text that is no name, or that names nothing that can be fetched.
pub(super) fn no_name(text: impl ToString, problem: &'static str) -> HubError {
    HubError::Name {
        text: text.to_string(),
        problem,
        aliases: ALIASES.map(|(alias, _)| alias).join(", "),
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, detail) = match self {
            Self::Repository {
                repo, quantisation, ..
            } => (repo, quantisation),
            Self::Ollama { model, tag, .. } => (model, tag),
        };
        f.write_str(name)?;
        detail
            .as_ref()
            .map_or(Ok(()), |detail| write!(f, ":{detail}"))
    }
}

fn without_host(text: &str) -> Option<&str> {
    let mut hosts = ["huggingface.co/", "hf.co/"].into_iter();
    hosts.find_map(|host| text.strip_prefix(host))
}

/// The name that the address of a repository's page, or of a file in it, stands for.
fn of_page(text: &str) -> Option<String> {
    let path = without_host(text.strip_prefix("https://")?)?;
    let path = path.split(['?', '#']).next().unwrap_or_default();
    let parts: Vec<&str> = path.trim_end_matches('/').split('/').collect();
    match parts[..] {
        [user, repo] | [user, repo, "tree", _] => Some(format!("{user}/{repo}")),
        [user, repo, "blob" | "resolve", _, .., file] => {
            let stem = file.strip_suffix(".gguf")?;
            // Of a split model, any shard.
            let whole = stem
                .rsplit_once("-of-")
                .and_then(|(head, _)| head.rsplit_once('-'));
            let stem = whole.map_or(stem, |(stem, _)| stem);
            Some(format!("{user}/{repo}:{stem}"))
        }
        _ => None,
    }
}

fn is_plain(text: &str) -> bool {
    text.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !text.contains("..")
}

/// The problem with the name of a user or a repository, by Hugging Face's rules.
fn problem(part: &str) -> Option<&'static str> {
    match part {
        "" => Some("a part of it is empty"),
        _ if part.len() > LONGEST => Some("a part of it is too long"),
        _ if !is_plain(part) => {
            Some("its parts have letters, digits, '-', '_' and '.', never '..'")
        }
        _ if part.contains("--") => Some("it has '--', which no repository has"),
        _ if part.starts_with(['-', '.']) || part.ends_with(['-', '.']) => {
            Some("no part of it begins or ends with '-' or '.'")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_apart() {
        let repo = |repo: &str, quantisation: Option<&str>, alias| Name::Repository {
            repo: repo.to_owned(),
            quantisation: quantisation.map(str::to_owned),
            alias,
        };
        let ollama = |model: &str, tag: Option<&str>, told| Name::Ollama {
            model: model.to_owned(),
            tag: tag.map(str::to_owned),
            told,
        };
        let glm = Some("glm-4.7-flash");
        for (text, expected) in [
            ("a/b", repo("a/b", None, None)),
            ("a/b-GGUF:q4_k_m", repo("a/b-GGUF", Some("q4_k_m"), None)),
            ("hf.co/a/b", repo("a/b", None, None)),
            ("https://huggingface.co/a/b", repo("a/b", None, None)),
            ("https://huggingface.co/a/b/", repo("a/b", None, None)),
            (
                "https://huggingface.co/a/b/tree/main",
                repo("a/b", None, None),
            ),
            (
                "https://huggingface.co/a/b/blob/main/b-Q4_0.gguf?download=true",
                repo("a/b", Some("b-Q4_0"), None),
            ),
            (
                "https://hf.co/a/b/resolve/main/Q8_0/b-Q8_0-00001-of-00002.gguf",
                repo("a/b", Some("b-Q8_0"), None),
            ),
            ("GLM-4.7-Flash", repo(ALIASES[0].1, None, glm)),
            ("glm-4.7-flash:Q8_0", repo(ALIASES[0].1, Some("Q8_0"), glm)),
            (
                "ollama:glm-4.7-flash:q8_0",
                ollama("glm-4.7-flash", Some("q8_0"), true),
            ),
            ("tales", ollama("tales", None, false)),
        ] {
            assert_eq!(Name::parse(text).expect(text), expected);
        }
        for wrong in [
            "",
            "a/",
            "/a",
            "a/../b",
            "../b",
            "a/b:",
            "a/b:c/d",
            "a--b/c",
            ".a/b",
            "a/b/c",
            "a b/c",
            "a/b\n",
            "a/b:..",
            "ä/b",
            "https://huggingface.co/a/b/blob/main/README.md",
            "https://other.org/a/b",
        ] {
            assert!(Name::parse(wrong).is_err(), "{wrong}");
        }
        assert!(Name::parse(&format!("a/{}", "b".repeat(97))).is_err());
    }

    #[test]
    fn what_looks_like_a_path_is_one() {
        for path in [
            "a.gguf",
            "./a",
            "../a",
            "/a",
            "~/a",
            "a\\b",
            "models/a.GGUF",
            "C:\\a",
            "a/b/c",
            "",
            "my model",
        ] {
            assert!(Name::is_path(Path::new(path)), "{path}");
        }
        let page = "https://huggingface.co/a/b/blob/main/b-Q4_0.gguf";
        for name in ["a/b", "a/b:Q4_0", "youtu-llm", "ollama:a:b", page] {
            assert!(!Name::is_path(Path::new(name)), "{name}");
        }
    }

    #[test]
    fn the_names_of_the_table_are_names() {
        for (alias, repo) in ALIASES {
            assert!(
                matches!(Name::parse(repo), Ok(Name::Repository { alias: None, .. })),
                "{alias}"
            );
        }
    }
}
