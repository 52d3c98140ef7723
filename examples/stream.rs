//! Tokens for an application that must not wait: a thread generates them, and the application takes them from a channel.
//!
//! `cargo run --release --example stream`

use std::error::Error;
use std::ops::ControlFlow;
use std::sync::mpsc;
use std::thread;

use glimt::engine::{Engine, EngineError, EngineOptions, ModelSource, Opened, Sampling, Wait};
use glimt::tokenizer::StreamDecoder;

fn main() -> Result<(), Box<dyn Error>> {
    let opened = Opened::new(&ModelSource::Embedded, &EngineOptions::default()).wait()?;
    let engine = Engine::load(opened, &mut |_| {}).wait()?;
    let prompt = engine.tokenizer().encode("Once upon a time", true)?;
    let (send, receive) = mpsc::channel();
    let stats = thread::scope(|scope| {
        let generating = scope.spawn(|| {
            // A session stays on the thread that uses it; the engine is shared.
            let send = send;
            engine
                .session()
                .wait()?
                .generate(&prompt, &Sampling::GREEDY, 40, &mut |token| {
                    // Where nobody listens any more, the answer ends.
                    match send.send(token) {
                        Ok(()) => ControlFlow::Continue(()),
                        Err(_) => ControlFlow::Break(()),
                    }
                })
                .wait()
        });
        // The application: here it is a loop, elsewhere it asks between two frames, with try_recv.
        let mut decoder = StreamDecoder::new(engine.tokenizer());
        for token in receive {
            print!("{}", decoder.push(token));
        }
        println!("{}", decoder.finish());
        let stats = generating.join();
        stats.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let stats = stats.map_err(|error: EngineError| error)?;
    println!("[{} tokens]", stats.generated);
    Ok(())
}
