//! Texts: their length, pattern and format.

use serde_json::{Map, Value, json};

use super::patterns;
use super::probe::{Verdict, takes, verdict};
use super::walk::Walker;
use super::{SchemaError, shown};

/// Formats that llguidance enforces. Others say something to readers.
const FORMATS: [&str; 10] = [
    "date-time",
    "time",
    "date",
    "duration",
    "email",
    "hostname",
    "ipv4",
    "ipv6",
    "uuid",
    "uri",
];
/// The longest text whose length is enforced: what counts to more takes too long.
const MOST_LENGTH: u64 = 1 << 16;

impl Walker<'_> {
    /// Writes what `map` says of texts to `out`.
    pub(super) fn strings(
        &mut self,
        map: &Map<String, Value>,
        out: &mut Map<String, Value>,
    ) -> Result<(), SchemaError> {
        for keyword in ["minLength", "maxLength"] {
            match self.count(map, keyword)? {
                Some(length) if length > MOST_LENGTH => self.lose(format!("{keyword} {length}")),
                Some(0) if keyword == "minLength" => {}
                Some(length) => drop(out.insert(keyword.to_owned(), length.into())),
                None => {}
            }
        }
        match map.get("format") {
            None | Some(Value::Null) => {}
            Some(Value::String(format)) if FORMATS.contains(&format.as_str()) => {
                out.insert("format".to_owned(), format.as_str().into());
            }
            Some(Value::String(format)) if is_uuid(format) => {
                out.insert("format".to_owned(), "uuid".into());
                self.lose(format!("the version in format {format}"));
            }
            // Beside a pattern it says the same in a word.
            Some(Value::String(_)) if map.contains_key("pattern") => {}
            Some(Value::String(format)) => self.lose(format!("format {format}")),
            Some(other) => return Err(self.wrong("format", other, "a text")),
        }
        let mut patterns = match map.get("pattern") {
            None | Some(Value::Null) => vec![],
            Some(Value::String(pattern)) => {
                let found = patterns::read(pattern);
                for lost in found.lost {
                    self.lose(lost);
                }
                found.all
            }
            Some(other) => return Err(self.wrong("pattern", other, "a text")),
        };
        patterns.retain(|pattern| {
            let taken = takes(json!({"type": "string", "pattern": pattern}));
            if !taken {
                self.lose(format!("pattern {}", shown(&pattern.as_str().into())));
            }
            taken
        });
        let lengths = ["minLength", "maxLength"]
            .iter()
            .any(|keyword| out.contains_key(*keyword));
        let kinds = usize::from(lengths) + usize::from(out.contains_key("format")) + patterns.len();
        if kinds > 1 {
            self.reconcile(out, &mut patterns);
        }
        let mut patterns = patterns.into_iter();
        if let Some(pattern) = patterns.next() {
            out.insert("pattern".to_owned(), pattern.into());
        }
        for pattern in patterns {
            Self::also(out, json!({"type": "string", "pattern": pattern}));
        }
        Ok(())
    }

    /// Takes back what cannot be followed together with the rest.
    fn reconcile(&mut self, out: &mut Map<String, Value>, patterns: &mut Vec<String>) {
        let found = together(out, patterns);
        // Some libraries give a format beside a pattern for texts that the standard's format does not have.
        if found == Verdict::Empty
            && !patterns.is_empty()
            && let Some(Value::String(format)) = out.shift_remove("format")
        {
            match together(out, patterns) {
                Verdict::Taken => self.lose(format!("format {format}, which the pattern excludes")),
                _ => drop(out.insert("format".to_owned(), format.into())),
            }
        }
        if found != Verdict::Refused {
            return;
        }
        // One by one they can be followed.
        if let Some(longest) = out.shift_remove("maxLength") {
            if together(out, patterns) != Verdict::Refused {
                self.lose("maxLength beside pattern or format");
                return;
            }
            out.insert("maxLength".to_owned(), longest);
        }
        self.lose("pattern beside other keywords");
        patterns.clear();
    }
}

/// Whether a format is that of one version of UUIDs.
fn is_uuid(format: &str) -> bool {
    let version = format.strip_prefix("uuid");
    version.is_some_and(|version| matches!(version.as_bytes(), [b'1'..=b'8']))
}

/// The verdict of llguidance on the keywords written for texts together with these patterns.
fn together(out: &Map<String, Value>, patterns: &[String]) -> Verdict {
    let mut probe = json!({"type": "string"});
    for keyword in ["minLength", "maxLength", "format"] {
        if let Some(value) = out.get(keyword) {
            probe[keyword] = value.clone();
        }
    }
    let pattern = |pattern: &String| json!({"type": "string", "pattern": pattern});
    let all: Vec<_> = patterns.iter().map(pattern).collect();
    if !all.is_empty() {
        probe["allOf"] = all.into();
    }
    verdict(probe)
}
