//! Answers that are kept in memory, so that later requests can go on from them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

use super::tree;

/// The most answers that are kept. Those go first that were used longest ago.
const MOST: usize = 1000;
/// The most bytes of memory that all kept answers and their requests take, about.
const MOST_BYTES: usize = 32 << 20;

/// An answer with what it answers.
#[derive(Debug, PartialEq)]
pub(super) struct Answer {
    /// The answer that its request goes on from.
    pub(super) previous: Option<String>,
    /// The items of its request.
    pub(super) input: Vec<Value>,
    /// The whole answer.
    pub(super) body: Value,
}

impl Answer {
    /// The items that the model has written.
    pub(super) fn output(&self) -> &[Value] {
        self.body["output"].as_array().map_or(&[], Vec::as_slice)
    }

    fn bytes(&self) -> usize {
        self.input.iter().map(tree::bytes).sum::<usize>() + tree::bytes(&self.body)
    }
}

struct Entry {
    answer: Arc<Answer>,
    bytes: usize,
    /// The larger, the later it was used.
    used: u64,
}

#[derive(Default)]
struct All {
    entries: HashMap<String, Entry>,
    bytes: usize,
    uses: u64,
}

impl All {
    fn remove(&mut self, id: &str) -> bool {
        let removed = self.entries.remove(id);
        self.bytes -= removed.as_ref().map_or(0, |entry| entry.bytes);
        removed.is_some()
    }

    fn get(&mut self, id: &str) -> Option<Arc<Answer>> {
        self.uses += 1;
        let entry = self.entries.get_mut(id)?;
        entry.used = self.uses;
        Some(Arc::clone(&entry.answer))
    }
}

/// The answers that are kept.
#[derive(Default)]
pub(super) struct Kept(Mutex<All>);

impl Kept {
    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an answer under its id, and forgets others where there are too many.
    pub(super) fn put(&self, id: &str, answer: Answer) {
        let bytes = answer.bytes();
        let mut all = self.all();
        all.remove(id);
        all.uses += 1;
        let used = all.uses;
        let answer = Arc::new(answer);
        let entry = Entry {
            answer,
            bytes,
            used,
        };
        all.entries.insert(id.to_owned(), entry);
        all.bytes += bytes;
        while all.entries.len() > MOST || all.bytes > MOST_BYTES {
            let oldest = all.entries.iter().min_by_key(|(_, entry)| entry.used);
            let Some(oldest) = oldest.map(|(id, _)| id.clone()) else {
                return;
            };
            all.remove(&oldest);
        }
    }

    /// The answer with this id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Answer>> {
        self.all().get(id)
    }

    /// Forgets the answer with this id; returns whether there was one.
    pub(super) fn remove(&self, id: &str) -> bool {
        self.all().remove(id)
    }

    /// The answers of a conversation up to the one with this id, the first one first.
    ///
    /// # Errors
    /// The id of one that is not kept.
    pub(super) fn conversation(&self, last: &str) -> Result<Vec<Arc<Answer>>, String> {
        let mut all = self.all();
        let mut found = vec![];
        let mut next = Some(last.to_owned());
        while let Some(id) = next.take() {
            let answer = all.get(&id).ok_or(id)?;
            next.clone_from(&answer.previous);
            found.push(answer);
        }
        found.reverse();
        Ok(found)
    }

    /// The item with this id, of any answer or request.
    pub(super) fn item(&self, id: &str) -> Option<Value> {
        let all = self.all();
        let answers = all.entries.values().map(|entry| &entry.answer);
        let mut items = answers.flat_map(|answer| answer.output().iter().chain(&answer.input));
        items.find(|item| item["id"] == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(previous: Option<&str>, text: &str) -> Answer {
        Answer {
            previous: previous.map(str::to_owned),
            input: vec![json!({"role": "user", "content": "hi"})],
            body: json!({"output": [{"id": format!("msg_{text}"), "text": text}]}),
        }
    }

    #[test]
    fn conversations_are_followed_to_their_beginning() {
        let kept = Kept::default();
        kept.put("a", answer(None, "one"));
        kept.put("b", answer(Some("a"), "two"));
        kept.put("c", answer(Some("b"), "three"));
        let found = kept.conversation("c").expect("all are kept");
        let texts: Vec<_> = found
            .iter()
            .map(|a| a.output()[0]["text"].clone())
            .collect();
        assert_eq!(texts, ["one", "two", "three"]);
        assert_eq!(kept.item("msg_two").expect("it is kept")["text"], "two");
        assert!(kept.remove("a") && !kept.remove("a"));
        assert_eq!(kept.conversation("c"), Err("a".to_owned()));
        assert_eq!(kept.item("msg_one"), None);
    }

    #[test]
    fn what_was_used_longest_ago_is_forgotten_first() {
        let kept = Kept::default();
        for i in 0..MOST {
            kept.put(&i.to_string(), answer(None, "x"));
        }
        assert!(kept.get("0").is_some());
        kept.put("new", answer(None, "x"));
        assert!(kept.get("1").is_none() && kept.get("0").is_some() && kept.get("2").is_some());
        let long = "x".repeat(MOST_BYTES / 2 - 1000);
        kept.put("long", answer(None, &long));
        kept.put(
            "longer",
            answer(None, &format!("{long}{}", "y".repeat(1000))),
        );
        kept.put("last", answer(None, "x"));
        let all = kept.all();
        assert!(all.bytes <= MOST_BYTES && all.entries.contains_key("last"));
        assert!(all.entries.len() < 10, "{}", all.entries.len());
        let bytes: usize = all.entries.values().map(|entry| entry.bytes).sum();
        assert_eq!(all.bytes, bytes);
    }
}
