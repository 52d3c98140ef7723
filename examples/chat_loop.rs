//! A conversation with the built-in model: each line of standard input is a turn, and a session file keeps it if one is named.
//!
//! `cargo run --release --example chat_loop [FILE]`
//!
//! Nothing is computed twice: the conversation keeps the tokens of answers as they were generated, and the session
//! keeps what it has in common with the next prompt.

use std::error::Error;
use std::io::{self, BufRead, Write};
use std::ops::ControlFlow;
use std::path::Path;

use glimt::chat::{Conversation, Piece, ReplyReader, Turn};
use glimt::engine::{Engine, EngineOptions, ModelSource, Opened, Sampling, SessionFile, Wait};

/// Tokens of an answer at most.
const MOST: usize = 60;

fn main() -> Result<(), Box<dyn Error>> {
    let opened = Opened::new(&ModelSource::Embedded, &EngineOptions::default()).wait()?;
    let engine = Engine::load(opened, &mut |_| {}).wait()?;
    let mut session = engine.session().wait()?;
    let mut conversation = Conversation::new(None);
    let mut file = match std::env::args().nth(1) {
        Some(path) => Some(SessionFile::open(Path::new(&path), &engine)?),
        None => None,
    };
    if let Some(file) = &mut file {
        file.restore(&mut session).wait()?;
        if !file.data().is_empty() {
            conversation = serde_json::from_slice(file.data())?;
        }
    }
    eprintln!("each line is a message, and Ctrl-D ends");
    for line in io::stdin().lock().lines() {
        conversation.turns.push(Turn::User(line?));
        let prompt = conversation.prompt(&engine, None)?;
        let left = session.sync(&prompt.ids);
        let mut reader = ReplyReader::new(engine.tokenizer(), &prompt.text);
        let stats = session
            .generate(left, &Sampling::GREEDY, MOST, &mut |token| {
                if let Some(Piece::Answer(text)) = reader.push(token) {
                    print!("{text}");
                }
                match io::stdout().flush() {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            })
            .wait()?;
        let evaluated = stats.prompt_tokens;
        let reused = prompt.ids.len() - evaluated;
        println!("\n[{reused} tokens reused, {evaluated} evaluated]");
        let (reply, _) = reader.finish();
        conversation.turns.push(Turn::Reply(reply));
        if let Some(file) = &mut file {
            file.save(&mut session, &serde_json::to_vec(&conversation)?)
                .wait()?;
        }
    }
    Ok(())
}
