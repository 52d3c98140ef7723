//! Which files of a repository make up a model, and which model a quantisation names.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use super::HubError;
use super::error::size;
use crate::aliases::PREFERRED;
use crate::gguf::split_file_name;
use crate::plural::named;
use crate::quant::GgmlType;

/// GGUF files that hold no model of a language.
const OTHERS: [&str; 2] = ["mmproj", "imatrix"];

/// A file of a model, here or at a hub.
pub(super) trait File {
    /// The file's length in bytes, where it is known.
    fn bytes(&self) -> Option<u64>;
}

impl File for PathBuf {
    fn bytes(&self) -> Option<u64> {
        fs::metadata(self).ok().map(|there| there.len())
    }
}

impl File for (String, PathBuf) {
    fn bytes(&self) -> Option<u64> {
        self.1.bytes()
    }
}

/// One model of a repository or folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Model<F> {
    /// The name of its file without `.gguf`. Of a split model it is what the names of all shards begin with.
    pub(super) stem: String,
    /// The name of its quantisation, such as `Q4_K_M`.
    pub(super) quantisation: Option<String>,
    /// The file of the model, or its shards in order.
    pub(super) files: Vec<F>,
    /// The names of shards that are not there, in a sentence; nothing where all are there.
    missing: String,
}

impl<F: File> Model<F> {
    /// The model's name among others, with its size, and a word if glimt refuses it.
    pub(super) fn told(&self, name: &str) -> String {
        let bytes: Option<u64> = self.files.iter().map(File::bytes).sum();
        let bytes = bytes.map(|bytes| size(&bytes));
        let refused = self
            .quantisation
            .as_deref()
            .is_some_and(|q| !is_computed(q));
        let refused = refused.then(|| "glimt does not run it".to_owned());
        let facts: Vec<_> = bytes.into_iter().chain(refused).collect();
        match facts.is_empty() {
            true => name.to_owned(),
            false => format!("{name} ({})", facts.join(", ")),
        }
    }
}

impl<F> Model<F> {
    /// The quantisation, or the name where that tells none.
    pub(super) fn label(&self) -> &str {
        self.quantisation.as_deref().unwrap_or(&self.stem)
    }

    /// Whether no shard is missing.
    pub(super) fn is_whole(&self) -> bool {
        self.missing.is_empty()
    }
}

/// The name of a GGUF file without its ending. Of a shard, also its number from 0 and the number of shards.
fn parts(name: &str) -> Option<(&str, Option<(u32, u32)>)> {
    let end = name.len().checked_sub(".gguf".len())?;
    let stem = name.get(..end)?;
    if !name.get(end..)?.eq_ignore_ascii_case(".gguf") {
        return None;
    }
    let shard = || {
        let (rest, count) = stem.rsplit_once("-of-")?;
        let (prefix, no) = rest.rsplit_once('-')?;
        let number = |text: &str| {
            let digits = text.len() == 5 && text.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| text.parse::<u32>().ok()).flatten()
        };
        let (no, count) = (number(no)?, number(count)?);
        (1 <= no && no <= count).then_some((prefix, Some((no - 1, count))))
    };
    Some(shard().unwrap_or((stem, None)))
}

/// The models among files, by name. A name may have folders before it, with `/`.
pub(super) fn models<F>(files: impl IntoIterator<Item = (String, F)>) -> Vec<Model<F>> {
    let mut groups: BTreeMap<(String, Option<u32>), BTreeMap<u32, F>> = BTreeMap::new();
    for (name, file) in files {
        let Some((stem, shard)) = parts(&name) else {
            continue;
        };
        let lower = stem.to_ascii_lowercase();
        if OTHERS.iter().any(|other| lower.contains(other)) {
            continue;
        }
        let (no, count) = shard.map_or((0, None), |(no, count)| (no, Some(count)));
        groups
            .entry((stem.to_owned(), count))
            .or_default()
            .insert(no, file);
    }
    let model = |((stem, count), shards): ((String, Option<u32>), BTreeMap<u32, F>)| {
        let count = count.unwrap_or(1);
        let missing = (0..count).filter(|no| !shards.contains_key(no));
        let missing = missing.map(|no| split_file_name(&stem, no, count));
        Model {
            missing: named(missing, count as usize - shards.len()),
            quantisation: quantisation(&stem),
            files: shards.into_values().collect(),
            stem,
        }
    };
    groups.into_iter().map(model).collect()
}

/// The quantisation that a file's name tells, in capitals. It is the last word of the name that is one. If there is none, the names of
/// the folders are searched. A `UD-` before the word belongs to it.
pub fn quantisation(stem: &str) -> Option<String> {
    stem.rsplit('/').find_map(|part| {
        let words: Vec<&str> = part.split(['-', '.']).collect();
        let at = words.iter().rposition(|word| is_quantisation(word))?;
        let dynamic = at > 0 && words[at - 1].eq_ignore_ascii_case("UD");
        let word = words[at].to_ascii_uppercase();
        Some(if dynamic { format!("UD-{word}") } else { word })
    })
}

