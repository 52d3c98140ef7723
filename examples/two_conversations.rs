//! Two conversations on one engine: the second branches off from the first, without computing anything again, and goes on from a session
//! file later.
//!
//! `cargo run --release --example two_conversations FILE`

use std::error::Error;
use std::ops::ControlFlow;
use std::path::Path;

use glimt::engine::{
    Engine, EngineError, EngineOptions, ModelSource, Opened, Sampling, Session, SessionFile, Wait,
};

/// Continues `session` with `text`; returns what the model says.
fn say(session: &mut Session, text: &str) -> Result<String, EngineError> {
    let engine = session.engine().clone();
    let tokenizer = engine.tokenizer();
    let prompt = tokenizer.encode(text, session.position() == 0)?;
    let mut answer = vec![];
    let stats = session
        .generate(&prompt, &Sampling::GREEDY, 12, &mut |token| {
            answer.push(token);
            ControlFlow::Continue(())
        })
        .wait()?;
    println!(
        "[{} evaluated]{text}{}",
        stats.prompt_tokens,
        tokenizer.decode(&answer)
    );
    Ok(tokenizer.decode(&answer))
}

fn main() -> Result<(), Box<dyn Error>> {
    let path = std::env::args()
        .nth(1)
        .ok_or("name a file that keeps the branch")?;
    let opened = Opened::new(&ModelSource::Embedded, &EngineOptions::default()).wait()?;
    let engine = Engine::load(opened, &mut |_| {}).wait()?;
    let mut fox = engine.session().wait()?;
    say(&mut fox, "Once upon a time there was a")?;
    let mut crow = fox.branch().wait()?;
    say(&mut fox, " The fox said:")?;
    say(&mut crow, " The crow said:")?;

    let mut file = SessionFile::open(Path::new(&path), &engine)?;
    file.save(&mut crow, b"the crow's").wait()?;
    let expected = say(&mut crow, " And so")?;
    drop(file);

    // Later, perhaps in another process.
    let mut file = SessionFile::open(Path::new(&path), &engine)?;
    let mut restored = engine.session().wait()?;
    file.restore(&mut restored).wait()?;
    if let Some(differs) = file.differs() {
        println!("{differs}");
    }
    let found = say(&mut restored, " And so")?;
    println!("the same: {}", found == expected);
    Ok(())
}
