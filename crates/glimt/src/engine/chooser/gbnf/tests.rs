//! Protects the translation of GBNF: it accepts the same texts as the notation's definition, written down here without any cleverness.

use std::collections::BTreeSet;

use super::syntax::{Part, Rules};
use super::*;
use crate::engine::chooser::{Grammar, Language};
use crate::gguf::Gguf;
use crate::kernels::testing::Rng;
use crate::tokenizer::Tokenizer;

fn tokenizer() -> Tokenizer {
    let model = include_bytes!("../../../../../../assets/tales-q4_k_m.gguf");
    let gguf = Gguf::from_bytes(model, "built-in model").expect("it is whole");
    Tokenizer::from_gguf(&gguf).expect("it has one")
}

/// Where texts of a part that begin at `from` may end, when `rules` says so of rules.
fn ends(
    part: &Part,
    text: &[char],
    from: usize,
    rules: &[Vec<BTreeSet<usize>>],
) -> BTreeSet<usize> {
    let all = |part: &Part, begins: &BTreeSet<usize>| -> BTreeSet<usize> {
        let each = begins
            .iter()
            .flat_map(|&from| ends(part, text, from, rules));
        each.collect()
    };
    match part {
        Part::Either(parts) => {
            let each = parts.iter().flat_map(|part| ends(part, text, from, rules));
            each.collect()
        }
        Part::Sequence(parts) => parts
            .iter()
            .fold(BTreeSet::from([from]), |begins, part| all(part, &begins)),
        Part::Character(ranges) => {
            let is_of = |c: &&char| ranges.iter().any(|(a, b)| a <= c && *c <= b);
            text.get(from)
                .filter(is_of)
                .map(|_| from + 1)
                .into_iter()
                .collect()
        }
        Part::Rule(number) => rules[*number][from].clone(),
        Part::Repeat(part, least, most) => {
            let mut at = BTreeSet::from([from]);
            for _ in 0..*least {
                at = all(part, &at);
            }
            let mut found = at.clone();
            // As many characters as there are can be read one by one.
            for _ in 0..most.map_or(text.len(), |most| (most - least) as usize) {
                at = all(part, &at);
                found.extend(&at);
            }
            found
        }
    }
}

/// Whether a grammar has a text, by definition.
fn has(rules: &Rules, text: &str) -> bool {
    let text: Vec<char> = text.chars().collect();
    let mut known = vec![vec![BTreeSet::new(); text.len() + 1]; rules.parts.len()];
    loop {
        let before = known.clone();
        for (number, part) in rules.parts.iter().enumerate() {
            let all = (0..=text.len()).map(|from| ends(part, &text, from, &before));
            known[number] = all.collect();
        }
        if known == before {
            return known[rules.root][0].contains(&text.len());
        }
    }
}

/// All texts of a, b and c with `most` characters at most.
fn texts(most: usize) -> Vec<String> {
    let mut all = vec![String::new()];
    let mut begin = 0;
    for _ in 0..most {
        let end = all.len();
        for i in begin..end {
            for c in ['a', 'b', 'c'] {
                all.push(format!("{}{c}", all[i]));
            }
        }
        begin = end;
    }
    all
}

fn random_part(rng: &mut Rng, depth: usize) -> String {
    let kinds = if depth == 0 { 6 } else { 11 };
    let inner = |rng: &mut Rng| random_part(rng, depth.saturating_sub(1));
    match rng.below(kinds) {
        0 => "\"a\"".to_owned(),
        1 => "\"ab\"".to_owned(),
        2 => "[ab]".to_owned(),
        3 => "[^a]".to_owned(),
        4 => "x-1".to_owned(),
        5 => "Y".to_owned(),
        6 => format!("({} | {})", inner(rng), inner(rng)),
        7 | 8 => format!("({} {})", inner(rng), inner(rng)),
        9 => {
            let how_often = ["*", "+", "?", "{2}", "{1,}", "{0,2}", "{1,2}", "{0}"];
            format!("({}){}", inner(rng), how_often[rng.below(how_often.len())])
        }
        _ => format!("({} | )", inner(rng)),
    }
}

