//! Grammars of answers: a grammar is refused with a reason, or can be followed, and what follows it is accepted.
//!
//! The first byte of an input says the language: `g` GBNF, `l` Lark, `r` a regular expression, `s` a JSON schema. Any other is GBNF.

#![no_main]

use glimt::engine::chooser::{
    Chain, ChainSettings, Chooser, ChooserError, Constrained, Grammar, Language, Sampling,
};
use glimt_fuzz::{others_may_panic, seeds, tokenizer, vocabulary};
use libfuzzer_sys::fuzz_target;

/// Tokens of an answer at most.
const STEPS: usize = 12;

fn language(first: u8, text: String) -> Option<Language> {
    Some(match first {
        b'l' => Language::Lark(text),
        b'r' => Language::Regex(text),
        b's' => Language::JsonSchema(serde_json::from_str(&text).ok()?),
        _ => Language::Gbnf(text),
    })
}

/// Follows a grammar for some tokens, of which the most probable differ from step to step.
fn follow(grammar: &Grammar) {
    let tokenizer = tokenizer();
    let chain = Chain::new(ChainSettings::new(Sampling::GREEDY));
    let mut chooser = Constrained::new(chain, Some(grammar.clone()), None);
    let mut said = vec![];
    for step in 0..STEPS {
        let mut logits: Vec<f32> = (0..tokenizer.vocab_size())
            .map(|id| ((id * 31 + step * 17) % 97) as f32)
            .collect();
        let token = match chooser.choose(&mut logits, &said) {
            Ok(token) => token,
            // Limits of llguidance are met late, too.
            Err(
                ChooserError::NothingLeft
                | ChooserError::Grammar { .. }
                | ChooserError::GrammarTooSlow { .. }
                | ChooserError::Panicked,
            ) => return,
            Err(error) => panic!("{error}"),
        };
        chooser.accept(token).expect("it was allowed");
        if tokenizer.is_stop(token) {
            assert!(
                grammar.accepts(&said),
                "{said:?} may end and is not accepted"
            );
            return;
        }
        said.push(token);
    }
}

fuzz_target!(
    init: {
        others_may_panic();
        seeds(|| vec![
            ("gbnf", b"groot ::= item (\",\" item)* \"\\n\"\nitem ::= [a-z\\x41-\\x43]+ | \"x\\u00e4\" digit{1,3} | (\"a\" | \"b\")? # words\ndigit ::= [0-9]\n".to_vec()),
            ("json", b"groot ::= object\nobject ::= \"{\" ws (pair (\",\" ws pair)*)? \"}\"\npair ::= string \":\" value\nvalue ::= object | string | \"true\"\nstring ::= \"\\\"\" [^\"\\\\]* \"\\\"\"\nws ::= [ \\t\\n]*\n".to_vec()),
            ("lark", b"lstart: a \" \" b{2,3}\na: /[a-z]+/\nb: \"x\" | %json {\"type\": \"integer\"}\n".to_vec()),
            ("regex", b"r(a|b)*c{1,3}[^d]+\\d\\w?(?i:x)$".to_vec()),
            ("schema", br##"s{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-c]{1,5}$","maxLength":4},"b":{"anyOf":[{"type":"integer","minimum":3,"multipleOf":5},{"enum":["x",null]}]},"c":{"type":"array","items":{"$ref":"#/$defs/d"},"minItems":1}},"required":["a"],"additionalProperties":false,"$defs":{"d":{"allOf":[{"type":"number"},{"exclusiveMaximum":2.5}]}}}"##.to_vec()),
        ]);
    },
    |data: &[u8]| {
        let Some((&first, rest)) = data.split_first() else {
            return;
        };
        let Some(language) = language(first, String::from_utf8_lossy(rest).into_owned()) else {
            return;
        };
        match Grammar::new(vocabulary(), language) {
            Ok(grammar) => follow(&grammar),
            Err(error) => assert!(!error.to_string().is_empty()),
        }
    }
);
