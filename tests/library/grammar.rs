//! Protects answers that are kept to a grammar: whatever a model tends to, and however it is sampled, they are of the grammar. It also
//! measures what choosing on the host costs.

use std::ops::ControlFlow;
use std::time::Instant;

use glimt::engine::chooser::{
    Chain, ChainSettings, Chooser, ChooserError, Constrained, Dry, Language, Mirostat, Xtc,
};
use glimt::engine::{DeviceChoice, Engine, EngineError, Sampling, StopReason, Wait};
use serde_json::{Map, Value, json};

use crate::built_in::engine_on;

/// On the CPU reference.
fn engine() -> Engine {
    engine_on(DeviceChoice::Cpu, None, None)
}

/// The answer to a prompt under a grammar, and why it ended.
fn answer(
    engine: &Engine,
    language: Language,
    sampling: Sampling,
) -> Result<(String, StopReason), EngineError> {
    answer_within(engine, language, sampling, usize::MAX)
}

/// The answer to a prompt under a grammar within a limit of tokens, and why it ended.
fn answer_within(
    engine: &Engine,
    language: Language,
    sampling: Sampling,
    limit: usize,
) -> Result<(String, StopReason), EngineError> {
    let grammar = engine.grammar(language)?;
    let chain = Chain::new(ChainSettings::new(sampling));
    let mut chooser = Constrained::new(chain, Some(grammar), None);
    let tokenizer = engine.tokenizer();
    let prompt = tokenizer.encode("The fox said", true)?;
    let mut said = vec![];
    let stats = engine
        .session()
        .wait()?
        .generate_chosen(
            &prompt,
            &mut chooser,
            limit,
            &mut |_| ControlFlow::Continue(()),
            &mut |token| {
                said.push(token);
                ControlFlow::Continue(())
            },
        )
        .wait()?;
    Ok((tokenizer.decode(&said), stats.stop))
}

/// Numbers that differ from run to run of the test, but for a seed that it prints.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// A random schema whose answers are short: an answer may go on for ever where a schema bounds no length, as of fractions.
fn schema(random: &mut Random, depth: u64) -> Value {
    let kinds = if depth == 0 { 7 } else { 10 };
    match random.below(kinds) {
        0 => json!({"type": "boolean"}),
        1 => json!({"type": "null"}),
        2 => json!({"type": "integer", "minimum": -20, "maximum": random.below(1000)}),
        3 => json!({"type": "integer", "minimum": 0, "maximum": 500, "multipleOf": 5}),
        4 => {
            let least = random.below(3);
            json!({"type": "string", "minLength": least, "maxLength": least + random.below(12)})
        }
        5 => json!({"enum": ["fox", "crow", 7, null, true, "a \"quoted\" one"]}),
        6 => json!({"type": "string", "pattern": "^[a-c]{2,4}(x|yz)$"}),
        7 => {
            let least = random.below(3);
            let items = schema(random, depth - 1);
            json!({"type": "array", "items": items, "minItems": least, "maxItems": least + random.below(3)})
        }
        8 => json!({"anyOf": [schema(random, depth - 1), schema(random, depth - 1)]}),
        _ => {
            let names = ["name", "age", "a b", "\u{e9}t\u{e9}"];
            let count = 1 + random.below(names.len() as u64) as usize;
            let mut properties = Map::new();
            for name in &names[..count] {
                properties.insert((*name).to_owned(), schema(random, depth - 1));
            }
            let required: Vec<_> = names[..count]
                .iter()
                .filter(|_| random.below(2) == 0)
                .collect();
            json!({
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            })
        }
    }
}