#[test]
fn the_translation_accepts_what_the_grammar_does() {
    let tokenizer = tokenizer();
    let texts = texts(4);
    let mut rng = Rng::fresh();
    let mut accepted = 0;
    for _ in 0..150 {
        let [root, x, y] = std::array::from_fn(|_| random_part(&mut rng, 2));
        let grammar = format!("root ::= {root}\nx-1 ::= {x}\nY ::= {y} \"c\"\n");
        compare(&tokenizer, &grammar, &texts, &mut accepted);
    }
    assert!(
        accepted > 200,
        "hardly any text was of a grammar: {accepted}"
    );
}

fn compare(tokenizer: &Tokenizer, grammar: &str, texts: &[String], accepted: &mut usize) {
    let rules = Rules::read(grammar).unwrap_or_else(|error| panic!("{grammar}: {error}"));
    let of: BTreeSet<_> = texts.iter().filter(|text| has(&rules, text)).collect();
    let lark = to_lark(grammar).expect("it was just read");
    let translated = match Grammar::of(tokenizer, Language::Gbnf(grammar.to_owned())) {
        Ok(translated) => translated,
        // One without any text may be refused.
        Err(_) if of.is_empty() => return,
        Err(error) => panic!("{error}\n{grammar}\n{lark}"),
    };
    for text in texts {
        let tokens = tokenizer.encode(text, false).expect("plain text");
        assert_eq!(
            translated.accepts(&tokens),
            of.contains(text),
            "{text:?} of\n{grammar}\n{lark}"
        );
    }
    *accepted += of.len();
}

#[test]
fn characters_that_begin_alike_are_told_apart() {
    let tokenizer = tokenizer();
    let grammar = "root ::= [\u{e0}-\u{e8}]+ \"\u{e9}\" (root | \"\")";
    let translated =
        Grammar::of(&tokenizer, Language::Gbnf(grammar.to_owned())).expect("it is one");
    for (text, is_of) in [("àé", true), ("ààèéàé", true), ("é", false), ("àéé", false)]
    {
        let tokens = tokenizer.encode(text, false).expect("plain text");
        assert_eq!(translated.accepts(&tokens), is_of, "{text}");
    }
}

