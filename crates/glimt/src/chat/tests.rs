//! Protects conversations: the tokens of a prompt are those of the rendered template, and those of earlier answers stay as generated.

use super::*;
use crate::engine::ModelSource;
use crate::testing::Rng;
use crate::tokenizer::{ChatTemplate, Tokenizer};

/// Writes answers as they are.
const PLAIN: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";
/// Writes a space that the model also generates, and a text behind each answer.
const SPACED: &str = "{% for m in messages %}{% if m.role == 'user' %}{{ 'Q: ' ~ m.content ~ '\\n\\n' }}\
    {% elif m.role == 'assistant' %}{{ 'A: ' ~ m.content ~ '<|endoftext|>' }}{% else %}{{ m.content }}{% endif %}{% endfor %}\
    {% if add_generation_prompt %}{{ 'A:' }}{% endif %}";
/// Removes white space around answers, and leaves earlier thoughts out.
const STRIPPED: &str = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}</think>{{ m.content.strip() }}\
    {% else %}{{ m.content }}{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}";
/// Repeats earlier thoughts.
const THOUGHTFUL: &str = "{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}\
    {% if m.reasoning_content %}<think>{{ m.reasoning_content.strip() }}</think>{% else %}</think>{% endif %}\
    {% endif %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}";
/// Changes what was said.
const SHOUTING: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content | upper }}{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

fn built_in() -> Tokenizer {
    let gguf = ModelSource::Embedded.open().expect("it is built in");
    Tokenizer::from_gguf(&gguf).expect("it has a vocabulary")
}

/// Texts that a model may say, with white space at their ends and characters of several bytes.
const SAID: [&str; 8] = [
    "Once upon a time",
    " Hello.",
    "\n\nA fox.\n",
    "  two spaces  ",
    "狐狸 und Käse 🧀",
    "\n",
    "",
    " x ",
];

/// The tokens of `text`, cut at random places as a model might have generated them.
fn generated(tokenizer: &Tokenizer, text: &str, rng: &mut Rng) -> Passage {
    let mut ids = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let ends = rest.char_indices().map(|(at, c)| at + c.len_utf8());
        let ends: Vec<_> = ends.collect();
        let end = ends[rng.below(ends.len())];
        ids.extend(tokenizer.encode(&rest[..end], false).expect("plain text"));
        rest = &rest[end..];
    }
    Passage {
        text: text.to_owned(),
        ids,
    }
}

/// Counts of tokens for a new question, which tell how much of the conversation is computed again.
struct Asked {
    /// Tokens of the prompt before.
    prompt_before: usize,
    /// Tokens that stay.
    kept: usize,
    /// Tokens of earlier turns.
    earlier: usize,
}

/// Asks some questions, with answers drawn from `said`, and checks each prompt.
fn talk(tokenizer: &Tokenizer, source: &str, said: &[&str], rng: &mut Rng) -> Vec<Asked> {
    let template = ChatTemplate::parse("a template", source, "", "").expect("it is sound");
    // Marks in questions may be text or not.
    let template = match rng.below(2) {
        0 => template,
        _ => template.with_marks_as_text(tokenizer),
    };
    let close = tokenizer.encode("</think>", false).expect("it is text");
    let mut conversation = Conversation::new(Some("Be brief.".to_owned()));
    let (mut computed, mut prompt_before): (Vec<u32>, usize) = (Vec::new(), 0);
    let mut asked = Vec::new();
    for turn in 0..5 {
        conversation
            .turns
            .push(Turn::User(format!("Question {turn}? <|user|>")));
        let prompt = conversation
            .in_template(tokenizer, &template, None)
            .expect("the template takes it");
        assert_eq!(tokenizer.decode(&prompt.ids), prompt.text, "{source}");
        let pairs = computed.iter().zip(&prompt.ids);
        asked.push(Asked {
            prompt_before,
            kept: pairs.take_while(|(said, wanted)| said == wanted).count(),
            earlier: prompt.earlier,
        });
        prompt_before = prompt.ids.len();
        computed = prompt.ids;
        let mut draw = || generated(tokenizer, said[rng.below(said.len())], rng);
        let thinks = prompt.text.ends_with("<think>");
        let thoughts = thinks.then(&mut draw);
        if let Some(thoughts) = &thoughts {
            computed.extend(thoughts.ids.iter().chain(&close));
        }
        let answer = draw();
        computed.extend(&answer.ids);
        conversation
            .turns
            .push(Turn::Reply(Reply { thoughts, answer }));
    }
    asked
}

