//! API keys.

use axum::http::{HeaderMap, HeaderName, header};
use sha2::{Digest as _, Sha256};

const API_KEY: HeaderName = HeaderName::from_static("x-api-key");

/// The digest of a key, from which nobody can find the key.
pub(super) type Digest = [u8; 32];

/// The keys that a server accepts, as digests. With none of them everybody is served.
#[derive(Clone, Default)]
pub struct Keys(Vec<Digest>);

fn digest(key: &str) -> Digest {
    Sha256::digest(key.as_bytes()).into()
}

impl Keys {
    /// The keys with these texts. Empty texts are left out.
    pub fn new<'a>(keys: impl IntoIterator<Item = &'a str>) -> Self {
        let keys = keys.into_iter().filter(|key| !key.is_empty());
        Self(keys.map(digest).collect())
    }

    /// Whether everybody is served.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The digest of `key` if it is one of them. The time that this takes tells nothing of how much of a key is right.
    pub(super) fn find(&self, key: &str) -> Option<Digest> {
        let given = digest(key);
        let mut found = 0u8;
        for known in &self.0 {
            let differs = known
                .iter()
                .zip(&given)
                .fold(0u8, |sum, (a, b)| sum | (a ^ b));
            found |= std::hint::black_box(u8::from(differs == 0));
        }
        (found != 0).then_some(given)
    }
}

/// The key that a request brings. Anthropic's clients have a header of their own for it.
pub(super) fn given(headers: &HeaderMap) -> Option<&str> {
    let given = headers.get(header::AUTHORIZATION);
    let given = given.and_then(|value| bearer(value.to_str().ok()?));
    given.or_else(|| headers.get(API_KEY)?.to_str().ok())
}

/// The key of the header `Authorization: Bearer KEY`.
fn bearer(header: &str) -> Option<&str> {
    let (scheme, key) = header.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_keys_are_accepted() {
        let keys = Keys::new(["first", "", "second"]);
        assert!(!keys.is_empty() && Keys::new([""]).is_empty());
        assert!(keys.find("first").is_some() && keys.find("second").is_some());
        for wrong in ["", "firs", "first ", "firstsecond", "FIRST"] {
            assert_eq!(keys.find(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn the_scheme_is_bearer() {
        assert_eq!(bearer("Bearer abc"), Some("abc"));
        assert_eq!(bearer("bearer  abc "), Some("abc"));
        assert_eq!(bearer("Basic abc"), None);
        assert_eq!(bearer("abc"), None);
    }
}