/// Whether a value is one of a schema's that [`schema`] makes.
fn accepts(schema: &Value, value: &Value) -> bool {
    if let Some(either) = schema["anyOf"].as_array() {
        return either.iter().any(|schema| accepts(schema, value));
    }
    if let Some(all) = schema["enum"].as_array() {
        return all.contains(value);
    }
    let within = |least: &Value, found: f64, most: &Value| {
        least.as_f64().is_none_or(|least| found >= least)
            && most.as_f64().is_none_or(|most| found <= most)
    };
    match schema["type"].as_str() {
        Some("boolean") => value.is_boolean(),
        Some("null") => value.is_null(),
        // As a float, because -0 is an integer of JSON, too.
        Some("integer") => value.as_f64().is_some_and(|number| {
            number % schema["multipleOf"].as_f64().unwrap_or(1.0) == 0.0
                && within(&schema["minimum"], number, &schema["maximum"])
        }),
        Some("string") => value.as_str().is_some_and(|text| {
            let length = text.chars().count() as f64;
            let patterned = schema["pattern"].is_null()
                || ["x", "yz"].iter().any(|end| {
                    text.strip_suffix(end).is_some_and(|begin| {
                        (2..=4).contains(&begin.len())
                            && begin.chars().all(|c| ('a'..='c').contains(&c))
                    })
                });
            patterned && within(&schema["minLength"], length, &schema["maxLength"])
        }),
        Some("array") => value.as_array().is_some_and(|items| {
            within(&schema["minItems"], items.len() as f64, &schema["maxItems"])
                && items.iter().all(|item| accepts(&schema["items"], item))
        }),
        Some("object") => value.as_object().is_some_and(|object| {
            let required = schema["required"].as_array().expect("a list");
            let known = |(name, value): (&String, &Value)| {
                let property = &schema["properties"][name];
                !property.is_null() && accepts(property, value)
            };
            required
                .iter()
                .all(|name| object.contains_key(name.as_str().expect("a name")))
                && object.iter().all(known)
        }),
        _ => false,
    }
}

#[test]
fn answers_to_random_schemas_are_json_that_they_accept() {
    let engine = engine();
    let clock = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let seed = clock.expect("after 1970").as_nanos() as u64;
    let mut random = Random(seed);
    for round in 0..60 {
        let schema = schema(&mut random, 2);
        let sampling = match round % 3 {
            0 => Sampling::GREEDY,
            kind => Sampling {
                temperature: kind as f32,
                top_k: 40,
                seed: random.below(1 << 30),
                ..Sampling::GREEDY
            },
        };
        let what = format!("round {round} of seed {seed}: {schema}");
        let language = Language::JsonSchema(schema.clone());
        let (text, stop) =
            answer(&engine, language, sampling).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(stop, StopReason::StopToken, "{what}: {text}");
        let value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{what}: {e} in {text}"));
        assert!(accepts(&schema, &value), "{what}: {text}");
    }
}

#[test]
fn a_grammar_may_be_any_text() {
    let engine = engine();
    let grammar = r#"
        start: "yes" | "no, " /[a-z]{3,8}/ "!"
    "#;
    for seed in 0..6 {
        let sampling = Sampling {
            temperature: 1.0,
            seed,
            ..Sampling::GREEDY
        };
        let language = Language::Lark(grammar.to_owned());
        let (text, stop) = answer(&engine, language, sampling).expect("the grammar is one");
        assert_eq!(stop, StopReason::StopToken, "{text}");
        let middle = text
            .strip_prefix("no, ")
            .and_then(|rest| rest.strip_suffix('!'));
        let is_word = |word: &str| {
            (3..=8).contains(&word.len()) && word.bytes().all(|b| b.is_ascii_lowercase())
        };
        assert!(text == "yes" || middle.is_some_and(is_word), "{text:?}");
    }
}

