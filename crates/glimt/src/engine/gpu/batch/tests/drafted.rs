//! Protects text with drafts: it is that without, to the bit, whatever is proposed.

use super::as_one::{bits, way};
use super::*;
use crate::engine::draft::{Acceptance, Drafter, Proposal, Verified};
use crate::engine::gpu::PrecomposeChoice;

/// Proposes by lot: nothing, what will come, what will come with a mistake, or anything.
struct ByLot<'a> {
    rng: Rng,
    /// The text that will come.
    text: &'a [u32],
    /// The results of the steps.
    heard: Vec<[usize; 2]>,
    /// The most drafts that a step was offered, and those that each proposal had.
    most: usize,
}

impl Drafter for ByLot<'_> {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        assert_eq!(text, &self.text[..text.len()]);
        self.most = self.most.max(most);
        let count = 1 + self.rng.below(most);
        let next = self.text[text.len()..].iter().copied().take(count);
        let mut ids: Vec<u32> = next.collect();
        match self.rng.below(5) {
            0 => return Proposal::None,
            1 => {}
            // Nothing, where there is no layer.
            3 => return Proposal::Predict(self.rng.below(9)),
            2 => {
                let wrong = self.rng.below(ids.len());
                ids[wrong] ^= 1;
            }
            // More than there is room for, and some that the vocabulary does not have.
            _ => ids = (0..10).map(|_| self.rng.below(1 << 16) as u32).collect(),
        }
        Proposal::Ids(ids)
    }

    fn acceptance(&mut self, _: usize) -> Acceptance {
        Acceptance::Chosen
    }

    fn verified(&mut self, step: &Verified) {
        assert!(step.accepted <= step.drafted);
        self.heard.push([step.drafted, step.accepted]);
    }
}

/// The tokens of an answer, with drafts or without.
fn answer(
    session: &mut GpuBackend,
    context: &[u32],
    sampling: &Sampling,
    limit: usize,
    drafter: Option<&mut dyn Drafter>,
) -> Vec<u32> {
    complete(session.prefill(context, 0)).expect("it computes");
    let mut ids = vec![];
    let on_token = &mut |id| {
        ids.push(id);
        ControlFlow::Continue(())
    };
    let answered = match drafter {
        Some(drafter) => {
            complete(session.decode_drafted(context, sampling, limit, drafter, on_token))
        }
        None => complete(session.decode(context, sampling, limit, on_token)),
    };
    answered.expect("it decodes");
    ids
}

/// Compares texts with drafts and without in a way by lot.
fn compare(rng: &mut Rng, precompose: &[PrecomposeChoice]) {
    let mut way = way(rng, precompose);
    way.nextn = rng.below(2) == 0;
    let Some(model) = way.load() else {
        eprintln!("skipped: {way:?}");
        return;
    };
    let made =
        GpuBackend::with_drafts(Arc::clone(&model), N_CTX, Some(16), 1 + rng.below(7) as u32);
    let mut session = complete(made).expect("it fits");
    let context = tokens(2 + rng.below(20));
    let sampling = Sampling {
        temperature: [0.0, 0.8][rng.below(2)],
        top_k: [0, 40][rng.below(2)],
        repeat_penalty: [1.0, 1.3][rng.below(2)],
        repeat_last_n: 20,
        seed: rng.bits(),
        ..Sampling::GREEDY
    };
    let biases: Vec<_> = (0..rng.below(2))
        .map(|_| (rng.below(500) as u32, 2.0))
        .collect();
    session.set_biases(Biases::new(&biases).expect("few"));
    let limit = 40;
    let plain = answer(&mut session, &context, &sampling, limit, None);
    let whole = [&context[..], &plain].concat();
    let rows = whole.len() - 1;
    let expected = complete(session.read_rows(0..rows)).expect("they are there");
    let mut drafter = ByLot {
        rng: Rng::fresh(),
        text: &whole,
        heard: vec![],
        most: 0,
    };
    let drafted = answer(&mut session, &context, &sampling, limit, Some(&mut drafter));
    assert_eq!(drafted, plain, "{way:?}, {sampling:?}");
    let found = complete(session.read_rows(0..rows)).expect("they are there");
    // Rows of the prediction layer are made where it drafts.
    let layers = session.batch.recipes.cache().len();
    let blocks = model.model.config().block_count;
    let of_layer = expected.len() / layers;
    let differs = |layer: &usize| {
        let bytes = layer * of_layer..(layer + 1) * of_layer;
        found[bytes.clone()] != expected[bytes]
    };
    let different: Vec<_> = (0..blocks).filter(differs).collect();
    assert!(
        different.is_empty(),
        "layers {different:?} of {layers}: {way:?}"
    );
    let given: usize = drafter.heard.iter().map(|[_, accepted]| accepted + 1).sum();
    // The first token has no step.
    assert_eq!(given + 1, limit, "{:?}", drafter.heard);
    assert_eq!(drafter.most, session.batch.sizes().drafts as usize);
    compare_rows(rng, &mut session, &whole);
}

/// Compares the logits of few tokens for choices of the host with those of single tokens.
fn compare_rows(rng: &mut Rng, session: &mut GpuBackend, ids: &[u32]) {
    let vocab = session.model().model.config().vocab_size;
    let mut expected = alone(session, ids);
    // There is room for the logits of drafts behind them.
    expected.iter_mut().for_each(|row| row.truncate(vocab));
    let mut at = 0;
    while at < ids.len() {
        let count = (1 + rng.below(8)).min(ids.len() - at);
        let mut read = 0;
        let on_row = &mut |row: usize, logits: &[f32]| {
            assert!(
                bits(logits) == bits(&expected[at + row]),
                "{row} of {count} at {at}"
            );
            read = row + 1;
            ControlFlow::Continue(())
        };
        complete(session.logits(&ids[at..at + count], at, on_row)).expect("it computes");
        assert_eq!(read, count);
        at += count;
        // They are kept for a choice.
        assert!(kept(session)[..vocab] == bits(&expected[at - 1]));
    }
}

#[test]
fn text_with_drafts_is_that_without() {
    let mut rng = Rng::fresh();
    compare(&mut rng, &[PrecomposeChoice::Off]);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn text_with_drafts_is_that_without_in_every_way() {
    let mut rng = Rng::fresh();
    for _ in 0..crate::testing::rounds(12) {
        compare(&mut rng, &[PrecomposeChoice::Off, PrecomposeChoice::Both]);
    }
}

#[test]
fn steps_with_drafts_are_compiled_beside_answers() {
    let Some(model) = way(&mut Rng::fresh(), &[PrecomposeChoice::Off]).load() else {
        return;
    };
    let made = GpuBackend::with_drafts(model, N_CTX, Some(16), 1);
    let mut session = complete(made).expect("it fits");
    assert_eq!(
        session.ready_drafts(),
        1,
        "they are compiled when they are needed"
    );
    session.compile_drafts().expect("there are such steps");
    let began = std::time::Instant::now();
    while session.ready_drafts() < 1 {
        assert!(began.elapsed().as_secs() < 300, "it compiles");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // Nobody waited, and the first such step compiles nothing any more.
    let waited = session.gpu().compile_time();
    complete(session.compile_drafts_now()).expect("there are such steps");
    assert_eq!(session.gpu().compile_time(), waited);
}
