//! The parts that all translations of other APIs' requests to requests for chats have in common.

use serde_json::{Map, Value, json};

use super::ask::ANSWERS;
use super::error::ApiError;
use super::fields::Fields;
use super::known::is_off;

/// The fields that go to the chat as they are: all but those that the API has in its own way. They count as read where the chat reads them,
/// and the others where the API does.
///
/// # Errors
/// If the request asks for several answers, which these APIs have no place for.
pub(super) fn shared(fields: &Fields<'_>, own: &[&str]) -> Result<Map<String, Value>, ApiError> {
    for name in ANSWERS {
        fields.count(name, 1..=1)?;
    }
    let all = fields.unmarked().iter();
    let shared = all.filter(|(name, _)| !own.contains(&name.as_str()));
    let shared = shared.map(|(name, value)| (name.clone(), value.clone()));
    Ok(shared.collect())
}

/// Reads the request that `fields` became. Fields that it does not read are not read in `fields` either, nor in its object `inner`.
///
/// # Errors
/// The problem with the request, by the names that fields have there.
pub(super) fn read<T>(
    fields: &Fields<'_>,
    inner: Option<&str>,
    body: &Value,
    read: impl FnOnce(&Fields<'_>) -> Result<T, ApiError>,
) -> Result<T, ApiError> {
    let translated = Fields::of_body(body)?;
    let found = read(&translated)?;
    fields.read_like(&translated);
    if let Some(inner) = inner.map_or(Ok(None), |inner| fields.object(inner))? {
        inner.read_like(&translated);
    }
    Ok(found)
}

/// Refuses fields that cannot be met, each with the reason. Those that ask for nothing pass.
///
/// # Errors
/// The first that asks for something.
pub(super) fn refuse(fields: &Fields<'_>, names: &[(&str, &str)]) -> Result<(), ApiError> {
    for (name, why) in names {
        if fields.get(name).is_some_and(|value| !is_off(value, &[])) {
            return Err(fields.wrong(name, why));
        }
    }
    Ok(())
}

/// A tool as a chat has it.
pub(super) fn tool(name: &str, description: Option<&Value>, parameters: Option<&Value>) -> Value {
    let mut function = json!({ "name": name });
    for (key, value) in [("description", description), ("parameters", parameters)] {
        if let Some(value) = value {
            function[key] = value.clone();
        }
    }
    json!({"type": "function", "function": function})
}

/// A demand for one tool as a chat has it.
pub(super) fn demand(name: &str) -> Value {
    json!({"type": "function", "function": {"name": name}})
}

/// A demand for an answer by a schema as a chat has it.
pub(super) fn by_schema(schema: &Value) -> Value {
    json!({"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}})
}

/// A call of an earlier answer as a chat has it.
pub(super) fn call(id: &str, name: &str, arguments: &Value) -> Value {
    json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments}})
}

/// Messages of a chat that are put together from smaller things.
#[derive(Default)]
pub(super) struct Messages {
    all: Vec<Value>,
    /// Whether the last message is an answer of the model that goes on.
    is_open: bool,
}

impl Messages {
    /// A message of somebody else than the model.
    pub(super) fn said(&mut self, role: &str, text: impl Into<Value>) {
        self.all.push(json!({"role": role, "content": text.into()}));
        self.is_open = false;
    }

    /// Adds the result of a tool.
    pub(super) fn returned(&mut self, call: &str, text: impl Into<Value>) {
        let message = json!({"role": "tool", "tool_call_id": call, "content": text.into()});
        self.all.push(message);
        self.is_open = false;
    }

    /// The model's message, of which none of these fields is there yet.
    fn answer(&mut self, without: &[&str]) -> &mut Value {
        let last = self.all.last().filter(|_| self.is_open);
        let goes_on = last.is_some_and(|last| without.iter().all(|name| last.get(name).is_none()));
        if !goes_on {
            self.all.push(json!({"role": "assistant"}));
            self.is_open = true;
        }
        let last = self.all.len() - 1;
        &mut self.all[last]
    }

