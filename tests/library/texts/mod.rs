//! Protects the texts of a trained model with drafts, on the CPU and in each tier of the first adapter: they are what they are without drafts, and as
//! many drafts are accepted as in llama.cpp. A test draws its texts from all of the fixture; the long ones take all of them on the CPU, and with
//! `GLIMT_TEST_MORE=10` also on the adapter.

mod along;
mod decoded;
mod sessions;

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use glimt::engine::backend::OnToken;
use glimt::engine::{DeviceChoice, Sampling, Tier};
use glimt::gpu::{Gpu, GpuError, GpuOptions};
use serde::Deserialize;

use crate::golden::fixture;
use crate::testing::drawn;

/// The file of the model, in the fixtures.
pub const MODEL: &str = "tales64/tales64-Q4_0.gguf";

/// A text of the fixture, and what llama.cpp drafted and accepted of it.
#[derive(Clone, Deserialize)]
pub struct Text {
    /// Its kind, and its number among those of the kind.
    #[serde(skip)]
    pub name: (String, usize),
    pub prompt: Vec<u32>,
    /// llama.cpp's greedy continuation.
    pub greedy: Vec<u32>,
    /// Drafted and accepted with one draft and with up to three.
    pub n1: [usize; 2],
    pub n3: [usize; 2],
    /// Whether these left the text the greedy one in llama.cpp. Where they did not, they are drafts of another text.
    pub same1: bool,
    pub same3: bool,
}

impl Text {
    /// A seed that no other text has.
    fn seed(&self) -> u64 {
        self.name.1 as u64 + 1000 * self.name.0.len() as u64
    }
}

/// All texts of the fixture, or none where there is no fixture.
pub fn texts() -> Vec<Text> {
    let Some(path) = fixture("tales64/acceptance.json") else {
        return vec![];
    };
    let all = std::fs::read_to_string(path).expect("it is there");
    let all: BTreeMap<String, Vec<Text>> = serde_json::from_str(&all).expect("it is valid");
    let named = all.into_iter().flat_map(|(kind, texts)| {
        let named = texts.into_iter().enumerate();
        named.map(move |(i, text)| Text {
            name: (kind.clone(), i),
            ..text
        })
    });
    named.collect()
}

/// So many of the texts of each kind, others in each run; the choice is printed.
pub fn some_texts(count: usize) -> Vec<Text> {
    let all = texts();
    let by_kind = all.chunk_by(|a, b| a.name.0 == b.name.0);
    let taken: Vec<Text> = by_kind
        .flat_map(|texts| drawn(texts, count))
        .cloned()
        .collect();
    let names: Vec<_> = taken.iter().map(|text| &text.name).collect();
    eprintln!("taken: {names:?}");
    taken
}

/// A device that computes texts: the CPU, or the first adapter in a tier.
#[derive(Debug, Clone, Copy)]
enum Place {
    Cpu,
    Gpu(Tier),
}

impl Place {
    fn options(self) -> GpuOptions {
        match self {
            Self::Cpu => GpuOptions {
                device: DeviceChoice::Cpu,
                ..GpuOptions::default()
            },
            Self::Gpu(tier) => GpuOptions {
                tier: Some(tier),
                ..GpuOptions::default()
            },
        }
    }

    /// The tiers that the first adapter runs and that have steps of several tokens.
    fn tiers() -> Vec<Self> {
        let runs = |tier: &Tier| {
            let options = Self::Gpu(*tier).options();
            match glimt::engine::Wait::wait(Gpu::open(&options)) {
                Ok(_) => true,
                Err(GpuError::TierUnsupported { .. }) => false,
                Err(error) => panic!("these tests need a GPU adapter: {error}"),
            }
        };
        let all = [Tier::Subgroup, Tier::Int8].into_iter();
        all.filter(runs).map(Self::Gpu).collect()
    }
}

/// Greedy choices, and draws at two temperatures.
fn samplings(text: &Text) -> [(&'static str, Sampling); 3] {
    let drawn = |temperature| Sampling {
        temperature,
        seed: text.seed(),
        ..Sampling::GREEDY
    };
    [
        ("greedy", Sampling::GREEDY),
        ("0.7", drawn(0.7)),
        ("1.0", drawn(1.0)),
    ]
}

/// The first token that is another one, in words.
fn first_difference(found: &[u32], expected: &[u32]) -> Option<String> {
    let pairs = found.iter().zip(expected);
    let same = pairs.take_while(|(a, b)| a == b).count();
    let (found, expected) = (found.get(same), expected.get(same));
    (found != expected).then(|| format!("token {same} is {found:?} for {expected:?}"))
}

/// A callback that keeps all tokens.
fn into(said: &mut Vec<u32>) -> impl FnMut(u32) -> ControlFlow<()> + Send + '_ {
    |token| {
        said.push(token);
        ControlFlow::Continue(())
    }
}

/// The tokens that `decode` hands to its callback.
fn all_of(decode: impl FnOnce(&mut OnToken<'_>)) -> Vec<u32> {
    let mut said = vec![];
    decode(&mut into(&mut said));
    said
}
