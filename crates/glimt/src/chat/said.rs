//! Protects what users and tools say: it is text, also where it looks like a mark, and all else has the tokens that it always had.

use serde_json::json;

use crate::chat::{Conversation, Passage, Reply, Turn};
use crate::engine::ModelSource;
use crate::testing::Rng;
use crate::tokenizer::{ChatTemplate, Message, Rendering, Tokenizer, ToolCall};

const PLAIN: &str = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\
    {% if add_generation_prompt %}<|assistant|><think>{% endif %}";

fn built_in() -> Tokenizer {
    let gguf = ModelSource::Embedded.open().expect("it is built in");
    Tokenizer::from_gguf(&gguf).expect("it has a vocabulary")
}

fn template(tokenizer: &Tokenizer, source: &str) -> ChatTemplate {
    let template = ChatTemplate::parse("a template", source, "", "").expect("it is sound");
    template.with_marks_as_text(tokenizer)
}

/// The text of a conversation, its tokens, and how many of them are the token of `mark`.
fn said(tokenizer: &Tokenizer, source: &str, turns: &[Message], mark: &str) -> (String, usize) {
    let template = template(tokenizer, source);
    let rendered = template
        .render_said(turns, true, None)
        .expect("it takes it");
    let ids = tokenizer.encode_said(&rendered).expect("it is text");
    assert_eq!(tokenizer.decode(&ids), rendered.as_str());
    let [mark] = tokenizer.encode(mark, false).expect("it is text")[..] else {
        panic!("{mark} is one token");
    };
    let count = ids.iter().filter(|&&id| id == mark).count();
    (rendered.into_string(), count)
}

#[test]
fn marks_that_users_and_tools_write_are_text() {
    let tokenizer = built_in();
    for mark in [
        "<|user|>",
        "<|assistant|>",
        "</think>",
        "<think>",
        "<sop>",
        "[gMASK]",
    ] {
        let (_, own) = said(&tokenizer, PLAIN, &[Message::new("user", "Hi")], mark);
        for text in [
            mark.to_owned(),
            format!("a{mark}b {mark}"),
            format!("{mark}{mark}\n{mark}"),
            format!("<{mark}>|{mark}"),
        ] {
            for role in ["user", "tool", "observation"] {
                let turns = [Message::new("user", &text), Message::new(role, &text)];
                let (rendered, count) = said(
                    &tokenizer,
                    "<|x|>{{ messages[0].content }}-{{ messages[1].content }}",
                    &turns,
                    mark,
                );
                assert_eq!(
                    (rendered.as_str(), count),
                    (format!("<|x|>{text}-{text}").as_str(), 0),
                    "{role}"
                );
                let (rendered, count) = said(&tokenizer, PLAIN, &turns[..1], mark);
                assert_eq!(
                    rendered,
                    format!("[gMASK]<sop><|user|>{text}<|assistant|><think>")
                );
                assert_eq!(count, own, "{text}");
            }
            // The developer's and the model's own marks stay marks.
            for role in ["system", "assistant"] {
                let turns = [Message::new(role, mark)];
                let (_, count) = said(&tokenizer, "{{ messages[0].content }}", &turns, mark);
                assert_eq!(count, 1, "{role}");
            }
        }
    }
}

#[test]
fn the_ids_of_a_mark_as_text_are_those_of_its_letters() {
    let tokenizer = built_in();
    let template = template(&tokenizer, "{{ messages[0].content }}");
    let rendered = template.render_said(&[Message::new("user", "a <|user|> b")], true, None);
    let ids = tokenizer
        .encode_said(&rendered.expect("it takes it"))
        .expect("it is text");
    // A vocabulary without the mark has no other way.
    let bytes = |ids: &[u32]| {
        ids.iter()
            .map(|&id| tokenizer.token_bytes(id))
            .collect::<Vec<_>>()
    };
    assert!(
        ids.iter().all(|&id| !tokenizer.is_special(id)),
        "{:?}",
        bytes(&ids)
    );
    let apart = ["a <", "|", "user", "|>", " b"]
        .map(|part| tokenizer.encode(part, false).expect("it is text"));
    assert!(ids.len() <= apart.concat().len(), "{:?}", bytes(&ids));
}

#[test]
fn what_has_no_marks_has_the_tokens_that_it_always_had() {
    let (tokenizer, mut rng) = (built_in(), Rng::fresh());
    let template = template(&tokenizer, PLAIN);
    let parts = [
        "a",
        " ",
        "<",
        "|",
        "user",
        ">",
        "\n\n",
        "狐",
        "/nothink",
        "</",
        "think",
        "\u{10fffd}",
        "[",
        "]",
    ];
    for _ in 0..300 {
        let text: String = (0..rng.below(12))
            .map(|_| parts[rng.below(parts.len())])
            .collect();
        let turns = [Message::new("system", &text), Message::new("user", &text)];
        let now = template
            .render_said(&turns, true, None)
            .expect("it takes it");
        let before = template.render(&turns, true, None).expect("it takes it");
        assert_eq!(now.as_str(), before);
        let marks = ["<|user|>", "<think>", "</think>"];
        if !marks.iter().any(|mark| text.contains(mark)) {
            assert_eq!(
                tokenizer.encode_said(&now).expect("it is text"),
                tokenizer.encode_chat(&before).expect("it is text"),
                "{text:?}"
            );
        }
    }
}

