//! Protects the text of whoever has drafts: right or wrong ones, alone or beside others, it is what it is without.

use web_time::Duration;

use super::*;
use crate::engine::draft::{Drafter, Proposal, Verified};
use crate::engine::scheduler::request::DraftCounts;
use crate::engine::testing::small_model_with_nextn;

/// Drafts of a job.
#[derive(Debug, Clone)]
pub(super) struct Guessed {
    /// The prompt and the answer without drafts.
    text: Vec<u32>,
    /// The share of wrong tokens, in percent.
    wrong: usize,
    /// Whether the prediction layer makes some of them.
    predicts: bool,
}

impl Guessed {
    pub(super) fn drafter(&self) -> Box<dyn Drafter> {
        Box::new(Guesses {
            guessed: self.clone(),
            rng: Rng::fresh(),
            flying: None,
        })
    }
}

/// Proposes what follows in a text that it knows, but some tokens are others.
struct Guesses {
    guessed: Guessed,
    rng: Rng,
    /// The drafts of the step before, if it has not landed.
    flying: Option<usize>,
}

impl Drafter for Guesses {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        assert!(most > 0, "it is asked where there is room");
        let count = self.rng.below(most + 1);
        if self.guessed.predicts && count > 0 && self.rng.below(2) == 0 {
            self.flying = Some(count);
            return Proposal::Predict(count);
        }
        let next = self.guessed.text.iter().skip(text.len()).copied();
        let next = next.chain(std::iter::repeat(3)).take(count);
        let mut guess = |token| match self.rng.below(100) < self.guessed.wrong {
            true => self.rng.below(VOCAB as usize) as u32,
            false => token,
        };
        let drafts: Vec<u32> = next.map(&mut guess).collect();
        match drafts.is_empty() {
            true => Proposal::None,
            false => {
                self.flying = Some(drafts.len());
                Proposal::Ids(drafts)
            }
        }
    }

    fn verified(&mut self, step: &Verified) {
        assert!(step.accepted <= step.drafted);
        if step.drafted > 0 {
            assert!(Some(step.drafted) <= self.flying.take());
        }
    }
}

/// A chooser that is often not ready.
struct Moody {
    inner: Box<dyn Chooser>,
    rng: Rng,
    is_ready: bool,
}

impl Chooser for Moody {
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError> {
        assert!(self.is_ready, "it was not asked whether it is");
        self.inner.choose(logits, context)
    }

    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        self.is_ready = false;
        self.inner.accept(token)
    }

    fn is_ready(&mut self, _: Duration) -> bool {
        self.is_ready |= self.rng.below(3) == 0;
        self.is_ready
    }
}

/// The chooser of a job that is chosen for on the host, often not ready.
pub(super) fn moody(inner: Box<dyn Chooser>) -> Box<dyn Chooser> {
    let rng = Rng::fresh();
    Box::new(Moody {
        inner,
        rng,
        is_ready: false,
    })
}

/// The text that a job has without drafts, alone.
fn alone(many: &mut Many, job: &Job) -> Vec<u32> {
    many.pages.forget();
    let lonely = Job {
        comes: 0,
        goes: None,
        drafts: None,
        ..job.clone()
    };
    let events = run(many, &[lonely]).remove(0);
    assert!(matches!(events.last(), Some(Event::Ended(_))), "{events:?}");
    text(&events)
}

/// Asserts that the texts of random jobs with drafts, at once, are those without, and that the rows they leave are right. There are `count` jobs
/// with prompts of up to `most` tokens. Returned is what became of the drafts.
fn assert_same(many: &mut Many, rng: &mut Rng, [count, most]: [usize; 2]) -> DraftCounts {
    let stops = many.engine.tokenizer().stop_tokens().to_vec();
    let mut jobs: Vec<Job> = (0..count).map(|_| random_job(rng, most)).collect();
    let mut expected = vec![];
    for job in &mut jobs {
        if rng.below(2) == 0 {
            *job = job.clone().without(&stops);
        }
        job.limit = 1 + rng.below(40);
        job.goes = (rng.below(5) == 0).then(|| 2 + rng.below(20));
        let answer = alone(many, job);
        job.drafts = (rng.below(5) > 0).then(|| Guessed {
            text: [&job.prompt[..], &answer].concat(),
            wrong: [0, 10, 40, 100][rng.below(4)],
            predicts: many.batch.predicts() > 0,
        });
        expected.push(answer);
    }
    many.pages.forget();
    let before = many.counts().drafts;
    let found = run(many, &jobs);
    for ((job, expected), events) in jobs.iter().zip(&expected).zip(&found) {
        let found = text(events);
        match job.goes {
            Some(_) => assert!(expected.starts_with(&found), "{found:?} of {job:?}"),
            None => assert_eq!(&found, expected, "{job:?}"),
        }
    }
    // The rows that are kept are those of the texts.
    // Rows of a prompt on a GPU have other bits than rows of decoded tokens.
    let compared = usize::from(many.is_slow());
    for (job, expected) in jobs.iter().zip(&expected).take(compared) {
        let prompt = [&job.prompt[..], expected].concat();
        let next = Job {
            drafts: None,
            goes: None,
            comes: 0,
            limit: 3,
            prompt,
            ..job.clone()
        };
        let kept = text(&run(many, std::slice::from_ref(&next))[0]);
        let known = many.pages.known(&next.prompt);
        assert_eq!(kept, alone(many, &next), "{known} pages of {job:?}");
    }
    let mut counts = many.counts().drafts;
    counts.steps -= before.steps;
    counts.drafted -= before.drafted;
    for (count, before) in counts.accepted.iter_mut().zip(before.accepted) {
        *count -= before;
    }
    counts
}

