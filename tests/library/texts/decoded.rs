//! Decoding on a backend with drafts in every step, whether they pay or not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use glimt::engine::backend::Backend;
use glimt::engine::cpu::CpuBackend;
use glimt::engine::draft::{
    DraftMeans, DraftOptions, DraftSource, Drafter, Drafts, Proposal, Verified,
};
use glimt::engine::gpu::{GpuBackend, GpuModel};
use glimt::engine::{Products, Sampling, Wait};
use glimt::gpu::Gpu;
use glimt::model::NextnSource;

use super::{MODEL, Place, Text, all_of, first_difference, samplings, some_texts, texts};
use crate::golden::{fixture, load_with_nextn};
use crate::testing::drawn;

/// The points by which the share of accepted drafts may differ from llama.cpp's.
const POINTS: f64 = 3.0;

/// The drafts of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum How {
    /// So many of the layer in every step.
    Layer(usize),
    /// Those of matches, wherever there are some.
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

    fn verified(&mut self, step: &Verified) {
        self.counts[0] += step.drafted;
        self.counts[1] += step.accepted;
        let took = Duration::from_micros(1000 + step.drafted as u64);
        self.matches.verified(&Verified { took, ..*step });
    }
}

/// The model with its layer on a device, for texts of up to `n_ctx` tokens.
fn backend(place: Place, n_ctx: usize) -> Option<Box<dyn Backend>> {
    let model = load_with_nextn(&fixture(MODEL)?, &NextnSource::Own);
    Some(match place {
        Place::Cpu => {
            let backend = CpuBackend::new(model, Products::Quick, n_ctx);
            Box::new(backend.expect("there is memory"))
        }
        Place::Gpu(_) => {
            let gpu = Gpu::open(&place.options()).wait().expect("it was opened");
            let loaded = GpuModel::load(Arc::new(gpu), model, &mut |_, _| {}).wait();
            let loaded = Arc::new(loaded.expect("the model fits"));
            let backend = GpuBackend::with_drafts(loaded, n_ctx, None, u32::MAX).wait();
            Box::new(backend.expect("a small cache"))
        }
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

/// What became of answers.
#[derive(Default)]
struct Found {
    /// By the kind of the text, how tokens were chosen, and the drafts.
    counts: BTreeMap<(String, &'static str, How), Counts>,
    /// Of greedy texts with drafts of the layer that are comparable one by one: llama.cpp's text was the same throughout.
    comparable: Vec<(String, Counts)>,
    answers: usize,
    /// Greedy answers that are llama.cpp's.
    like_llama_cpp: usize,
    differing: Vec<String>,
}

fn share([drafted, accepted]: [usize; 2]) -> f64 {
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
                let (theirs, stayed) = match how {
                    How::Layer(1) if is_greedy => (text.n1, text.same1),
                    How::Layer(3) if is_greedy => (text.n3, text.same3),
                    _ => ([0; 2], false),
                };
                let counts = [drafter.counts, theirs];
                if std::env::var_os("TEXTS_SHOW").is_some() {
                    eprintln!("show {what} {counts:?} like {is_like} stayed {stayed}");
                }
                self.add(text, (name, how), counts);
                if is_like && stayed {
                    self.comparable.push((what, counts));
                }
            }
        }
    }

    /// Prints the sums, and fails if a text differs, or a share does where all texts of a kind were computed.
    fn check(&self, place: Place, is_whole: bool) {
        eprintln!(
            "{place:?}: {} answers with drafts, {} differ from those without; {} greedy ones are llama.cpp's",
            self.answers,
            self.differing.len(),
            self.like_llama_cpp
        );
        let mut wrong = vec![];
        for ((kind, name, how), [ours, theirs]) in &self.counts {
            let mut line = format!("{kind}, {name}, {how:?}: {ours:?} {:.1}%", share(*ours));
            if theirs[0] > 0 {
                line += &format!(", llama.cpp {theirs:?} {:.1}%", share(*theirs));
                if is_whole && (share(*ours) - share(*theirs)).abs() > POINTS {
                    wrong.push(line.clone());
                }
            }
            eprintln!("{line}");
        }
        assert!(self.differing.is_empty(), "{:#?}", self.differing);
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

fn compare(place: Place, texts: &[Text], limit: usize) -> Option<Found> {
    let longest = texts.iter().map(|text| text.prompt.len()).max()?;
    let mut backend = backend(place, longest + limit)?;
    let mut found = Found::default();
    let began = Instant::now();
    for text in texts {
        found.compare(&mut *backend, text, limit);
        if std::env::var_os("TEXTS_SHOW").is_some() {
            eprintln!("{:?} {:?}", text.name, began.elapsed());
        }
    }
    eprintln!("{:.0} s", began.elapsed().as_secs_f64());
    Some(found)
}

#[test]
#[ignore = "long: scripts/test --all"]
fn all_answers_on_the_cpu_are_the_same_with_drafts_of_which_as_many_are_accepted_as_in_llama_cpp() {
    let all = texts();
    if let Some(found) = compare(Place::Cpu, &all, 128) {
        found.check(Place::Cpu, true);
    }
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_on_the_gpu_are_the_same_with_drafts_of_which_as_many_are_accepted_as_in_llama_cpp() {
    let texts = some_texts(3);
    for place in Place::tiers() {
        if let Some(found) = compare(place, &texts, 128) {
            found.check(place, texts.len() == super::texts().len());
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
        if let Some(found) = compare(place, &text, limit) {
            found.check(place, false);
        }
    }
}
