//! A line of a batch: a request in OpenAI's batch format.

use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::server::Endpoint;

/// The most bytes of a line, as a server's requests have them.
pub(super) const MOST_BYTES: usize = 16 << 20;

/// A request.
pub(super) struct Line {
    pub(super) custom_id: String,
    pub(super) endpoint: Endpoint,
    pub(super) body: Value,
}

/// A value in a message, shortened.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

/// The text of a field that must be there.
fn text<'a>(fields: &'a Map<String, Value>, name: &str, expected: &str) -> Result<&'a str, String> {
    match fields.get(name) {
        Some(Value::String(text)) if !text.is_empty() => Ok(text),
        Some(other) => Err(format!("'{name}' is {}; expected {expected}", shown(other))),
        None => Err(format!("'{name}' is missing; expected {expected}")),
    }
}

/// The request of a line.
///
/// # Errors
/// The contents that were found and those that were expected.
pub(super) fn read(bytes: &[u8]) -> Result<Line, String> {
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| format!("is not JSON ({error}); expected an object in one line"))?;
    let Value::Object(mut fields) = value else {
        return Err(format!("is {}; expected an object", shown(&value)));
    };
    let custom_id = text(&fields, "custom_id", "a text that no other line has")?.to_owned();
    let method = text(&fields, "method", "\"POST\"")?;
    if method != "POST" {
        return Err(format!("'method' is \"{method}\"; expected \"POST\""));
    }
    let paths = Endpoint::ALL.map(Endpoint::path).join(" or ");
    let url = text(&fields, "url", &paths)?;
    let endpoint = Endpoint::ALL
        .into_iter()
        .find(|endpoint| endpoint.path() == url);
    let endpoint =
        endpoint.ok_or_else(|| format!("'url' is {}; expected {paths}", shown(&url.into())))?;
    match fields.remove("body") {
        Some(body @ Value::Object(_)) => Ok(Line {
            custom_id,
            endpoint,
            body,
        }),
        Some(other) => Err(format!("'body' is {}; expected an object", shown(&other))),
        None => Err("'body' is missing; expected an object".to_owned()),
    }
}

/// The key of a `custom_id`. Two ids have the same key with the chance of a collision in half of SHA-256.
pub(super) fn key(custom_id: &str) -> u128 {
    let digest: [u8; 32] = Sha256::digest(custom_id.as_bytes()).into();
    digest[..16]
        .iter()
        .fold(0, |key, byte| key << 8 | u128::from(*byte))
}

impl Line {
    /// Names the request by all that is asked, so that an answer tells which request it is of.
    pub(super) fn id(&self) -> String {
        let text = serde_json::json!([self.custom_id, self.endpoint.path(), self.body]);
        let digest: [u8; 32] = Sha256::digest(text.to_string().as_bytes()).into();
        let digits: String = digest[..12].iter().map(|b| format!("{b:02x}")).collect();
        format!("{ID}{digits}")
    }
}

/// The prefix of every id.
pub(super) const ID: &str = "batch_req_";

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn line(value: &Value) -> Result<Line, String> {
        read(value.to_string().as_bytes())
    }

    #[test]
    fn a_request_is_read_and_what_is_wrong_is_told() {
        let good = json!({"custom_id": "狐-1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "狐"}});
        let found = line(&good).expect("it is one");
        assert_eq!(
            (found.custom_id.as_str(), found.endpoint),
            ("狐-1", Endpoint::Completions)
        );
        for (name, value, part) in [
            ("custom_id", json!(7), "'custom_id' is 7; expected a text"),
            ("custom_id", json!(""), "'custom_id' is \"\""),
            (
                "method",
                json!("GET"),
                "'method' is \"GET\"; expected \"POST\"",
            ),
            (
                "url",
                json!("/v1/embeddings"),
                "'url' is \"/v1/embeddings\"; expected /v1/chat/completions or /v1/completions",
            ),
            ("body", json!([]), "'body' is []; expected an object"),
        ] {
            let mut wrong = good.clone();
            wrong[name] = value;
            let problem = line(&wrong).err().expect("it is wrong");
            assert!(problem.starts_with(part), "{problem}");
            wrong.as_object_mut().expect("an object").remove(name);
            let problem = line(&wrong).err().expect("it is missing");
            assert!(
                problem.starts_with(&format!("'{name}' is missing")),
                "{problem}"
            );
        }
        let cut = &good.to_string().into_bytes()[..40];
        assert!(
            read(cut)
                .err()
                .expect("it is cut")
                .starts_with("is not JSON")
        );
        assert!(read(b"[1]").err().expect("a list").starts_with("is [1]"));
    }

    #[test]
    fn ids_tell_requests_apart_whatever_their_spaces() {
        let id = |text: &str| read(text.as_bytes()).expect("a request").id();
        let one = r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}"#;
        assert_eq!(id(one), id(&one.replace(": ", ":")));
        assert_ne!(id(one), id(&one.replace("\"x\"", "\"y\"")));
        assert_ne!(id(one), id(&one.replace("\"a\"", "\"b\"")));
        assert_ne!(key("a"), key("b"));
    }
}
