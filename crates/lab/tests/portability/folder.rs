//! Shaders as files for other compilers: a folder for each language, equal shaders once, and an index of who needs which.

use crate::language::Language;
use crate::pipelines::{Devices, Pipeline};
use crate::shaders::Translations;
use std::collections::HashSet;
use std::fmt::Write;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::Path;

/// The variable that names the folder for all shaders.
pub const SHADERS: &str = "GLIMT_SHADERS";

/// Writes shaders and `index.tsv`, a line for each pipeline and language: kernel, tier, devices, language, file, why there is none.
///
/// # Errors
/// The error of the file system.
pub fn write(folder: &Path, all: &[(&Pipeline, Translations)]) -> io::Result<()> {
    for language in Language::ALL {
        fs::create_dir_all(folder.join(language.name()))?;
    }
    let mut index = String::new();
    let mut written = HashSet::new();
    for (pipeline, translations) in all {
        let (kernel, tier) = (pipeline.spec.kernel, pipeline.tier.name());
        let devices = match pipeline.devices {
            Devices::All => "all",
            Devices::Matrices => "matrices of 16",
            Devices::MatricesAndMetal => "matrices of 8",
        };
        for (language, shader) in translations {
            let (file, reason) = match shader {
                Ok(bytes) => {
                    let mut hasher = DefaultHasher::new();
                    bytes.hash(&mut hasher);
                    let (hash, ending) = (hasher.finish(), language.ending());
                    let file = format!("{}/{kernel}-{hash:016x}.{ending}", language.name());
                    if written.insert(file.clone()) {
                        fs::write(folder.join(&file), bytes)?;
                    }
                    (file, "")
                }
                Err(reason) => (String::new(), *reason),
            };
            let language = language.name();
            let line = [kernel, tier, devices, language, &file, reason].join("\t");
            writeln!(index, "{line}").map_err(io::Error::other)?;
        }
    }
    fs::write(folder.join("index.tsv"), index)
}
