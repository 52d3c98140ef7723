//! Follows an answer in its grammar on a thread of its own, so that the tokens that may come next are found while a device computes.

use std::sync::Arc;

use llguidance::Matcher;
use web_time::{Duration, Instant};

use super::refused::refused;
use super::state::{Found, State};
use super::threads::Worker;
use super::{ChooserError, quiet};

/// Time that the tokens of an answer may take to find, beside its thread's other work.
const BUDGET: Duration = Duration::from_secs(2);
/// The time that each token of the answer adds.
const PER_TOKEN: Duration = Duration::from_millis(20);
/// Time for all tokens of an answer after which its thread leaves the processors to others.
const LONG: Duration = Duration::from_millis(200);

/// Follows an answer.
pub(super) struct Follower {
    worker: Worker,
    /// Tokens whose states have not come.
    pending: usize,
    /// The time at which the last of them was handed on.
    since: Instant,
    /// Time that all states may take together, and took.
    budget: Duration,
    took: Duration,
    stands_back: bool,
    state: Result<State, ChooserError>,
}

impl Follower {
    /// Follows a matcher to which nothing was said.
    pub(super) fn new(fresh: &Arc<Matcher>) -> Result<Self, ChooserError> {
        let fresh = Arc::clone(fresh);
        let worker = Worker::new(move || quiet::caught(|| fresh.deep_clone()), next);
        Ok(Self {
            worker: worker.map_err(refused)?,
            pending: 0,
            since: Instant::now(),
            budget: BUDGET,
            took: Duration::ZERO,
            stands_back: false,
            state: Err(ChooserError::Panicked),
        })
    }

    /// Goes on with a token.
    pub(super) fn token(&mut self, token: u32) {
        self.budget += PER_TOKEN;
        self.since = Instant::now();
        self.pending += 1;
        self.worker.hand_on(token);
    }

    /// Waits, for `most` at the longest, until it is known what may come next or that it never will be. `false` if `most` was over first.
    pub(super) fn wait(&mut self, most: Duration) -> bool {
        let began = Instant::now();
        while self.pending > 0 {
            let left = most.saturating_sub(began.elapsed());
            let spent = self.took + self.since.elapsed();
            let spare = self.budget.saturating_sub(spent);
            let patience = match self.stands_back {
                true => Duration::MAX,
                false => LONG.saturating_sub(spent),
            };
            match self.worker.found(left.min(spare).min(patience)) {
                Some((state, took)) => {
                    self.pending -= 1;
                    self.took += took;
                    self.state = state;
                    // The next one is computed from here on.
                    self.since = Instant::now();
                }
                None if patience <= left.min(spare) => {
                    self.worker.stand_back();
                    self.stands_back = true;
                }
                None if spare > left => return false,
                None => self.took = self.budget,
            }
            if self.took >= self.budget {
                self.worker.cancel();
                self.pending = 0;
                self.state = Err(too_slow(self.budget));
            }
        }
        true
    }

    /// The state that tells what may come next. It is waited for.
    pub(super) fn state(&mut self) -> Result<&State, ChooserError> {
        self.wait(Duration::MAX);
        match &mut self.state {
            Ok(state) => Ok(state),
            // It is asked for once.
            Err(error) => Err(std::mem::replace(error, ChooserError::Panicked)),
        }
    }
}

/// The error of a grammar that took all of its time.
pub(super) fn too_slow(budget: Duration) -> ChooserError {
    ChooserError::GrammarTooSlow {
        seconds: budget.as_secs_f64(),
    }
}

/// Goes on with a token, and finds what may come behind it.
fn next(matcher: &mut Matcher, token: u32) -> Found {
    let began = Instant::now();
    let state = quiet::caught(|| {
        // Behind its end comes only the token that ends the answer.
        if !matcher.is_stopped() {
            matcher.consume_token(token).map_err(refused)?;
        }
        State::of(matcher)
    });
    let state = state.unwrap_or(Err(ChooserError::Panicked));
    (state, began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::engine::chooser::{Chooser, Constrained, Grammar, Language};
    use crate::tokenizer::Tokenizer;

    /// Chooses the first token that is left.
    struct First;

    impl Chooser for First {
        fn choose(&mut self, logits: &mut [f32], _: &[u32]) -> Result<u32, ChooserError> {
            let first = logits.iter().position(|logit| logit.is_finite());
            first.map(|id| id as u32).ok_or(ChooserError::NothingLeft)
        }
    }

    fn tokenizer() -> Tokenizer {
        let gguf = ModelSource::Embedded.open().expect("it is whole");
        Tokenizer::from_gguf(&gguf).expect("it has one")
    }

    #[test]
    fn an_answer_is_followed_to_its_end_and_beyond() {
        let tokenizer = tokenizer();
        let language = Language::Lark("start: \"ab\" \"c\"?".to_owned());
        let grammar = Grammar::of(&tokenizer, language).expect("it is one");
        let mut text = String::new();
        let mut chooser = Constrained::new(First, Some(grammar), None);
        assert_eq!(chooser.may_end(), Some(false));
        for _ in 0..9 {
            let mut logits = vec![0.0; tokenizer.vocab_size()];
            let token = chooser.choose(&mut logits, &[]).expect("there is one");
            if text.starts_with("ab") {
                assert_eq!(chooser.may_end(), Some(true), "{text}");
            }
            chooser.accept(token).expect("it is allowed");
            if tokenizer.is_stop(token) {
                // Whatever comes behind the end is left alone.
                assert_eq!(chooser.may_end(), Some(true));
                chooser.accept(token).expect("it is nobody's");
                assert!(
                    matches!(chooser.choose(&mut logits, &[]), Ok(id) if tokenizer.is_stop(id))
                );
                return;
            }
            text += &String::from_utf8_lossy(&tokenizer.token_bytes(token));
            assert!("abc".starts_with(&text), "{text}");
        }
        panic!("{text} has no end");
    }

    #[test]
    fn a_grammar_that_takes_all_of_its_time_is_told_once_and_for_all() {
        let tokenizer = tokenizer();
        // Which of the rules matches is open at each character.
        let ambiguous =
            "start: a\na: b c | c b | /[a-z ]/\nb: a c | c a | /[a-z ]/\nc: a b | b a | /[a-z ]/";
        let language = Language::Lark(ambiguous.to_owned());
        let grammar = Grammar::of(&tokenizer, language).expect("it is one");
        let mut chooser = Constrained::new(First, Some(grammar), None);
        let [token] = tokenizer.encode("a", false).expect("a text")[..] else {
            panic!("a letter is a token");
        };
        let began = Instant::now();
        let mut logits = vec![0.0; tokenizer.vocab_size()];
        let failed = loop {
            chooser.accept(token).expect("nobody has noticed");
            let following = chooser.following.as_mut().expect("it has a grammar");
            let follower = following.follower.as_mut().expect("it has begun");
            follower.budget = follower.budget.min(LONG + Duration::from_millis(100));
            if let Err(error) = chooser.choose(&mut logits, &[]) {
                break error;
            }
            assert!(began.elapsed() < 100 * BUDGET, "it was followed on");
        };
        assert!(
            matches!(failed, ChooserError::GrammarTooSlow { .. }),
            "{failed}"
        );
        let follower = chooser.following.as_ref().and_then(|f| f.follower.as_ref());
        assert!(follower.is_some_and(|follower| follower.stands_back));
        assert!(
            chooser.is_ready(Duration::ZERO),
            "there is nothing to wait for"
        );
        assert!(chooser.choose(&mut logits, &[]).is_err());
    }
}
