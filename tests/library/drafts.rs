//! Protects answers with drafts: they are what they are without, and a session goes on from them as if there had been none.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use glimt::engine::backend::Backend;
use glimt::engine::chooser::{Chain, ChainSettings, Chooser, Constrained, Language};
use glimt::engine::cpu::CpuBackend;
use glimt::engine::draft::{
    DraftMeans, DraftOptions, DraftSource, Drafter, Drafts, Proposal, Verified,
};
use glimt::engine::{
    DeviceChoice, Engine, GenerateStats, ModelSource, Opened, Products, Sampling, Session, Wait,
};
use glimt::model::NextnSource;
use serde::Deserialize;

use crate::built_in::{engine_on, last_logits, options};
use crate::golden::{fixture, load_with_nextn};

/// The options of a source of drafts.
fn from(source: DraftSource) -> DraftOptions {
    DraftOptions { source, most: None }
}

/// Drafts of a device on which further tokens of a step cost little, so that there are many.
struct Cheap(Drafts);

impl Cheap {
    fn new(source: DraftSource, means: &DraftMeans) -> Self {
        let drafts = Drafts::new(&from(source), means).expect("they can be had");
        Self(drafts.expect("they are on"))
    }
}

impl Drafter for Cheap {
    fn propose(&mut self, text: &[u32], most: usize) -> Proposal {
        self.0.propose(text, most)
    }

    fn verified(&mut self, step: &Verified) {
        let took = Duration::from_micros(1000 + 20 * step.drafted as u64);
        self.0.verified(&Verified { took, ..*step });
    }
}

/// An answer of a session, chosen by `chooser` if there is one.
fn answer(
    session: &mut Session,
    prompt: &[u32],
    sampling: &Sampling,
    chooser: Option<&mut dyn Chooser>,
    limit: usize,
) -> (Vec<u32>, GenerateStats) {
    let mut said = vec![];
    let on_prompt = &mut |_| ControlFlow::Continue(());
    let on_token = &mut |token| {
        said.push(token);
        ControlFlow::Continue(())
    };
    let stats = match chooser {
        Some(chooser) => session
            .generate_chosen(prompt, chooser, limit, on_prompt, on_token)
            .wait(),
        None => session
            .generate_watched(prompt, sampling, limit, on_prompt, on_token)
            .wait(),
    };
    (said, stats.expect("it fits"))
}

#[test]
fn answers_in_a_grammar_have_drafts_and_are_the_same() {
    let engine = engine_on(DeviceChoice::Cpu, None, Some(256));
    let tokenizer = engine.tokenizer();
    let prompt = tokenizer.encode("The fox said", true).expect("it is text");
    let language = Language::Regex("( the king and the fox,){9} (good|bad)!".to_owned());
    let mut answers = vec![];
    for source in [DraftSource::Off, DraftSource::Ngram] {
        let mut session = engine.session().wait().expect("there is memory");
        session.set_drafts(from(source)).expect("there are some");
        let grammar = engine.grammar(language.clone()).expect("it is one");
        let sampling = Sampling {
            temperature: 0.9,
            seed: 11,
            ..Sampling::GREEDY
        };
        let chain = Chain::new(ChainSettings::new(sampling));
        let mut chooser = Constrained::new(chain, Some(grammar), None);
        let (said, stats) = answer(&mut session, &prompt, &sampling, Some(&mut chooser), 200);
        let is_drafted = source != DraftSource::Off;
        assert_eq!(stats.drafted > 0, is_drafted, "{stats:?}");
        assert_eq!(stats.accepted > 0, is_drafted, "{stats:?}");
        answers.push((said, stats.steps, stats.stop, session.tokens().to_vec()));
        let next = tokenizer.encode(" and then", false).expect("it is text");
        let whole = [session.tokens(), &next].concat();
        let mut fresh = engine.session().wait().expect("there is memory");
        let expected = last_logits(&mut fresh, &whole);
        assert_eq!(last_logits(&mut session, &next), expected);
    }
    assert_eq!(answers[0], answers[1]);
}

#[test]
fn a_session_with_drafts_is_cut_and_branched_like_one_without() {
    let engine = engine_on(DeviceChoice::Cpu, None, Some(256));
    let tokenizer = engine.tokenizer();
    let text = "The king said: bring me the fox. ".repeat(4);
    let prompt = tokenizer.encode(&text, true).expect("it is text");
    let again = tokenizer.encode(" The king", false).expect("it is text");
    let mut both = [DraftSource::Off, DraftSource::Ngram].map(|source| {
        let mut session = engine.session().wait().expect("there is memory");
        session.set_drafts(from(source)).expect("there are some");
        let (said, stats) = answer(&mut session, &prompt, &Sampling::GREEDY, None, 24);
        let mut branch = session.branch().wait().expect("there is memory");
        session.truncate(prompt.len() + 11);
        let (cut, _) = answer(&mut session, &again, &Sampling::GREEDY, None, 9);
        let (branched, _) = answer(&mut branch, &again, &Sampling::GREEDY, None, 9);
        let rows = 0..session.cached();
        let rows = session.read_rows(rows).wait().expect("they are there");
        ((said, cut, branched, rows), stats.drafted)
    });
    assert!(both[0].0 == both[1].0, "drafts change nothing");
    both.sort_by_key(|(_, drafted)| *drafted);
    assert_eq!(both[0].1, 0);
}

