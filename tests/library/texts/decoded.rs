//! Protects decoding on a backend with drafts in every step, whether they pay or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glimt::engine::backend::Backend;
use glimt::engine::cpu::CpuBackend;
use glimt::engine::draft::{
    Acceptance, DraftMeans, DraftOptions, DraftSource, Drafter, Drafts, Proposal, Verified,
};
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::engine::{Products, Sampling, Wait};
use glimt::gpu::Gpu;
use glimt::model::NextnSource;
use glimt::models::mla::Model;

use super::{MODEL, Place, Text, all_of, first_difference, samplings, some_texts, texts};
use crate::golden::{fixture, load_with_nextn};
use crate::testing::drawn;

/// The points by which a share of accepted drafts may differ from llama.cpp's.
pub(super) const POINTS: f64 = 3.0;

/// The drafts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// So many of the layer in every step.
    Layer(usize),
    /// Tokens that followed a match, wherever there is one.
    Matched,
}

impl How {
    const ALL: [Self; 3] = [Self::Layer(1), Self::Layer(3), Self::Matched];
}

/// Drafts of a device on which further tokens of a step cost nothing.
struct Free {
    how: How,
    matches: Drafts,
    counts: [usize; 2],
}

impl Free {
    fn new(how: How, means: &DraftMeans) -> Self {
        let options = DraftOptions {
            source: DraftSource::Ngram,
            most: None,
        };
        let matches = Drafts::new(&options, means).expect("n-grams need nothing");
        Self {
            how,
            matches: matches.expect("they are on"),
            counts: [0; 2],
        }
    }
}

impl Drafter for Free {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        match self.how {
            How::Matched => self.matches.propose(text, most),
            How::Layer(_) if most == 0 => Proposal::None,
            How::Layer(number) => Proposal::Predict(number.min(most)),
        }
    }

    fn acceptance(&mut self, _: usize) -> Acceptance {
        // Steps may be on their way before the one before is there.
        Acceptance::Chosen
    }

    fn verified(&mut self, step: &Verified) {
        self.counts[0] += step.drafted;
        self.counts[1] += step.accepted;
        let took = Duration::from_micros(1000 + step.drafted as u64);
        self.matches.verified(&Verified { took, ..*step });
    }
}

/// The model with its layer on a GPU, for texts of up to `n_ctx` tokens in steps with up to `most` drafts.
pub(super) fn session(place: Place, model: Arc<Model>, n_ctx: usize, most: u32) -> GpuBackend {
    let gpu = Gpu::open(&place.options()).wait().expect("it was opened");
    let loaded = GpuModel::load(Arc::new(gpu), model, &mut |_, _| {}).wait();
    let loaded = Arc::new(loaded.expect("the model fits"));
    let backend = GpuBackend::with_drafts(loaded, n_ctx, None, most).wait();
    let mut backend = backend.expect("a small cache");
    let compiled = backend.compile_drafts_now().wait();
    compiled.expect("they can be had");
    backend
}

/// The model with its layer on a device, for texts of up to `n_ctx` tokens in steps with up to `most` drafts.
fn backend(place: Place, n_ctx: usize, most: u32) -> Option<Box<dyn Backend>> {
    let model = load_with_nextn(&fixture(MODEL)?, &NextnSource::Own);
    Some(match place {
        Place::Cpu => {
            let backend = CpuBackend::new(model, Products::Quick, n_ctx);
            Box::new(backend.expect("there is memory"))
        }
        Place::Gpu(_) => Box::new(session(place, model, n_ctx, most)),
    })
}

/// An answer of `limit` tokens.
fn answer(
    backend: &mut dyn Backend,
    prompt: &[u32],
    (sampling, limit): (&Sampling, usize),
    drafter: Option<&mut Free>,
) -> Vec<u32> {
    backend.prefill(prompt, 0).wait().expect("it fits");
    all_of(|on_token| {
        let decoded = match drafter {
            None => backend.decode(prompt, sampling, limit, on_token),
            Some(drafter) => backend.decode_drafted(prompt, sampling, limit, drafter, on_token),
        };
        decoded.wait().expect("it fits");
    })
}

/// Drafted and accepted here, and by llama.cpp where it did the same.
type Counts = [[usize; 2]; 2];

