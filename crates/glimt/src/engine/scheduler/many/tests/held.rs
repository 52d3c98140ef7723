//! Protects those who share a GPU with a chooser that takes its time: they decode on, and it goes on as if nothing had been.

use std::sync::atomic::{AtomicUsize, Ordering};
use web_time::Duration;

use super::*;

/// Chooses the best token, but before its second one only when others have come so far.
struct Late {
    others: Arc<AtomicUsize>,
    until: usize,
    chosen: usize,
}

impl Chooser for Late {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        assert!(
            self.is_ready(Duration::ZERO),
            "it was not asked whether it is"
        );
        self.chosen += 1;
        Chain::new(ChainSettings::new(Sampling::GREEDY)).choose(logits, context)
    }

    fn is_ready(&mut self, _: Duration) -> bool {
        self.chosen != 1 || self.others.load(Ordering::Relaxed) >= self.until
    }
}

/// Runs a job whose chooser is late beside another one, and alone: the texts of the first.
fn beside(engine: &Engine, goes: Option<usize>) -> [Vec<Event>; 2] {
    let mut many = many(engine);
    let stops = engine.tokenizer().stop_tokens();
    let late = Job::new(vec![4, 5, 6], 4).without(stops);
    let other = Job::new(vec![7, 8], 12).without(stops);
    let others = Arc::new(AtomicUsize::new(0));
    let chooser = Late {
        others: Arc::clone(&others),
        until: 9,
        chosen: 0,
    };
    let request = Request {
        choice: Choice::Host(Box::new(chooser)),
        ..late.request()
    };
    many.submit(RequestId(0), request).expect("it fits");
    many.submit(RequestId(1), other.request()).expect("it fits");
    let mut found = [vec![], vec![]];
    while !many.is_idle() {
        let told = &mut |RequestId(id), event| {
            if let (1, Event::Token(_)) = (id, &event) {
                others.fetch_add(1, Ordering::Relaxed);
            }
            found[id as usize].push(event);
            ControlFlow::Continue(())
        };
        complete(many.step(told)).expect("the device works");
        if goes == Some(others.load(Ordering::Relaxed)) {
            many.cancel(RequestId(0));
        }
    }
    assert_eq!(many.pages.held(), 0);
    found
}

#[test]
fn others_decode_on_while_a_chooser_is_not_ready() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let [late, other] = beside(&engine, None);
    assert_eq!(text(&other).len(), 12);
    let mut many = many(&engine);
    let on_host = Job {
        on_host: true,
        ..Job::new(vec![4, 5, 6], 4)
    };
    let alone = run(&mut many, &[on_host]);
    assert_eq!(text(&late), text(&alone[0]));
}

#[test]
fn who_waits_for_a_chooser_may_go() {
    let Some(engine) = engine(Tier::Subgroup, 4 * N_CTX) else {
        return;
    };
    let [late, other] = beside(&engine, Some(5));
    assert_eq!(text(&late).len(), 1);
    assert_eq!(text(&other).len(), 12);
}