#[test]
fn drafts_that_cannot_be_had_are_refused() {
    let engine = engine_on(DeviceChoice::Cpu, None, Some(64));
    let mut session = engine.session().wait().expect("there is memory");
    let refused = session.set_drafts(from(DraftSource::Mtp)).unwrap_err();
    assert!(refused.to_string().contains("blk.N.nextn"), "{refused}");
}

/// A prompt of the fixture.
#[derive(Deserialize)]
struct Text {
    prompt: Vec<u32>,
}

/// The prompts of the fixture, at most `count` of each kind.
fn texts(count: usize) -> Option<Vec<Vec<u32>>> {
    let texts = std::fs::read_to_string(fixture("tales64/acceptance.json")?).expect("it is there");
    let texts: BTreeMap<String, Vec<Text>> = serde_json::from_str(&texts).expect("it is valid");
    let each = texts
        .into_values()
        .flat_map(|texts| texts.into_iter().take(count));
    Some(each.map(|text| text.prompt).collect())
}

/// Compares answers of up to `limit` tokens with and without drafts, greedy and with a seed, from the layer and from n-grams: to at most `count`
/// prompts of each kind, of which the last tokens are taken, at most `known`.
fn compare(count: usize, known: usize, limit: usize) {
    let (Some(model), Some(prompts)) = (fixture("tales64/tales64-Q4_0.gguf"), texts(count)) else {
        return;
    };
    let model = load_with_nextn(&model, &NextnSource::Own);
    let mut backend = CpuBackend::new(model, Products::Quick, 64 + limit).expect("there is memory");
    let mut counts = [[0; 2]; 2];
    for (seed, prompt) in prompts.iter().enumerate() {
        let prompt = &prompt[prompt.len().saturating_sub(known)..];
        let seeded = Sampling {
            temperature: 0.8,
            repeat_penalty: 1.1,
            seed: seed as u64,
            ..Sampling::GREEDY
        };
        for sampling in [Sampling::GREEDY, seeded] {
            let mut decoded = |drafter: Option<&mut dyn Drafter>| {
                let mut said = vec![];
                let on_token = &mut |token| {
                    said.push(token);
                    ControlFlow::Continue(())
                };
                backend.prefill(prompt, 0).wait().expect("it fits");
                match drafter {
                    None => backend.decode(prompt, &sampling, limit, on_token),
                    Some(drafter) => {
                        backend.decode_drafted(prompt, &sampling, limit, drafter, on_token)
                    }
                }
                .wait()
                .expect("it fits");
                said
            };
            let expected = decoded(None);
            let means = DraftMeans {
                most: 64,
                predicts: true,
                brings_experts: false,
            };
            for (i, source) in [DraftSource::Mtp, DraftSource::Ngram]
                .into_iter()
                .enumerate()
            {
                let mut drafter = Cheap::new(source, &means);
                assert_eq!(
                    decoded(Some(&mut drafter)),
                    expected,
                    "{source:?} {sampling:?}"
                );
                counts[i][0] += drafter.0.drafted();
                counts[i][1] += drafter.0.accepted();
            }
        }
    }
    eprintln!("drafted and accepted: mtp, n-grams {counts:?}");
    assert!(
        counts[0][1] > counts[0][0] / 5 && counts[0][1] > 0,
        "{counts:?}"
    );
}

#[test]
fn answers_of_a_trained_model_are_the_same() {
    compare(1, 16, 20);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn all_answers_of_a_trained_model_are_the_same() {
    compare(30, 64, 128);
}

/// The trained model with its layer, for a context of so many tokens.
fn trained(ctx: usize) -> Option<Engine> {
    let path = fixture("tales64/tales64-Q4_0.gguf")?;
    let mut options = options(DeviceChoice::Cpu, None, Some(ctx));
    options.draft = from(DraftSource::Mtp);
    let opened = Opened::new(&ModelSource::File(path), &options).wait();
    let engine = Engine::load(opened.expect("it opens"), &mut |_| {}).wait();
    Some(engine.expect("it loads"))
}

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_that_the_host_chooses_have_drafts_of_the_layer_and_are_the_same() {
    let (Some(engine), Some(prompts)) = (trained(192), texts(4)) else {
        return;
    };
    let mut drafted = 0;
    for (seed, prompt) in prompts.iter().enumerate() {
        let mut settings = ChainSettings::new(Sampling {
            temperature: 0.6,
            seed: seed as u64,
            ..Sampling::GREEDY
        });
        settings.typical_p = 0.9;
        let answers = [DraftSource::Off, DraftSource::Mtp].map(|source| {
            let mut session = engine.session().wait().expect("there is memory");
            session.set_drafts(from(source)).expect("it has the layer");
            let mut chooser = Chain::new(settings.clone());
            let sampling = Sampling::GREEDY;
            let (said, stats) = answer(&mut session, prompt, &sampling, Some(&mut chooser), 64);
            drafted += stats.drafted;
            said
        });
        assert_eq!(answers[0], answers[1], "{seed}");
    }
    assert!(drafted > 0);
}
