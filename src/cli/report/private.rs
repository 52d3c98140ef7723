//! The private names of a machine: its users and folders.

use std::path::{Path, PathBuf};

use crate::bench::Source;
use crate::engine::ModelSource;

/// The variables that tell who runs a program.
const USERS: [&str; 3] = ["USER", "LOGNAME", "USERNAME"];

/// The names that are left out of a report.
#[derive(Default)]
pub(super) struct Private {
    /// Paths and what stands in their place, in this order.
    paths: Vec<(String, String)>,
    /// Names of users, which are folders in paths.
    users: Vec<String>,
}

impl Private {
    /// The private words of the one who runs this program, and of the model's file.
    pub(super) fn of(source: &Source) -> Self {
        let users = USERS.iter().filter_map(|name| std::env::var(name).ok());
        let model = match source {
            Source::Model(ModelSource::File(path)) => Some(path.as_path()),
            _ => None,
        };
        Self::new(model, dirs::home_dir().as_deref(), users.collect())
    }

    fn new(model: Option<&Path>, home: Option<&Path>, users: Vec<String>) -> Self {
        let mut private = Self {
            users,
            ..Self::default()
        };
        for path in model.into_iter().flat_map(spellings) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            private.add(&path, &name);
            // The other shards of a split model are beside it.
            if let Some(folder) = path.parent().filter(|folder| folder.is_absolute()) {
                private.add(folder, "<folder>");
            }
        }
        for path in home.into_iter().flat_map(spellings) {
            private.add(&path, "~");
            let user = path
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            private.users.extend(user);
        }
        private.users.retain(|user| !user.is_empty());
        private
    }

    /// Has `path` replaced, unless it is a root.
    fn add(&mut self, path: &Path, with: &str) {
        if path.file_name().is_some() {
            let path = path.to_string_lossy().into_owned();
            self.paths.push((path, with.to_owned()));
        }
    }

    /// `text` without them.
    pub(super) fn hide(&self, text: &str) -> String {
        let mut hidden = text.to_owned();
        for (path, with) in &self.paths {
            hidden = replaced(&hidden, path, with, |_| true);
        }
        for user in &self.users {
            let in_path = |before: &str| before.ends_with(['/', '\\']);
            hidden = replaced(&hidden, user, "<user>", in_path);
        }
        hidden
    }
}

/// A path as it is given and as it is without links.
fn spellings(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    all.extend(path.canonicalize().ok().filter(|other| other != path));
    all
}

/// `text` with `name` replaced wherever it is no part of a longer name, and `fits` what stands before it.
fn replaced(text: &str, name: &str, with: &str, fits: impl Fn(&str) -> bool) -> String {
    let mut new = String::with_capacity(text.len());
    let mut end = 0;
    for (begin, _) in text.match_indices(name) {
        let (before, after) = (&text[..begin], &text[begin + name.len()..]);
        let goes_on = |c: char| c.is_alphanumeric() || c == '_' || c == '-';
        if !after.starts_with(goes_on) && fits(before) {
            new += &text[end..begin];
            new += with;
            end = begin + name.len();
        }
    }
    new + &text[end..]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hidden(model: Option<&str>, home: &str, text: &str) -> String {
        let model = model.map(Path::new);
        Private::new(model, Some(Path::new(home)), vec!["ada".to_owned()]).hide(text)
    }

    #[test]
    fn paths_of_the_home_folder_are_cut() {
        for (text, expected) in [
            ("in /home/ada/.cache/glimt: full", "in ~/.cache/glimt: full"),
            ("in /home/ada", "in ~"),
            ("in /home/adam/x", "in /home/adam/x"),
            (
                "/Volumes/ada/x and /mnt/ada",
                "/Volumes/<user>/x and /mnt/<user>",
            ),
            ("an RTX 2000 ada by /dev/dri", "an RTX 2000 ada by /dev/dri"),
        ] {
            assert_eq!(hidden(None, "/home/ada", text), expected);
        }
    }

    #[test]
    fn of_the_model_only_the_name_of_its_file_is_told() {
        for (model, text, expected) in [
            (
                "/data/our lab/glm-00001-of-00002.gguf",
                "/data/our lab/glm-00001-of-00002.gguf: cut; /data/our lab/glm-00002-of-00002.gguf: missing",
                "glm-00001-of-00002.gguf: cut; <folder>/glm-00002-of-00002.gguf: missing",
            ),
            ("../lab/x.gguf", "../lab/x.gguf: cut", "x.gguf: cut"),
            ("x.gguf", "x.gguf: cut", "x.gguf: cut"),
            ("/x.gguf", "/x.gguf: cut; a/b", "x.gguf: cut; a/b"),
        ] {
            assert_eq!(hidden(Some(model), "/home/ada", text), expected, "{model}");
        }
    }

    #[test]
    fn a_root_is_no_private_folder() {
        let text = "by /dev/dri/card0 of ada";
        assert_eq!(hidden(None, "/", text), text);
    }
}
