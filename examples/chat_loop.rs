//! A conversation with the built-in model: each line of standard input is a turn, and a session file keeps it if one is named.
//!
//! `cargo run --release --example chat_loop [FILE]`
//!
//! What was said before is never computed again: the whole conversation is rendered for each turn, and the session keeps what it has in
//! common with that.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;

use glimt::engine::{Engine, EngineOptions, ModelSource, Opened, Sampling, SessionFile};
use glimt::tokenizer::{Message, StreamDecoder};

/// Tokens of an answer at most.
const MOST: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let opened = Opened::new(&ModelSource::Embedded, &EngineOptions::default())?;
    let engine = Engine::load(opened, &mut |_| {})?;
    let mut session = engine.session()?;
    let mut messages: Vec<Message> = vec![];
    let mut file = match std::env::args().nth(1) {
        Some(path) => Some(SessionFile::open(Path::new(&path), &engine)?),
        None => None,
    };
    if let Some(file) = &mut file {
        file.restore(&mut session)?;
        if !file.data().is_empty() {
            let turns: Vec<(String, String)> = serde_json::from_slice(file.data())?;
            messages.extend((turns.into_iter()).map(|(role, said)| Message::new(role, said)));
        }
    }
    for line in io::stdin().lock().lines() {
        messages.push(Message::new("user", line?));
        let text = engine.render_chat(&messages, None)?;
        let tokens = engine.tokenizer().encode_chat(&text)?;
        let reused = session.keep_common(&tokens);
        let (mut answer, mut decoder) = (String::new(), StreamDecoder::new(engine.tokenizer()));
        let stats = session.generate(&tokens[reused..], &Sampling::GREEDY, MOST, &mut |token| {
            let piece = decoder.push(token);
            print!("{piece}");
            answer.push_str(&piece);
            match io::stdout().flush() {
                Ok(()) => ControlFlow::Continue(()),
                Err(_) => ControlFlow::Break(()),
            }
        })?;
        println!(
            "\n[{reused} tokens reused, {} evaluated]",
            stats.prompt_tokens
        );
        messages.push(Message::new("assistant", answer));
        if let Some(file) = &mut file {
            let turns = messages.iter().map(|turn| (&turn.role, &turn.content));
            let data = serde_json::to_vec(&turns.collect::<Vec<_>>())?;
            file.save(&mut session, &data)?;
        }
    }
    Ok(())
}
