//! Protects answers with drafts: they are what they are without, and a session goes on from them as if there had been none.

use std::ops::ControlFlow;

use glimt::engine::chooser::{Chain, ChainSettings, Chooser, Constrained, Language};
use glimt::engine::draft::{DraftOptions, DraftSource};
use glimt::engine::{
    CacheType, DeviceChoice, Engine, EngineOptions, GenerateStats, Sampling, Session, Tier, Wait,
};

use crate::built_in::{engine_on, engine_with, engine_with_codes, last_logits, options};

/// The options of a source of drafts.
fn from(source: DraftSource) -> DraftOptions {
    DraftOptions { source, most: None }
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
    let cpu = DeviceChoice::Cpu;
    check_in_grammar(&engine_on(cpu.clone(), None, Some(256)), true);
    check_in_grammar(&engine_with_codes(cpu), true);
}

#[test]
fn answers_in_a_grammar_have_drafts_and_are_the_same_on_a_gpu_with_a_cache_of_codes() {
    // Tier `plain` takes no drafts.
    let engine = engine_with(&EngineOptions {
        cache_type: Some(CacheType::Q8_0),
        draft: from(DraftSource::Ngram),
        ..options(DeviceChoice::Index(0), Some(Tier::Subgroup), Some(256))
    });
    check_in_grammar(&engine, false);
}

/// Checks answers without drafts and with, and, if all tokens are computed `alike`, the logits after them beside those of a prompt.
fn check_in_grammar(engine: &Engine, alike: bool) {
    let tokenizer = engine.tokenizer();
    let prompt = tokenizer.encode("The fox said", true).expect("it is text");
    let language = Language::Regex("( the king and the fox,){9} (good|bad)!".to_owned());
    let sampling = Sampling {
        temperature: 0.9,
        seed: 11,
        ..Sampling::GREEDY
    };
    let answered = |source| {
        let mut session = engine.session().wait().expect("there is memory");
        session.set_drafts(from(source)).expect("there are some");
        let grammar = engine.grammar(language.clone()).expect("it is one");
        let chain = Chain::new(ChainSettings::new(sampling));
        let mut chooser = Constrained::new(chain, Some(grammar), None);
        let answer = answer(&mut session, &prompt, &sampling, Some(&mut chooser), 200);
        (session, answer)
    };
    let mut answers = vec![];
    for source in [DraftSource::Off, DraftSource::Ngram] {
        let is_drafted = source != DraftSource::Off;
        // Where a busy machine makes steps of drafts long, these pause, so it may take more than one answer.
        let mut tries = (0..20).map(|_| answered(source));
        let (mut session, (said, stats)) = tries
            .find(|(_, (_, stats))| (stats.accepted > 0) == is_drafted)
            .expect("there are drafts where they are asked for, and only there");
        assert_eq!(stats.drafted > 0, is_drafted, "{stats:?}");
        answers.push((said, stats.steps, stats.stop, session.tokens().to_vec()));
        if !alike {
            continue;
        }
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