/// Whether a word is a name such as `Q4_K_M`, `IQ2_XXS`, `BF16` or `MXFP4_MOE`.
fn is_quantisation(word: &str) -> bool {
    let word = word.to_ascii_uppercase();
    let digit_after = |prefix: &str| {
        let rest = word.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
    };
    let floats = ["F16", "F32", "BF16", "FP16", "FP32"];
    floats.contains(&word.as_str())
        || ["Q", "IQ", "TQ", "MXFP", "NVFP"]
            .into_iter()
            .any(digit_after)
}

/// Whether there is a type of weights of the kind that a quantisation names: `TQ1_0` names one of `TQ1`, of which there is none. What it
/// mixes with that is told by the file alone.
pub fn is_computed(quantisation: &str) -> bool {
    let name = quantisation.to_ascii_uppercase();
    let name = name.strip_prefix("UD-").unwrap_or(&name);
    // Some write `FP16`.
    let name = name.replacen("FP", "F", usize::from(name.starts_with("FP")));
    let kind = name.split('_').next().unwrap_or_default();
    GgmlType::ALL
        .iter()
        .any(|ty| ty.name().split('_').next() == Some(kind))
}

/// Whether `word` stands in `text` between what is no letter, digit or `_`.
fn has_word(text: &str, word: &str) -> bool {
    let joins = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(joins) && !after.is_some_and(joins)
    })
}

/// The names of several models in a sentence. If two have the same quantisation, only the names of their files tell them apart.
fn listed<F: File>(models: &[&Model<F>]) -> String {
    let mut labels: Vec<&str> = models.iter().map(|model| model.label()).collect();
    labels.sort_unstable();
    labels.dedup();
    let told = |model: &&Model<F>| match labels.len() < models.len() {
        true => model.told(&model.stem),
        false => model.told(model.label()),
    };
    named(models.iter().map(told), models.len())
}

/// The models that `wanted` names: by their quantisation, else by a word of their name, else by a part of it.
fn fitting<'a, F>(models: &'a [Model<F>], wanted: &str) -> Vec<&'a Model<F>> {
    let upper = wanted.to_ascii_uppercase();
    let wanted = upper.strip_suffix(".GGUF").unwrap_or(&upper);
    let upper_stem = |model: &Model<F>| model.stem.to_ascii_uppercase();
    let of = |fits: &dyn Fn(&Model<F>) -> bool| -> Vec<&'a Model<F>> {
        models.iter().filter(|model| fits(model)).collect()
    };
    let mut found = of(&|model| model.quantisation.as_deref() == Some(wanted));
    if found.is_empty() {
        found = of(&|model| has_word(&upper_stem(model), wanted));
    }
    if found.is_empty() {
        found = of(&|model| upper_stem(model).contains(wanted));
    }
    found
}

/// Chooses like [`choose_any`], among models whose shards are all there. `Q4_K_M` is preferred.
///
/// # Errors
/// [`HubError::MissingShards`], or as for [`choose_any`].
pub(super) fn choose<'a, F: File>(
    repo: &str,
    models: &'a [Model<F>],
    wanted: Option<&str>,
) -> Result<&'a Model<F>, HubError> {
    let model = choose_any(repo, models, wanted, true)?;
    match model.is_whole() {
        true => Ok(model),
        false => Err(HubError::MissingShards {
            repo: repo.to_owned(),
            model: model.label().to_owned(),
            missing: model.missing.clone(),
        }),
    }
}

