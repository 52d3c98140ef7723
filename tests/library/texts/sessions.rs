//! Protects answers of sessions, whose own policy decides on drafts: from a file on which they go on in the middle, and in a grammar.

use std::collections::BTreeMap;
use std::path::Path;

use glimt::engine::chooser::{Chain, ChainSettings, Constrained, Language};
use glimt::engine::draft::{DraftOptions, DraftSource};
use glimt::engine::{
    Engine, EngineOptions, ModelSource, Opened, Sampling, Session, SessionFile, Wait,
};
use serde_json::json;

use super::{MODEL, Place, Text, all_of, first_difference, some_texts, texts};
use crate::golden::fixture;

/// No drafts come first: the others are compared with them.
const SOURCES: [DraftSource; 3] = [DraftSource::Off, DraftSource::Mtp, DraftSource::Ngram];

/// How an answer comes to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    /// Greedy, or drawn: half of it, a file, and the rest.
    Resumed { drawn: bool },
    /// Drawn by the host, in a grammar.
    InAGrammar,
}

impl Way {
    const ALL: [Self; 3] = [
        Self::Resumed { drawn: false },
        Self::Resumed { drawn: true },
        Self::InAGrammar,
    ];
}

/// The model with its layer on a device.
fn engine(place: Place, ctx: usize) -> Option<Engine> {
    let options = EngineOptions {
        gpu: place.options(),
        ctx: Some(ctx),
        draft: DraftOptions {
            source: DraftSource::Mtp,
            most: None,
        },
        ..EngineOptions::default()
    };
    let opened = Opened::new(&ModelSource::File(fixture(MODEL)?), &options).wait();
    let engine = Engine::load(opened.expect("it opens"), &mut |_| {}).wait();
    Some(engine.expect("it loads"))
}

fn session(engine: &Engine, source: DraftSource) -> Session {
    let mut session = engine.session().wait().expect("there is memory");
    let options = DraftOptions { source, most: None };
    session.set_drafts(options).expect("they can be had");
    session
}

/// Draws of a text, which has its own seed.
fn drawn(text: &Text) -> Sampling {
    Sampling {
        temperature: 0.8,
        repeat_penalty: 1.1,
        seed: text.seed(),
        ..Sampling::GREEDY
    }
}

/// An answer, and its drafts with those that were accepted.
type Answer = (Vec<u32>, [usize; 2]);

/// An answer that goes on from a file in its middle.
fn resumed(
    engine: &Engine,
    text: &Text,
    source: DraftSource,
    sampling: &Sampling,
    limit: usize,
) -> Answer {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path: &Path = &folder.path().join("a.session");
    let mut counts = [0; 2];
    let mut say = |session: &mut Session, prompt: &[u32], limit| {
        all_of(|on_token| {
            let stats = session.generate(prompt, sampling, limit, on_token).wait();
            let stats = stats.expect("it fits");
            counts = [counts[0] + stats.drafted, counts[1] + stats.accepted];
        })
    };
    let mut first = session(engine, source);
    let mut said = say(&mut first, &text.prompt, limit / 2);
    let saved = SessionFile::open(path, engine).map(|mut file| file.save(&mut first, b"").wait());
    saved.expect("it is new").expect("it can be written");
    let mut second = session(engine, source);
    let restored = SessionFile::open(path, engine).map(|mut file| file.restore(&mut second).wait());
    restored.expect("it is there").expect("it is whole");
    let all = [&text.prompt[..], &said].concat();
    assert_eq!(second.tokens(), all);
    let rest = second.sync(&all).to_vec();
    said.extend(say(&mut second, &rest, limit - limit / 2));
    (said, counts)
}

/// An answer in a grammar.
fn in_a_grammar(engine: &Engine, text: &Text, source: DraftSource, limit: usize) -> Answer {
    let line = json!({
        "type": "object",
        "properties": {"says": {"type": "string", "maxLength": 60}, "to": {"enum": ["the king", "the fox"]}},
        "required": ["says", "to"],
        "additionalProperties": false,
    });
    let schema = json!({"type": "array", "items": line, "minItems": 4, "maxItems": 4});
    let grammar = engine.grammar(Language::JsonSchema(schema));
    let mut settings = ChainSettings::new(drawn(text));
    settings.typical_p = 0.9;
    let chain = Chain::new(settings);
    let mut chooser = Constrained::new(chain, Some(grammar.expect("it is one")), None);
    let mut session = session(engine, source);
    let mut counts = [0; 2];
    let said = all_of(|on_token| {
        let unwatched = &mut |_| std::ops::ControlFlow::Continue(());
        let stats = session.generate_chosen(&text.prompt, &mut chooser, limit, unwatched, on_token);
        let stats = stats.wait().expect("it fits");
        counts = [stats.drafted, stats.accepted];
    });
    (said, counts)
}

/// Compares answers of up to `limit` tokens with and without drafts.
fn compare(place: Place, texts: &[Text], limit: usize) {
    let longest = texts
        .iter()
        .map(|text| text.prompt.len())
        .max()
        .unwrap_or(0);
    let Some(engine) = engine(place, longest + limit) else {
        return;
    };
    let mut sums: BTreeMap<(Way, &str), [usize; 2]> = BTreeMap::new();
    let mut differing = vec![];
    for text in texts {
        for way in Way::ALL {
            let [expected, others @ ..] = SOURCES.map(|source| match way {
                Way::InAGrammar => in_a_grammar(&engine, text, source, limit),
                Way::Resumed { drawn: true } => resumed(&engine, text, source, &drawn(text), limit),
                Way::Resumed { .. } => resumed(&engine, text, source, &Sampling::GREEDY, limit),
            });
            assert_eq!(expected.1, [0; 2]);
            for ((found, counts), source) in others.iter().zip(&SOURCES[1..]) {
                let sum = sums.entry((way, source.name())).or_default();
                *sum = [sum[0] + counts[0], sum[1] + counts[1]];
                let difference = first_difference(found, &expected.0);
                differing.extend(difference.map(|what| (&text.name, way, *source, what)));
            }
        }
    }
    eprintln!(
        "{place:?}: {} texts, drafted and accepted: {sums:?}",
        texts.len()
    );
    assert!(differing.is_empty(), "{differing:#?}");
}

#[test]
#[ignore = "long: scripts/test --all"]
fn all_sessions_on_the_cpu_say_the_same_with_drafts() {
    compare(Place::Cpu, &texts(), 128);
}

#[test]
#[ignore = "long: scripts/test --all"]
fn sessions_on_the_gpu_say_the_same_with_drafts() {
    let texts = some_texts(3);
    for place in Place::tiers() {
        compare(place, &texts, 128);
    }
}