/// The outcome of answers.
#[derive(Default)]
struct Found {
    /// By the kind of the text, how tokens were chosen, and the drafts.
    counts: BTreeMap<(String, &'static str, How), Counts>,
    answers: usize,
    /// Greedy answers that are llama.cpp's.
    like_llama_cpp: usize,
    differing: Vec<String>,
}

pub(super) fn share([drafted, accepted]: [usize; 2]) -> f64 {
    100.0 * accepted as f64 / drafted.max(1) as f64
}

impl Found {
    fn add(&mut self, text: &Text, (name, how): (&'static str, How), counts: Counts) {
        let key = (text.name.0.clone(), name, how);
        let sums = self.counts.entry(key).or_default();
        for (sums, counts) in sums.iter_mut().zip(counts) {
            *sums = [sums[0] + counts[0], sums[1] + counts[1]];
        }
    }

    /// Compares the answers to a text with and without drafts.
    fn compare(&mut self, backend: &mut dyn Backend, text: &Text, limit: usize) {
        let means = backend.draft_means();
        for (name, sampling) in samplings(text) {
            let choice = (&sampling, limit);
            let expected = answer(backend, &text.prompt, choice, None);
            let is_greedy = name == "greedy";
            let is_like = is_greedy && first_difference(&expected, &text.greedy).is_none();
            self.like_llama_cpp += usize::from(is_like);
            for how in How::ALL {
                let mut drafter = Free::new(how, &means);
                let found = answer(backend, &text.prompt, choice, Some(&mut drafter));
                self.answers += 1;
                let what = format!("{:?}, {name}, {how:?}", text.name);
                let difference = first_difference(&found, &expected);
                self.differing
                    .extend(difference.map(|difference| format!("{what}: {difference}")));
                let theirs = match how {
                    How::Layer(1) if is_greedy => text.n1,
                    How::Layer(3) if is_greedy => text.n3,
                    _ => [0; 2],
                };
                self.add(text, (name, how), [drafter.counts, theirs]);
            }
        }
    }

    /// Prints the sums, and fails if a text differs from that without drafts.
    fn check(&self, place: Place) {
        eprintln!(
            "{place:?}: {} answers with drafts, {} differ from those without; {} greedy texts are llama.cpp's",
            self.answers,
            self.differing.len(),
            self.like_llama_cpp
        );
        for ((kind, name, how), [ours, theirs]) in &self.counts {
            eprint!("{kind}, {name}, {how:?}: {ours:?} {:.1}%", share(*ours));
            match theirs[0] {
                0 => eprintln!(),
                _ => eprintln!(", llama.cpp {theirs:?} {:.1}%", share(*theirs)),
            }
        }
        assert!(self.differing.is_empty(), "{:#?}", self.differing);
    }
}

fn compare(place: Place, texts: &[Text], limit: usize, most: u32) -> Option<Found> {
    let longest = texts.iter().map(|text| text.prompt.len()).max()?;
    let mut backend = backend(place, longest + limit, most)?;
    let mut found = Found::default();
    let began = Instant::now();
    for text in texts {
        found.compare(&mut *backend, text, limit);
    }
    eprintln!("{:.0} s", began.elapsed().as_secs_f64());
    Some(found)
}

#[test]
#[ignore = "long: scripts/test --all"]
fn all_answers_on_the_cpu_are_the_same_with_drafts() {
    let all = texts();
    if let Some(found) = compare(Place::Cpu, &all, 128, u32::MAX) {
        found.check(Place::Cpu);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_on_a_gpu_are_the_same_with_drafts() {
    let texts = some_texts(3);
    for place in Place::tiers() {
        if let Some(found) = compare(place, &texts, 128, u32::MAX) {
            found.check(place);
        }
    }
}

#[test]
fn an_answer_of_each_device_is_the_same_with_drafts() {
    let gpus = Place::tiers();
    let gpu = drawn(&gpus, 1).into_iter().copied();
    for (place, limit) in [(Place::Cpu, 48)]
        .into_iter()
        .chain(gpu.map(|gpu| (gpu, 16)))
    {
        let texts = some_texts(1);
        let text: Vec<Text> = drawn(&texts, 1).into_iter().cloned().collect();
        if let Some(found) = compare(place, &text, limit, 3) {
            found.check(place);
        }
    }
}