/// The model that is meant by `wanted`, a quantisation or a part of a name. If nothing is wanted, it is the only model. If there are
/// several, `prefers` says whether `Q4_K_M` is taken.
///
/// # Errors
/// [`HubError::NoGguf`], [`HubError::NoQuantisation`], [`HubError::Several`].
pub(super) fn choose_any<'a, F: File>(
    repo: &str,
    models: &'a [Model<F>],
    wanted: Option<&str>,
    prefers: bool,
) -> Result<&'a Model<F>, HubError> {
    let found = match wanted {
        Some(wanted) => fitting(models, wanted),
        None if prefers && models.len() > 1 => match fitting(models, PREFERRED) {
            none if none.is_empty() => models.iter().collect(),
            found => found,
        },
        None => models.iter().collect(),
    };
    let repo = repo.to_owned();
    match (found.as_slice(), wanted) {
        _ if models.is_empty() => Err(HubError::NoGguf(repo)),
        ([], wanted) => Err(HubError::NoQuantisation {
            repo,
            wanted: wanted.unwrap_or(PREFERRED).to_owned(),
            there: listed(&models.iter().collect::<Vec<_>>()),
        }),
        ([model], _) => Ok(model),
        (several, wanted) => Err(HubError::Several {
            repo,
            wanted: wanted.map(str::to_owned),
            found: listed(several),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl File for String {
        fn bytes(&self) -> Option<u64> {
            self.contains("Q8_0").then_some(3 << 29)
        }
    }

    fn of(names: &[&str]) -> Vec<Model<String>> {
        models(
            names
                .iter()
                .map(|name| ((*name).to_owned(), (*name).to_owned())),
        )
    }

    fn chosen(names: &[&str], wanted: Option<&str>) -> Result<Vec<String>, String> {
        let models = of(names);
        let chosen = choose("a/b", &models, wanted);
        chosen
            .map(|model| model.files.clone())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn names_tell_quantisations() {
        for (stem, expected) in [
            ("GLM-4.7-Flash-Q4_K_M", Some("Q4_K_M")),
            ("DeepSeek-V2-Lite-Chat.IQ2_xs", Some("IQ2_XS")),
            ("GLM-4.7-Flash-UD-Q4_K_XL", Some("UD-Q4_K_XL")),
            ("BF16/GLM-4.7-Flash", Some("BF16")),
            ("qwen2-f16", Some("F16")),
            ("model-MXFP4_MOE", Some("MXFP4_MOE")),
            ("Q-model", None),
            ("tales", None),
        ] {
            assert_eq!(quantisation(stem).as_deref(), expected, "{stem}");
        }
    }

    #[test]
    fn a_quantisation_tells_whether_it_is_computed() {
        for name in [
            "Q4_K_M",
            "q8_0",
            "UD-Q4_K_XL",
            "UD-Q8_K_XL",
            "IQ4_XS",
            "IQ4_NL",
            "BF16",
            "FP16",
            "F32",
            "Q2_K_L",
            "Q5_1",
            "IQ1_S",
            "UD-IQ2_XXS",
            "IQ3_M",
            "MXFP4_MOE",
        ] {
            assert!(is_computed(name), "{name}");
        }
        for name in ["TQ1_0", "UD-TQ2_0", "NVFP4", "Q1_0"] {
            assert!(!is_computed(name), "{name}");
        }
    }

    const REPO: [&str; 8] = [
        "M-Q4_0.gguf",
        "M-Q4_K_M.gguf",
        "M-Q4_K_S.gguf",
        "M-UD-Q4_K_M.gguf",
        "mmproj-F16.gguf",
        "README.md",
        "Q8_0/M-Q8_0-00002-of-00002.gguf",
        "Q8_0/M-Q8_0-00001-of-00002.gguf",
    ];

    #[test]
    fn a_quantisation_names_one_model() {
        for (wanted, expected) in [
            (None, "M-Q4_K_M.gguf"),
            (Some("q4_k_m"), "M-Q4_K_M.gguf"),
            (Some("ud-q4_k_m"), "M-UD-Q4_K_M.gguf"),
            (Some("M-Q4_0.gguf"), "M-Q4_0.gguf"),
        ] {
            assert_eq!(
                chosen(&REPO, wanted).expect("one fits"),
                [expected],
                "{wanted:?}"
            );
        }
        let shards = chosen(&REPO, Some("Q8_0")).expect("both shards are there");
        assert_eq!(
            shards,
            [
                "Q8_0/M-Q8_0-00001-of-00002.gguf",
                "Q8_0/M-Q8_0-00002-of-00002.gguf"
            ]
        );
        assert_eq!(
            chosen(&["only-Q2_K.gguf"], None).expect("the only one"),
            ["only-Q2_K.gguf"]
        );
    }

    #[test]
    fn a_repository_of_very_many_files_is_told_in_short() {
        // Each lacks all but one of its shards.
        let names: Vec<_> = (0..2000)
            .map(|i| format!("m{i}-00001-of-99999.gguf"))
            .collect();
        let models = models(names.into_iter().map(|name| (name.clone(), name)));
        for wanted in [None, Some("m7"), Some("m1999")] {
            let error = choose("a/b", &models, wanted)
                .expect_err("none is whole")
                .to_string();
            assert!(error.len() < 5000, "{error:.6000}");
            assert!(error.contains(" more"), "{error}");
        }
    }

    #[test]
    fn none_and_several_are_told() {
        for (names, wanted, expected) in [
            (
                &REPO[..],
                Some("Q5_K_M"),
                "a/b has no Q5_K_M; it has Q4_0, Q4_K_M, Q4_K_S, UD-Q4_K_M, Q8_0 (3.0 GiB)",
            ),
            (
                &REPO,
                Some("Q4_K"),
                "several models that fit Q4_K; name one: Q4_K_M, Q4_K_S, UD-Q4_K_M",
            ),
            (
                &["a-Q2_K.gguf", "b-Q3_K.gguf"],
                None,
                "several models; name one: Q2_K, Q3_K",
            ),
            (
                &["a-Q2_K.gguf", "b-Q2_K.gguf"],
                None,
                "name one: a-Q2_K, b-Q2_K",
            ),
            (
                &["a-TQ2_0.gguf", "b-Q8_0.gguf"],
                None,
                "name one: TQ2_0 (glimt does not run it), Q8_0 (1.5 GiB)",
            ),
            (&["README.md"], None, "a/b has no GGUF file"),
            (
                &["m-Q2_K-00002-of-00003.gguf"],
                None,
                "lacks shards of Q2_K: m-Q2_K-00001-of-00003.gguf, m-Q2_K-00003-of-00003.gguf",
            ),
        ] {
            let error = chosen(names, wanted).expect_err("it is not one model");
            assert!(error.contains(expected), "{error}");
        }
    }
}