/// JSON as grammars of llama.cpp have it, in words of our own.
const JSON: &str = r#"
root   ::= object
value  ::= object | list | text | number | ("true" | "false" | "null") gap
object ::= "{" gap (
    text ":" gap value          # the first member
    ("," gap text ":" gap value)*
)? "}" gap
list   ::= "[" gap (value ("," gap value)*)? "]" gap
text   ::= "\"" ([^"\\\x00-\x1F\x7F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}))* "\"" gap
number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)? ([eE] [-+]? [0-9]{1,3})? gap
gap    ::= | " " | "\n" [ \t]{0,20}
"#;

#[test]
fn what_ends_by_itself_is_one_terminal() {
    // Texts, numbers and gaps are searched for as a whole, not by characters.
    let lark = to_lark(JSON).expect("it is GBNF");
    let rules: Vec<_> = lark.lines().filter(|line| line.starts_with('r')).collect();
    assert_eq!(
        rules.len(),
        5,
        "root, object, value, list and the gap: {lark}"
    );
    for rule in rules {
        assert!(rule.len() < 200, "{rule}\n{lark}");
    }
    // A grammar without recursion is one terminal.
    let lark = to_lark("root ::= \"a\" b | \"c\"\nb ::= [a-c]* \"a\"").expect("it is GBNF");
    assert!(lark.starts_with("start: T0\n"), "{lark}");
}

#[test]
fn chains_of_rules_need_little_stack() {
    let mut chain: String = (0..1998)
        .map(|i| format!("r{i} ::= r{}\n", i + 1))
        .collect();
    chain += "r1998 ::= \"a\"\nroot ::= r0\n";
    let tokenizer = tokenizer();
    assert!(Grammar::of(&tokenizer, Language::Gbnf(chain.clone())).is_ok());
    let looped = chain.replace("\"a\"", "\"a\" root | \"b\"");
    assert!(Grammar::of(&tokenizer, Language::Gbnf(looped)).is_ok());
    let refused = to_lark(&format!("{chain}more ::= \"b\""));
    assert!(refused.is_err_and(|error| error.to_string().contains("2000 rules")));
}

#[test]
fn classes_are_ranges_in_order() {
    let class = |text: &str| match Rules::read(&format!("root ::= {text}")) {
        Ok(rules) => rules.parts[0].clone(),
        Err(error) => panic!("{text}: {error}"),
    };
    let ranges = |ranges: &[(char, char)]| Part::Character(ranges.to_vec());
    assert_eq!(class("[c-fa-d]"), ranges(&[('a', 'f')]));
    assert_eq!(class("[ba]"), ranges(&[('a', 'b')]));
    assert_eq!(class("[-+]"), ranges(&[('+', '+'), ('-', '-')]));
    assert_eq!(class("[+-]"), class("[-+]"));
    assert_eq!(class(r"[+\-]"), class("[-+]"));
    assert_eq!(class(r"[\]\[]"), ranges(&[('[', '['), (']', ']')]));
    assert_eq!(class(r"[\x41\u00e9\U0001F600]"), class("[Aé😀]"));
    let not_b = [('\0', 'a'), ('c', char::MAX)];
    assert_eq!(class("[^b]"), ranges(&not_b));
    assert_eq!(class("."), ranges(&[('\0', char::MAX)]));
    // The code points of surrogates are no characters.
    assert_eq!(
        class(r"[^\uE000-\U0010FFFF]"),
        ranges(&[('\0', '\u{d7ff}')])
    );
}

#[test]
fn errors_name_the_line_and_what_was_expected() {
    for (text, line, expected) in [
        ("root \"a\"", 1, "::="),
        ("root ::= \"a", 1, "\" at the end"),
        ("root ::= \"a\nb\"", 1, "\" at the end"),
        ("root ::= \"\\q\"", 1, "behind the backslash"),
        ("root ::= \"\\u12\"", 1, "4 hexadecimal digits"),
        ("root ::= \"\\uD800\"", 1, "4 hexadecimal digits"),
        ("# fox\n\nroot ::= [a", 3, "] at the end"),
        ("root ::= []", 1, "at least one"),
        ("root ::= [z-a]", 1, "smaller character"),
        ("root ::= (\"a\"\n  \"b\"", 2, ") for the ( of line 1"),
        ("root ::= \"a\" )", 1, "end of the line"),
        ("root ::= * \"a\"", 1, "something to repeat"),
        ("root ::= \"a\"*?", 1, "into parentheses"),
        ("root ::= \"a\"{x}", 1, "a number"),
        ("root ::= \"a\"{1;2}", 1, "a second number"),
        ("root ::= \"a\"{3,2}", 1, "smaller number"),
        ("root ::= \"a\"{99999}", 1, "at most 10000"),
        ("root ::= \"a\" b ::= \"c\"", 1, "line of its own"),
        ("root ::= <think> \"a\"", 1, "angle brackets"),
        ("root ::= \"a\"\n\"b\"", 2, "name of a rule"),
        ("root ::= \"a\"\n= 7", 2, "name of a rule"),
    ] {
        let error = Rules::read(text).expect_err(text);
        let told = error.to_string();
        assert!(matches!(error, GbnfError::Syntax { .. }), "{text}: {told}");
        assert!(
            told.starts_with(&format!("line {line}: ")),
            "{text}: {told}"
        );
        assert!(told.contains(expected), "{text}: {told}");
    }
    let deep = format!("root ::= {}\"a\"", "(".repeat(10_000));
    assert!(Rules::read(&deep).is_err());
    let error = |text: &str| Rules::read(text).expect_err(text).to_string();
    assert!(error("root ::= a\n\nb ::= \"c\"").starts_with("line 1: there is no rule a;"));
    assert!(error("root ::= \"a\"\nroot ::= \"b\"").contains("already defined in line 1"));
    assert!(error("a ::= \"a\"").contains("no rule root"));
    assert!(error("").contains("no rule root"));
}
