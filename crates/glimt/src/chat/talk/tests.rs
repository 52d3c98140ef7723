//! Protects text in and text out: a stream gives what waiting gives, piece by piece, and a conversation holds what was said.

use super::*;
use crate::engine::{DeviceChoice, EngineOptions, GpuOptions, ModelSource, Opened, StopReason};
use crate::gpu::pending::may_block;
use crate::gpu::wait::Wait;

fn engine(ctx: usize) -> Engine {
    let options = EngineOptions {
        gpu: GpuOptions {
            device: DeviceChoice::Cpu,
            ..GpuOptions::default()
        },
        ctx: Some(ctx),
        ..EngineOptions::default()
    };
    let opened = Opened::new(&ModelSource::Embedded, &options)
        .wait()
        .expect("it is built in");
    Engine::load(opened, &mut |_| {})
        .wait()
        .expect("the CPU takes it")
}

/// A conversation with answers of eight tokens, which are always the same.
fn chat(engine: &Engine) -> Chat {
    let mut chat = Chat::new(engine).wait().expect("there is memory");
    chat.sampling.seed = 7;
    chat.limit = 8;
    chat
}

/// The tokens of each answer.
fn answers(chat: &Chat) -> Vec<usize> {
    let turns = chat.conversation.turns.iter();
    let answers = turns.filter_map(|turn| match turn {
        Turn::Reply(reply) => Some(reply.answer.ids.len()),
        Turn::User(_) => None,
    });
    answers.collect()
}

#[test]
fn a_stream_gives_what_waiting_gives_and_the_next_question_computes_only_what_is_new() {
    let engine = engine(128);
    let mut waiting = chat(&engine);
    let first = waiting.say("Tell me a story.").wait().expect("it answers");
    let second = waiting.say("Go on.").wait().expect("it answers");
    assert!(!first.is_empty() && first != second);
    assert_eq!(answers(&waiting), [8, 8]);
    let stats = waiting.stats().expect("it has answered");
    assert_eq!((stats.generated, stats.stop), (8, StopReason::Limit));
    let question = engine.tokenizer().encode("Go on.", false);
    let question = question.expect("it is text").len();
    // Two marks of the template are new, too, and the last token of the answer before.
    assert_eq!(stats.prompt_tokens, question + 2);

    let mut streaming = chat(&engine);
    for (text, expected) in [("Tell me a story.", first), ("Go on.", second)] {
        let pieces: Vec<_> = streaming.stream(text).collect();
        assert!(pieces.len() > 4, "{pieces:?}");
        let texts = pieces.into_iter().map(|piece| match piece {
            Ok(Piece::Answer(text)) => text,
            other => panic!("the model does not think: {other:?}"),
        });
        assert_eq!(texts.collect::<String>(), expected);
    }
    assert_eq!(streaming.conversation, waiting.conversation);
}

#[test]
fn a_stream_that_is_dropped_leaves_what_it_gave() {
    let engine = engine(128);
    let mut chat = chat(&engine);
    let mut pieces = chat.stream("Tell me a story.");
    let first = pieces.next().expect("there is one").expect("it answers");
    drop(pieces);
    let reply = chat.conversation.last_reply().expect("it is a turn");
    let Piece::Answer(text) = first else {
        panic!("the model does not think: {first:?}");
    };
    assert_eq!(reply.answer.text, text);
    assert!(reply.answer.ids.len() < 4, "{reply:?}");
    let more = chat.say("Go on.").wait().expect("it answers");
    assert!(!more.is_empty());
    drop(chat.stream("Nobody listens."));
    assert_eq!(chat.conversation.turns.len(), 4);
}

#[test]
fn a_stream_gives_way_between_two_tokens_where_a_thread_waits_for_it() {
    let engine = engine(16);
    let heard = Arc::new(Mutex::new(Heard {
        reader: ReplyReader::plain(engine.tokenizer()),
        pieces: VecDeque::new(),
    }));
    let hears = Arc::clone(&heard);
    let answer = async move {
        // Whoever may block here computes the whole answer before the first piece is given.
        let text = may_block().to_string();
        lock(&hears).pieces.push_back(Piece::Answer(text));
        std::future::pending().await
    };
    let (mut conversation, mut stats) = (Conversation::default(), None);
    let mut pieces = Pieces {
        answer: Some(Box::pin(answer)),
        heard,
        conversation: &mut conversation,
        stats: &mut stats,
    };
    let first = pieces.next().expect("there is one").expect("it is text");
    assert_eq!(first, Piece::Answer("false".to_owned()));
}

#[test]
fn a_question_that_is_refused_is_no_turn() {
    let engine = engine(16);
    let mut chat = chat(&engine);
    let long = "There is no room for this question. ".repeat(4);
    let refused = chat.say(long.as_str()).wait();
    assert!(
        matches!(refused, Err(EngineError::PromptTooLong { n_ctx: 16, .. })),
        "{refused:?}"
    );
    assert!(chat.conversation.turns.is_empty());
    chat.think = Some(true);
    let refused = chat.say("Hello").wait();
    assert!(
        matches!(refused, Err(EngineError::Tokenizer(_))),
        "{refused:?}"
    );
    assert!(chat.conversation.turns.is_empty() && chat.stats().is_none());
    chat.think = None;
    assert!(chat.say("Hello").wait().is_ok());
}

#[test]
fn a_new_conversation_samples_as_is_recommended() {
    let engine = engine(16);
    let [one, other] = [0; 2].map(|_| Chat::new(&engine).wait().expect("there is memory").sampling);
    let recommended = engine.recommended().sampling(false);
    assert_eq!(recommended.repeat_penalty, 1.05);
    assert_eq!(Sampling { seed: 0, ..one }, recommended);
    assert_ne!(one.seed, other.seed);
}