/// Grammars in GBNF, and whether a text is of them.
type Checked = (&'static str, fn(&str) -> bool);

fn is_sum(text: &str) -> bool {
    // A sum of products of numbers and sums in parentheses: removing the innermost leaves one.
    let mut text = text.replace(' ', "");
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    while let Some(open) = text.rfind('(') {
        let Some(close) = text[open..].find(')').map(|at| open + at) else {
            return false;
        };
        if !text[open + 1..close].split(['+', '*']).all(is_number) {
            return false;
        }
        text.replace_range(open..=close, "1");
    }
    text.split(['+', '*']).all(is_number)
}

const GBNF: [Checked; 4] = [
    (
        r#"
# A JSON object of bounded length.
root   ::= "{" member ("," member){0,2} "}"
member ::= name ":" value
value  ::= name | number | "[" (value ("," value)?)? "]" |
           "{" (member)? "}"
name   ::= "\"" ([a-zA-Z ] | "\\" ["\\nt]){1,8} "\""
number ::= "-"? ("0" | [1-9] [0-9]{0,3}) ("." [0-9]{1,2})?
"#,
        |text| serde_json::from_str::<Map<String, Value>>(text).is_ok(),
    ),
    (
        "root ::= item{2,4}\nitem ::= \"- \" [^\\n\\x00-\\x1f]{1,20} \"\\n\"",
        |text| {
            let lines: Vec<_> = text.lines().collect();
            (2..=4).contains(&lines.len())
                && lines.iter().all(|line| {
                    line.strip_prefix("- ")
                        .is_some_and(|item| (1..=20).contains(&item.chars().count()))
                })
        },
    ),
    (
        "root ::= sum \"\\n\"\nsum ::= product | product \" + \" sum\nproduct ::= factor (\" * \" factor)?\n\
         factor ::= [0-9]{1,3} | \"(\" sum \")\"",
        |text| text.strip_suffix('\n').is_some_and(is_sum),
    ),
    (
        // Ambiguous on purpose: where a word ends is known at its end only.
        "root ::= word root | word \".\"\nword ::= [a-z] | [a-z]{2} \"!\"",
        |text| {
            text.strip_suffix('.').is_some_and(|words| {
                words.split('!').rev().skip(1).all(|word| word.len() >= 2)
                    && words.bytes().all(|b| b.is_ascii_lowercase() || b == b'!')
            })
        },
    ),
];

#[test]
#[ignore = "long: scripts/test --all"]
fn answers_to_gbnf_are_of_the_grammar() {
    let engine = engine();
    let mut ended = [0; GBNF.len()];
    for seed in 0..6 {
        for (number, (grammar, is_of_it)) in GBNF.into_iter().enumerate() {
            let sampling = Sampling {
                temperature: [1.0, 1.5, 20.0][seed as usize % 3],
                seed,
                ..Sampling::GREEDY
            };
            let language = Language::of_grammar(grammar.to_owned());
            assert!(matches!(language, Language::Gbnf(_)));
            let (text, stop) = answer_within(&engine, language, sampling, 150)
                .unwrap_or_else(|error| panic!("{grammar}: {error}"));
            // A grammar that recurses may go on for long.
            if stop == StopReason::StopToken {
                assert!(is_of_it(&text), "{text:?} of {grammar}");
                ended[number] += 1;
            }
        }
    }
    assert!(ended.iter().all(|&count| count > 0), "{ended:?}");
}

#[test]
fn gbnf_is_known_by_its_rules() {
    let is_gbnf = |text: &str| matches!(Language::of_grammar(text.to_owned()), Language::Gbnf(_));
    assert!(is_gbnf("# a grammar\n\nroot ::= \"a\""));
    assert!(is_gbnf("  root::=\"a\""));
    assert!(!is_gbnf("start: \"a ::= b\""));
    assert!(!is_gbnf("start: \"a\""));
    assert!(!is_gbnf(""));
}

#[test]
fn what_is_no_grammar_is_refused_with_the_reason() {
    let engine = engine();
    for language in [
        Language::Lark("start: \"a".to_owned()),
        Language::Lark("start: missing".to_owned()),
        Language::Lark(String::new()),
        Language::Lark("start: /(/".to_owned()),
        Language::Lark("start ::= \"a\"".to_owned()),
        Language::JsonSchema(json!({"type": "fox"})),
        Language::JsonSchema(json!({"type": 7})),
        Language::JsonSchema(json!({"$ref": "#/nowhere"})),
        Language::JsonSchema(json!([1, 2])),
        Language::JsonSchema(json!({"type": "integer", "minimum": 5, "maximum": 2})),
        Language::JsonSchema(json!(false)),
    ] {
        let refused = engine.grammar(language.clone());
        match refused.err() {
            Some(error @ (ChooserError::Grammar { .. } | ChooserError::Schema(_))) => {
                let reason = error.to_string();
                assert!(!reason.contains("non-verbose"), "{language:?}: {reason}");
            }
            other => panic!("{language:?}: {other:?}"),
        }
    }
    assert!(engine.grammar(Language::JsonSchema(json!(true))).is_ok());
}

#[test]
fn a_grammar_begins_behind_the_thoughts() {
    let engine = engine();
    let tokenizer = engine.tokenizer();
    let grammar = engine.grammar(Language::Lark("start: \"yes\"".to_owned()));
    let prompt = tokenizer
        .encode("Once upon a time", true)
        .expect("plain text");
    // Any token may end thoughts: here the third that greedy decoding gives.
    let mut thoughts = vec![];
    let keep = &mut |token| {
        thoughts.push(token);
        ControlFlow::Continue(())
    };
    let mut session = engine.session().wait().expect("there is memory");
    session
        .generate(&prompt, &Sampling::GREEDY, 3, keep)
        .wait()
        .expect("it fits");
    let end = thoughts[2];
    assert!(!thoughts[..2].contains(&end), "{thoughts:?}");
    let chain = Chain::new(ChainSettings::new(Sampling::GREEDY));
    let mut chooser = Constrained::new(chain, Some(grammar.expect("it is one")), Some(end));
    let mut said = vec![];
    let stats = engine
        .session()
        .wait()
        .expect("there is memory")
        .generate_chosen(
            &prompt,
            &mut chooser,
            usize::MAX,
            &mut |_| ControlFlow::Continue(()),
            &mut |token| {
                said.push(token);
                ControlFlow::Continue(())
            },
        )
        .wait();
    assert_eq!(stats.expect("it fits").stop, StopReason::StopToken);
    assert_eq!(said[..3], thoughts);
    assert_eq!(tokenizer.decode(&said[3..]), "yes");
}

/// Settings to measure, by name.
fn settings() -> Vec<(&'static str, ChainSettings)> {
    let plain = Sampling {
        temperature: 0.8,
        ..Sampling::GREEDY
    };
    let cut = Sampling {
        top_k: 40,
        top_p: 0.95,
        min_p: 0.05,
        repeat_penalty: 1.1,
        ..plain
    };
    let with = |sampling, change: &dyn Fn(&mut ChainSettings)| {
        let mut settings = ChainSettings::new(sampling);
        change(&mut settings);
        settings
    };
    let dry = Dry {
        multiplier: 0.8,
        base: 1.75,
        allowed_length: 2,
        last_n: u32::MAX,
        breakers: Default::default(),
    };
    let xtc = Xtc {
        probability: 1.0,
        threshold: 0.1,
    };
    vec![
        ("greedy", with(Sampling::GREEDY, &|_| {})),
        ("top-k 40, top-p, min-p, repeat penalty", with(cut, &|_| {})),
        (
            "the same with DRY on 2000 tokens",
            with(cut, &|s| s.dry = Some(dry.clone())),
        ),
        (
            "the same with typical and XTC",
            with(cut, &|s| {
                s.typical_p = 0.9;
                s.xtc = Some(xtc);
            }),
        ),
        (
            "top-p alone",
            with(
                Sampling {
                    top_p: 0.95,
                    ..plain
                },
                &|_| {},
            ),
        ),
        ("typical alone", with(plain, &|s| s.typical_p = 0.9)),
        (
            "mirostat",
            with(plain, &|s| {
                s.mirostat = Some(Mirostat { tau: 5.0, eta: 0.1 })
            }),
        ),
        ("draw from all", with(plain, &|_| {})),
    ]
}

/// The time that the host adds to a token: not a test, but the command of the figures in docs/cli.md.
#[test]
#[ignore = "measures: cargo test --release --test library grammar:: -- --ignored --nocapture"]
fn the_cost_of_a_choice() {
    let mut random = Random(1);
    // About normal, by the sum of twelve even numbers.
    let mut normal = || {
        (0..12)
            .map(|_| random.below(1 << 20) as f32 / (1 << 20) as f32)
            .sum::<f32>()
            - 6.0
    };
    let logits: Vec<f32> = (0..154_880).map(|_| 4.0 * normal()).collect();
    let context: Vec<u32> = (0..2000).map(|i| i * i % 997).collect();
    for (name, settings) in settings() {
        let mut times: Vec<_> = (0..21)
            .map(|_| {
                let mut chain = Chain::new(settings.clone());
                let mut row = logits.clone();
                let began = Instant::now();
                chain.choose(&mut row, &context).expect("something is left");
                began.elapsed()
            })
            .collect();
        times.sort();
        println!("{name}: {:.2} ms", times[10].as_secs_f64() * 1e3);
    }
}