#[test]
fn templates_neither_find_marks_nor_lose_them() {
    let tokenizer = built_in();
    let turns = [Message::new("user", "a</think>b <|user|>")];
    for (source, expected) in [
        (
            "{{ messages[0].content.split('</think>')[-1] }}",
            "a</think>b <|user|>",
        ),
        ("{{ '</think>' in messages[0].content }}", "False"),
        (
            "{{ messages[0].content | tojson }}",
            "\"a</think>b <|user|>\"",
        ),
        (
            "{{ messages[0].content | tojson(ensure_ascii=true) }}",
            "\"a</think>b <|user|>\"",
        ),
        (
            "{{ messages[0].content | trim }}{{ messages[0].content[:0] }}",
            "a</think>b <|user|>",
        ),
        (
            "{{ messages[0].content | list | join }}",
            "a</think>b <|user|>",
        ),
        ("{{ messages[0].content | upper }}", "A</THINK>B <|USER|>"),
    ] {
        let (text, count) = said(&tokenizer, source, &turns, "<|user|>");
        assert_eq!((text.as_str(), count), (expected, 0), "{source}");
    }
    // Without marks as text they are read as before.
    let plain = ChatTemplate::parse("a template", PLAIN, "", "").expect("it is sound");
    let rendered = plain.render_said(&turns, true, None).expect("it takes it");
    let ids = tokenizer.encode_said(&rendered).expect("it is text");
    assert_eq!(
        ids,
        tokenizer
            .encode_chat(rendered.as_str())
            .expect("it is text")
    );
}

#[test]
fn names_and_ids_of_calls_and_what_is_told_of_tools_are_text() {
    let tokenizer = built_in();
    let source = "{{ tools | tojson }}{% for m in messages %}{% for c in m.tool_calls %}\
        {{ c.id }}{{ c.function.name }}{{ c.function.arguments.a }}{% endfor %}{{ m.tool_call_id }}{% endfor %}";
    let template = template(&tokenizer, source);
    let mark = "<|user|>";
    let call = ToolCall {
        id: format!("c{mark}"),
        name: mark.to_owned(),
        arguments: [("a".to_owned(), "\u{10fffd}".into())]
            .into_iter()
            .collect(),
    };
    let mut messages = [
        Message {
            tool_calls: vec![call.clone()],
            ..Message::new("assistant", "")
        },
        Message {
            tool_call_id: Some(call.id),
            ..Message::new("tool", "")
        },
    ];
    let mut tools = [json!({"name": "f", mark: [{"description": format!("a {mark}")}], "n": 1})];
    let expected = format!(
        "[{}]c{mark}{mark}\u{10fffd}c{mark}",
        tools[0].to_string().replace(':', ": ").replace(',', ", ")
    );
    let shield = template.shield(&messages, &tools);
    shield.hide(&mut messages);
    shield.hide_tools(&mut tools);
    let rendering = Rendering {
        tools: tools.to_vec(),
        ..Rendering::default()
    };
    let rendered = template.render_with(&messages, &rendering);
    let rendered = shield.opened(&rendered.expect("it takes it"));
    assert_eq!(rendered.as_str(), expected);
    let ids = tokenizer.encode_said(&rendered).expect("it is text");
    assert!(ids.iter().all(|&id| !tokenizer.is_special(id)), "{ids:?}");
}

#[test]
fn a_conversation_with_marks_keeps_its_tokens_from_turn_to_turn() {
    let tokenizer = built_in();
    let template = template(&tokenizer, PLAIN);
    let mut conversation = Conversation::new(Some("Be brief.".to_owned()));
    let mut before: Vec<u32> = Vec::new();
    for question in [
        "Hi <|user|>",
        "</think>",
        "What?",
        "<|assistant|> \u{10fffd}",
    ] {
        conversation.turns.push(Turn::User(question.to_owned()));
        let prompt = conversation
            .in_template(&tokenizer, &template, None)
            .expect("it takes it");
        assert_eq!(tokenizer.decode(&prompt.ids), prompt.text);
        assert!(prompt.text.contains(question));
        assert!(prompt.ids.starts_with(&before), "{question}");
        let [user] = tokenizer.encode("<|user|>", false).expect("it is text")[..] else {
            panic!("it is one token");
        };
        let users = prompt.ids.iter().filter(|&&id| id == user).count();
        assert_eq!(users, conversation.turns.len().div_ceil(2), "{question}");
        before = prompt.ids;
        let ids = tokenizer.encode("Yes", false).expect("it is text");
        before.pop();
        let text = "Yes".to_owned();
        let answer = Passage { text, ids };
        let reply = Reply {
            thoughts: None,
            answer,
        };
        conversation.turns.push(Turn::Reply(reply));
    }
}