/// Asserts it for mixes on a device with much room and with little, without a prediction layer and with one.
fn assert_mixes(tier: Option<Tier>, mixes: usize) {
    let mut rng = Rng::fresh();
    for rows in some(&[4 * N_CTX, 4 * ROWS], 1) {
        let (model, source) = match rng.below(2) {
            0 => (small_model(), DraftSource::Ngram),
            _ => (small_model_with_nextn(), DraftSource::Mtp),
        };
        let Some(engine) = engine_of(model, source, tier, rows) else {
            return;
        };
        let mut many = many(&engine);
        for _ in 0..mixes {
            // Beside prompts of others a GPU computes tokens by other kernels, with drafts or without. A prompt of one token is no such.
            let jobs = match (tier, rng.below(2)) {
                (Some(_), 0) => [1, 70],
                (Some(_), _) => [2 + rng.below(3), 1],
                (None, _) => [1 + rng.below(3), 70],
            };
            let counts = assert_same(&mut many, &mut rng, jobs);
            let accepted: u64 = counts.accepted.iter().sum();
            assert!(accepted <= counts.drafted && counts.steps <= counts.drafted);
            assert!(counts.accepted.is_sorted_by(|a, b| a >= b), "{counts:?}");
        }
    }
}

#[test]
fn texts_with_drafts_are_those_without() {
    assert_mixes(None, rounds(1));
}

#[test]
#[ignore = "long: scripts/test --all"]
fn texts_with_drafts_are_those_without_on_a_gpu() {
    assert_mixes(Some(Tier::Subgroup), rounds(2));
}

/// A scheduler whose drafts are decided on as if every step took as long.
fn steady(engine: &Engine) -> Many {
    let mut many = many(engine);
    many.pace.steady = Some(Duration::from_millis(1));
    many
}

#[test]
fn right_drafts_save_steps_and_are_counted() {
    let engine = engine(None, 4 * N_CTX).expect("there is a CPU");
    let mut many = steady(&engine);
    let stops = engine.tokenizer().stop_tokens();
    let mut job = Job::new(vec![4, 5, 6], 30).without(stops);
    let answer = alone(&mut many, &job);
    let flown = many.flown;
    job.drafts = Some(Guessed {
        text: [&job.prompt[..], &answer].concat(),
        wrong: 0,
        predicts: false,
    });
    let events = run(&mut many, std::slice::from_ref(&job)).remove(0);
    assert_eq!(text(&events), answer);
    let steps = many.flown - flown;
    let counts = many.counts().drafts;
    let accepted: u64 = counts.accepted.iter().sum();
    assert_eq!(accepted, counts.drafted, "all are right");
    let told = events.iter().filter_map(|event| match event {
        Event::Drafted {
            drafted, accepted, ..
        } => Some([*drafted as u64, *accepted as u64]),
        _ => None,
    });
    let told: Vec<[u64; 2]> = told.collect();
    assert_eq!(told.len() as u64, counts.steps);
    let sum = |which: usize| told.iter().map(|step| step[which]).sum::<u64>();
    assert_eq!([sum(0), sum(1)], [counts.drafted, accepted]);
    // The first token is chosen behind the prompt, and each step chooses one more than it has drafts.
    assert_eq!(steps + accepted, 30);
    assert!(steps < 20, "{steps} steps");
}

/// Proposes as many wrong tokens as it may, and keeps what it hears.
struct Wrong(Arc<std::sync::Mutex<Vec<(usize, Verified)>>>, usize);

impl Drafter for Wrong {
    fn propose(&mut self, _: &[u32], most: usize) -> Proposal {
        self.1 = most;
        Proposal::Ids(vec![VOCAB - 1; most])
    }

    fn verified(&mut self, step: &Verified) {
        self.0
            .lock()
            .expect("nobody panicked")
            .push((std::mem::take(&mut self.1), *step));
    }
}

#[test]
fn drafts_share_the_rows_of_a_step_and_pay_for_all_who_wait() {
    let engine = engine(None, 4 * N_CTX).expect("there is a CPU");
    let mut many = steady(&engine);
    let stops = [&[VOCAB - 1][..], engine.tokenizer().stop_tokens()].concat();
    let heard = Arc::default();
    for id in 0..4 {
        let job = Job::new(vec![4, id as u32], 12).without(&stops);
        many.submit(RequestId(id), job.request()).expect("it fits");
        let last = many.waiting.back_mut().expect("it waits");
        last.drafter = Some(Box::new(Wrong(Arc::clone(&heard), 0)));
    }
    while !many.is_idle() {
        let told = &mut |_, _| ControlFlow::Continue(());
        complete(many.step(told)).expect("the device works");
    }
    let heard = heard.lock().expect("nobody panicked");
    assert!(!heard.is_empty());
    for (most, step) in heard.iter() {
        assert_eq!(step.drafted, *most, "{step:?}");
        assert_eq!(step.accepted, 0);
        // The last token of an answer needs no drafts behind it.
        assert!(*most <= 11, "{step:?}");
    }
    // Four share 32 rows.
    assert!(heard.iter().any(|(most, _)| *most == 7), "{heard:?}");
}