    /// Thoughts of the model, before its text and its calls.
    pub(super) fn thought(&mut self, text: &str) {
        let answer = self.answer(&["content", "tool_calls"]);
        let before = answer["reasoning_content"].as_str().unwrap_or_default();
        answer["reasoning_content"] = format!("{before}{text}").into();
    }

    /// A text of the model, before its calls.
    pub(super) fn answered(&mut self, text: &str) {
        let answer = self.answer(&["tool_calls"]);
        let before = answer["content"].as_str().unwrap_or_default();
        answer["content"] = format!("{before}{text}").into();
    }

    /// A call of the model.
    pub(super) fn called(&mut self, call: Value) {
        let answer = self.answer(&[]);
        match answer.get_mut("tool_calls").and_then(Value::as_array_mut) {
            Some(calls) => calls.push(call),
            None => answer["tool_calls"] = json!([call]),
        }
    }

    /// Ends the model's message, if one goes on.
    pub(super) fn end(&mut self) {
        self.is_open = false;
    }

    /// Whether the last one is a text of the model, with which it may go on.
    pub(super) fn ends_with_text(&self) -> bool {
        let last = self.all.last();
        last.is_some_and(|last| last["role"] == "assistant" && last.get("tool_calls").is_none())
    }

    /// All messages.
    pub(super) fn all(self) -> Value {
        self.all.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_texts_and_calls_make_one_message() {
        let mut messages = Messages::default();
        messages.said("user", "go");
        messages.thought("hm");
        messages.answered("I ");
        messages.answered("look.");
        messages.called(call("c1", "look", &json!({})));
        messages.called(call("c2", "look", &json!({})));
        messages.returned("c1", "a");
        messages.returned("c2", "b");
        messages.answered("One.");
        messages.thought("or");
        messages.answered("Two.");
        let calls = json!([
            call("c1", "look", &json!({})),
            call("c2", "look", &json!({}))
        ]);
        let expected = json!([
            {"role": "user", "content": "go"},
            {"role": "assistant", "reasoning_content": "hm", "content": "I look.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c1", "content": "a"},
            {"role": "tool", "tool_call_id": "c2", "content": "b"},
            {"role": "assistant", "content": "One."},
            {"role": "assistant", "reasoning_content": "or", "content": "Two."},
        ]);
        assert_eq!(messages.all(), expected);
    }

    #[test]
    fn what_the_chat_does_not_read_is_not_read() {
        let body = json!({"own": 1, "top_p": 1, "bogus": 1, "messages": [], "options": {"seed": 1, "own": 1, "bogus": 1}});
        let fields = Fields::of_body(&body).expect("it is an object");
        let mut chat = shared(&fields, &["own", "options"]).expect("one answer is asked for");
        chat.insert("messages".to_owned(), json!([{"role": "user"}]));
        let options = fields.object("options").expect("it is").expect("there are");
        fields.skip(&["own"]);
        options.skip(&["own"]);
        chat.extend(shared(&options, &["own"]).expect("one answer is asked for"));
        let read_some = |chat: &Fields<'_>| {
            chat.skip(&["top_p", "seed", "messages"]);
            Ok(())
        };
        read(&fields, Some("options"), &chat.into(), read_some).expect("nothing is wrong");
        // The messages that were read are not those of this field.
        assert_eq!(fields.unread(), ["bogus", "messages", "options.bogus"]);
    }

    #[test]
    fn what_asks_for_nothing_is_not_refused() {
        let body =
            json!({"a": null, "b": false, "c": [], "d": {}, "e": "", "f": 1, "g": 0, "n": 1});
        let fields = Fields::of_body(&body).expect("it is an object");
        let names = ["a", "b", "c", "d", "e", "g"].map(|name| (name, "is not known"));
        assert_eq!(refuse(&fields, &names), Ok(()));
        assert!(refuse(&fields, &[("f", "is not known")]).is_err());
        let left =
            shared(&fields, &["a", "b", "c", "d", "e", "g"]).expect("one answer is asked for");
        assert_eq!(Value::from(left), json!({"f": 1, "n": 1}));
        for two in [json!({"n": 2}), json!({"n_cmpl": 2})] {
            assert!(shared(&Fields::of_body(&two).expect("it is an object"), &[]).is_err());
        }
    }
}