#[test]
fn answers_that_a_template_repeats_are_not_computed_again() {
    let (tokenizer, mut rng) = (built_in(), Rng::fresh());
    for _ in 0..50 {
        for (source, said) in [(PLAIN, &SAID[..]), (SPACED, &[" Hello.", " x", " 狐狸"])] {
            for asked in talk(&tokenizer, source, said, &mut rng) {
                assert_eq!(asked.kept, asked.earlier, "{source}");
            }
        }
    }
}

#[test]
fn what_a_template_changes_is_all_that_is_computed_again() {
    let (tokenizer, mut rng) = (built_in(), Rng::fresh());
    for _ in 0..50 {
        // Thoughts that are left out: all before them stays.
        for asked in talk(&tokenizer, STRIPPED, &SAID, &mut rng).iter().skip(1) {
            assert_eq!(asked.kept, asked.prompt_before - 1);
            assert!(asked.earlier > asked.kept);
        }
        // Whatever it changes, the prompt is what it asks for.
        for source in [THOUGHTFUL, SHOUTING, SPACED] {
            talk(&tokenizer, source, &SAID, &mut rng);
        }
    }
}

#[test]
fn no_text_can_be_taken_for_a_mark() {
    let tokenizer = built_in();
    let template = ChatTemplate::parse("a template", PLAIN, "", "").expect("it is sound");
    let text = "\u{10f8ff}0\u{10f8ff} \u{10f8ff}\u{10f8fe}0\u{10f8ff}\u{10f8fe}";
    let ids = tokenizer.encode("Yes", false).expect("plain text");
    let text_of = |text: &str| text.to_owned();
    let mut conversation = Conversation::new(None);
    conversation.turns.push(Turn::User(text_of(text)));
    conversation.turns.push(Turn::Reply(Reply {
        thoughts: None,
        answer: Passage {
            text: text_of("Yes"),
            ids,
        },
    }));
    conversation.turns.push(Turn::User(text_of(text)));
    let prompt = conversation.in_template(&tokenizer, &template, None);
    let prompt = prompt.expect("the template takes it");
    assert_eq!(tokenizer.decode(&prompt.ids), prompt.text);
}

/// The template of a model, where the fixtures are; it must keep what it repeats.
#[test]
fn templates_of_the_models_keep_answers() {
    let Some(root) = std::env::var_os("GLIMT_FIXTURES") else {
        eprintln!("skipped: GLIMT_FIXTURES is not set");
        return;
    };
    let (tokenizer, mut rng) = (built_in(), Rng::fresh());
    for (name, said) in [
        ("glm-4.7-flash", &SAID[..]),
        ("deepseek-v2-lite-chat", &[" Hello.", " x"]),
        ("deepseek-v3.1", &SAID[..]),
    ] {
        let path = std::path::Path::new(&root).join(format!("templates/{name}.jinja"));
        let source = std::fs::read_to_string(&path).expect("it is among the fixtures");
        for _ in 0..20 {
            for asked in talk(&tokenizer, &source, said, &mut rng).iter().skip(1) {
                // All before the last answer stays; of a model that thinks all before its thoughts.
                assert!(asked.kept + 2 >= asked.prompt_before, "{name}");
            }
        }
    }
}

#[test]
fn a_reader_tells_thoughts_and_answer_apart() {
    let tokenizer = built_in();
    let ids = |text| tokenizer.encode(text, false).expect("plain text");
    let read = |prompt: &str, tokens: &[u32]| {
        let mut reader = ReplyReader::new(&tokenizer, prompt);
        let (mut thoughts, mut answer) = (String::new(), String::new());
        let mut take = |piece| match piece {
            Some(Piece::Thought(text)) => thoughts += &text,
            Some(Piece::Answer(text)) => answer += &text,
            None => {}
        };
        for &token in tokens {
            take(reader.push(token));
        }
        let (reply, rest) = reader.finish();
        take(rest);
        if let Some(passage) = &reply.thoughts {
            assert_eq!(passage.text, thoughts);
        }
        assert_eq!(reply.answer.text, answer);
        (reply.thoughts.map(|passage| passage.text), answer)
    };
    let text = |text: &str| text.to_owned();
    assert_eq!(
        read("<think>", &ids("Hm.</think>Yes")),
        (Some(text("Hm.")), text("Yes"))
    );
    assert_eq!(
        read("", &ids("<think>Hm.</think>Yes")),
        (Some(text("Hm.")), text("Yes"))
    );
    assert_eq!(read("", &ids("Yes")), (None, text("Yes")));
    assert_eq!(read("<think>", &ids("Hm.")), (Some(text("Hm.")), text("")));
    // A character of which only the first bytes came.
    let cut = ids("🧀");
    if cut.len() > 1 {
        assert_eq!(read("", &cut[..1]).1, "\u{fffd}");
    }
}
