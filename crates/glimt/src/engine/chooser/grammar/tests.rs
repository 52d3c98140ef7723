//! Protects schemas as pydantic and zod write them: each is taken, what it demands is demanded of answers, and what is not is told.

use serde_json::{Value, json};

use super::*;
use crate::engine::ModelSource;
use crate::tokenizer::Tokenizer;

/// Field types in the schemas of pydantic 2.14 and 2.12, zod 3.25 with zod-to-json-schema 3.25, and zod 4.6, with a value that each allows
/// and mostly one that the library refuses.
const SCHEMAS: &str = include_str!(concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/schemas.jsonl"
));

fn tokenizer() -> Tokenizer {
    let gguf = ModelSource::Embedded.open().expect("it is whole");
    Tokenizer::from_gguf(&gguf).expect("it has one")
}

/// A grammar, and whether texts are of it.
struct Tested<'a> {
    tokenizer: &'a Tokenizer,
    grammar: Grammar,
}

impl Tested<'_> {
    fn accepts(&self, value: &Value) -> bool {
        let text = value.to_string();
        let tokens = self.tokenizer.encode(&text, false);
        self.grammar.accepts(&tokens.expect("it is a text"))
    }

    fn lost(&self) -> Vec<String> {
        let lost = self.grammar.not_enforced().iter();
        lost.map(ToString::to_string).collect()
    }
}

/// The grammars of schemas.
struct Grammars {
    tokenizer: Tokenizer,
    vocabulary: Vocabulary,
}

impl Grammars {
    fn new() -> Self {
        let tokenizer = tokenizer();
        let vocabulary = Vocabulary::new(&tokenizer).expect("it has a token that ends answers");
        Self {
            tokenizer,
            vocabulary,
        }
    }

    fn get(&self, schema: &Value) -> Result<Tested<'_>, ChooserError> {
        let language = Language::JsonSchema(schema.clone());
        let grammar = Grammar::new(&self.vocabulary, language)?;
        let tokenizer = &self.tokenizer;
        Ok(Tested { tokenizer, grammar })
    }

    fn refusal(&self, schema: &Value) -> String {
        match self.get(schema) {
            Ok(_) => panic!("{schema} is taken"),
            Err(error) => error.to_string(),
        }
    }
}

/// A row of the table in docs/schemas.md. It has what is lost, and whether the value that the library refuses is refused.
fn row(grammars: &Grammars, line: &str) -> String {
    let case: Value = serde_json::from_str(line).expect("each line is JSON");
    let name = case["name"].as_str().expect("each has a name");
    let tested = grammars.get(&case["schema"]);
    let tested = tested.unwrap_or_else(|e| panic!("{name}: {e}\n{}", case["schema"]));
    assert!(tested.accepts(&case["yes"]), "{name}: {line}");
    let mut lost: Vec<String> = vec![];
    for Lost { keyword, .. } in tested.grammar.not_enforced() {
        let keyword = format!("`{keyword}`");
        if !lost.contains(&keyword) {
            lost.push(keyword);
        }
    }
    let enforced = match case.get("no").is_none_or(|no| !tested.accepts(no)) {
        true => "yes",
        false if lost.is_empty() => "what the schema says",
        false => "in part",
    };
    let lost = lost.join(", ");
    let name = name.replace('|', "\\|");
    format!("| {name} | {enforced} | {lost} |\n")
}

#[test]
fn every_field_type_of_pydantic_and_zod_is_taken() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/schemas.md");
    let written = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path}: {e}"));
    let grammars = Grammars::new();
    let mut table = "| field type | enforced | not enforced |\n|---|---|---|\n".to_owned();
    for line in SCHEMAS.lines() {
        table += &row(&grammars, line);
    }
    let begin = written.find("| field type |").expect("it has a table");
    if std::env::var_os("GLIMT_WRITE").is_some() {
        let new = [&written[..begin], &table].concat();
        std::fs::write(path, new).unwrap_or_else(|e| panic!("{path}: {e}"));
        return;
    }
    for (now, then) in table.lines().zip(written[begin..].lines()) {
        assert_eq!(now, then, "GLIMT_WRITE=1 writes {path} anew");
    }
    assert_eq!(table, written[begin..], "{path}");
}

/// A schema, values that are of it, values that are not, and what is not enforced.
type Case<'a> = (Value, &'a [Value], &'a [Value], &'a [&'a str]);

fn check(cases: &[Case<'_>]) {
    let grammars = Grammars::new();
    for (schema, yes, no, lost) in cases {
        let tested = grammars.get(schema);
        let tested = tested.unwrap_or_else(|e| panic!("{schema}: {e}"));
        for value in *yes {
            assert!(tested.accepts(value), "{schema}: {value} is of it");
        }
        for value in *no {
            assert!(!tested.accepts(value), "{schema}: {value} is not of it");
        }
        assert_eq!(&tested.lost(), lost, "{schema}");
    }
}

#[test]
fn names_of_properties_are_kept_to_what_the_schema_says() {
    check(&[
        (
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "integer"}}),
            &[json!({"a": 1}), json!({})],
            &[json!({"a": "b"})],
            &[],
        ),
        (
            json!({"type": "object", "propertyNames": {"$ref": "#/$defs/C"}, "additionalProperties": {"type": "integer"},
                "$defs": {"C": {"enum": ["a", "b"], "title": "C"}}}),
            &[json!({"b": 1})],
            &[json!({"c": 1}), json!({"a": "x"})],
            &[],
        ),
        (
            json!({"type": "object", "propertyNames": {"minLength": 2, "maxLength": 3}}),
            &[json!({"ab": 1})],
            &[json!({"a": 1}), json!({"abcd": 1})],
            &[],
        ),
        (
            json!({"type": "object", "propertyNames": {"format": "date"}}),
            &[json!({"a": 1})],
            &[],
            &["propertyNames at #"],
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "integer"}}, "additionalProperties": false}),
            &[json!({"ab": 1, "a": 1, "b": 1})],
            &[json!({"c": 1}), json!({"a": "x"})],
            &[],
        ),
        (
            json!({"type": "object", "patternProperties": {"^a": {"type": "integer"}, "b$": {"type": "string"}}, "additionalProperties": false}),
            &[json!({"ac": 1}), json!({"cb": "x"})],
            &[json!({"ac": "x"})],
            &["patternProperties b$ at #"],
        ),
    ]);
}

#[test]
fn at_least_one_property_is_enforced_and_other_counts_are_told() {
    let ab = json!({"a": {"type": "string"}, "b": {"type": "integer"}});
    check(&[
        (
            json!({"type": "object", "properties": ab, "minProperties": 1}),
            &[
                json!({"a": "x"}),
                json!({"b": 1}),
                json!({"a": "x", "b": 1}),
                json!({"c": 1}),
            ],
            &[json!({}), json!({"a": 1})],
            &[],
        ),
        (
            json!({"type": "object", "properties": ab, "minProperties": 1, "additionalProperties": false}),
            &[json!({"b": 1})],
            &[json!({}), json!({"c": 1})],
            &[],
        ),
        (
            json!({"type": "object", "properties": ab, "maxProperties": 1, "additionalProperties": false}),
            &[json!({"b": 1}), json!({})],
            &[json!({"a": "x", "b": 1})],
            &[],
        ),
        (
            json!({"type": "object", "properties": ab, "minProperties": 2, "maxProperties": 3}),
            &[json!({"a": "x", "b": 1})],
            &[json!({"a": 1})],
            &[
                "maxProperties beside optional properties at #",
                "minProperties beside optional properties at #",
            ],
        ),
        (
            json!({"type": "object", "additionalProperties": {"type": "integer"}, "minProperties": 2, "maxProperties": 2}),
            &[json!({"a": 1, "b": 2})],
            &[json!({"a": 1}), json!({"a": 1, "b": 2, "c": 3})],
            &[],
        ),
    ]);
}

#[test]
fn a_choice_of_one_is_a_choice_of_any_and_told_where_values_may_be_of_several() {
    let with = |name: &str, schema: Value| json!({"type": "object", "properties": {name: schema}, "required": [name]});
    check(&[
        (
            json!({"oneOf": [with("t", json!({"const": "a"})), with("t", json!({"enum": ["b", "c"]}))]}),
            &[json!({"t": "a"}), json!({"t": "c"})],
            &[json!({"t": "d"})],
            &[],
        ),
        (
            json!({"oneOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}, {"type": "null"}],
                "$defs": {"A": with("k", json!({"const": 1})), "B": with("k", json!({"const": 2}))}}),
            &[json!({"k": 1}), json!(null)],
            &[json!({"k": 3})],
            &[],
        ),
        (
            json!({"oneOf": [with("a", json!({"type": "string"})), with("b", json!({"type": "string"}))]}),
            &[json!({"a": "x"}), json!({"b": "x"})],
            &[json!({"c": "x"})],
            &["oneOf, which is followed as anyOf at #"],
        ),
        (
            json!({"oneOf": [{"type": "integer"}, {"type": "number"}]}),
            &[json!(1.5)],
            &[json!("a")],
            &["oneOf, which is followed as anyOf at #"],
        ),
    ]);
}

#[test]
fn numbers_keep_to_bounds_of_any_size() {
    check(&[
        (
            json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
            &[json!(-5), json!(9_223_372_036_854_774_784_i64)],
            &[json!(1.5), json!(u64::MAX)],
            &[],
        ),
        (
            json!({"type": "integer", "minimum": 9_007_199_254_740_993_i64}),
            &[json!(9_007_199_254_740_994_i64)],
            &[json!(9_007_199_254_740_992_i64)],
            &[],
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}),
            &[json!(5)],
            &[json!(-5)],
            &["maximum 18446744073709551615 at #"],
        ),
        (
            json!({"type": "number", "minimum": -1e300, "maximum": 3}),
            &[json!(2.5)],
            &[json!(4)],
            &["minimum -1e+300 at #"],
        ),
        (
            json!({"type": "number", "minimum": 0, "exclusiveMinimum": true}),
            &[json!(0.5)],
            &[json!(0)],
            &[],
        ),
        (
            json!({"type": "number", "multipleOf": 0.01}),
            &[json!(0.25)],
            &[json!(0.255)],
            &[],
        ),
        (
            json!({"type": "number", "multipleOf": 0.07}),
            &[json!(0.14)],
            &[json!("a")],
            &["multipleOf at #"],
        ),
        (
            json!({"enum": [1, 9_007_199_254_740_993_i64]}),
            &[json!(1)],
            &[],
            &["enum with integers of more than 53 bits at #"],
        ),
    ]);
}

#[test]
fn texts_keep_to_patterns_and_other_formats_are_told() {
    check(&[
        (
            json!({"type": "string", "pattern": "^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"}),
            &[json!("-1.50"), json!("7")],
            &[json!("-."), json!("a")],
            &[],
        ),
        (
            json!({"type": "string", "pattern": "^(?=.*\\d)(?=.*[a-z]).{4,}$"}),
            &[json!("abc1")],
            &[json!("abcd"), json!("a1")],
            &[],
        ),
        (
            json!({"type": "string", "pattern": "^a(?=b)b$"}),
            &[json!("ab")],
            &[json!("ac")],
            &["look-around in pattern at #"],
        ),
        (
            json!({"type": "string", "pattern": "\\bfox\\b"}),
            &[json!("a fox")],
            &[json!("a cat")],
            &["word boundary in pattern at #"],
        ),
        (
            json!({"type": "string", "format": "path", "maxLength": 3}),
            &[json!("a/b")],
            &[json!("a/bc")],
            &["format path at #"],
        ),
        (
            json!({"type": "string", "format": "email", "minLength": 7, "maxLength": 9}),
            &[json!("ab@c.org")],
            &[json!("a@b.c"), json!("abcdefg")],
            &[],
        ),
        (
            json!({"type": "string", "maxLength": 10_000_000}),
            &[json!("a")],
            &[json!(1)],
            &["maxLength 10000000 at #"],
        ),
        (
            json!({"type": ["string", "null"], "minLength": 2, "nullable": true, "default": null, "pattern": null}),
            &[json!(null), json!("ab")],
            &[json!("a")],
            &[],
        ),
        (
            json!({"type": "string", "format": "time", "pattern": "^\\d\\d:\\d\\d$"}),
            &[json!("10:00")],
            &[json!("10:00:00Z")],
            &["format time, which the pattern excludes at #"],
        ),
        (
            json!({"type": "string", "nullable": true, "enum": ["a"]}),
            &[json!(null), json!("a")],
            &[json!("b")],
            &[],
        ),
    ]);
}

#[test]
fn lists_are_read_in_the_keywords_of_any_draft() {
    check(&[
        (
            json!({"type": "array", "items": [{"type": "string"}], "additionalItems": {"type": "integer"}, "minItems": 1}),
            &[json!(["a", 1, 2])],
            &[json!([1]), json!(["a", "b"])],
            &[],
        ),
        (
            json!({"prefixItems": [{"type": "string"}], "items": false, "minItems": 1.0}),
            &[json!(["a"])],
            &[json!(["a", 1]), json!([]), json!(1)],
            &[],
        ),
        (
            json!({"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "contains": {"const": 1}}),
            &[json!([1, 2])],
            &[json!(["a"])],
            &["contains at #", "uniqueItems at #"],
        ),
        (
            json!({"type": "array", "maxItems": 1, "uniqueItems": true}),
            &[json!([1])],
            &[json!([1, 2])],
            &[],
        ),
    ]);
}

#[test]
fn references_are_followed_wherever_they_lead() {
    let node = json!({"type": "object", "properties": {"v": {"type": "integer"}, "c": {"type": "array", "items": {"$ref": "#"}}}, "required": ["v"], "additionalProperties": false});
    check(&[
        (
            node,
            &[json!({"v": 1, "c": [{"v": 2}]})],
            &[json!({"v": 1, "c": [{}]})],
            &[],
        ),
        (
            json!({"$ref": "#/definitions/A~1B%20c", "definitions": {"A/B c": {"$ref": "#x"}, "n": {"$anchor": "x", "type": "null"}}}),
            &[json!(null)],
            &[json!(1)],
            &[],
        ),
        (
            json!({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}, "required": ["b"]}),
            &[json!({"b": 1})],
            &[json!({"b": "x"})],
            &[],
        ),
        (
            json!({"$defs": {"parameters": {"$id": "parameters", "properties": {"a": {"$ref": "#/$defs/N"}}, "$defs": {"N": {"type": "null"}}}}, "$ref": "parameters#/properties/a"}),
            &[json!(null)],
            &[json!(1)],
            &[],
        ),
        (
            json!({"allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "integer"}}}], "unevaluatedProperties": false,
                "$defs": {"A": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}}}),
            &[json!({"a": 1, "b": 2})],
            &[json!({"b": 2}), json!({"a": 1, "c": 2})],
            &[],
        ),
        (
            json!({"$ref": "#/$defs/L", "$defs": {"L": {"type": "object", "properties": {"n": {"$ref": "#/$defs/L", "description": "the next", "minProperties": 1}}}}}),
            &[json!({"n": {"n": {}}})],
            &[json!({"n": 1})],
            &["keywords beside a reference to a schema around at #/$defs/L/properties/n"],
        ),
        (
            json!({"properties": {"a": {"not": {}}, "b": {"if": {}, "then": false}}}),
            &[json!({"b": 1})],
            &[json!({"a": 1}), json!(1)],
            &["if at #/properties/b"],
        ),
    ]);
}

#[test]
fn schemas_that_fan_out_are_read_in_time() {
    let fan = |keyword: &str| {
        let of = |i: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            json!({keyword: vec![next; 10]})
        };
        let mut all: serde_json::Map<_, _> = (0..12).map(|i| (format!("d{i}"), of(i))).collect();
        all.insert("d12".to_owned(), json!({"type": "object"}));
        all
    };
    let began = std::time::Instant::now();
    for schema in [
        json!({"$ref": "#/$defs/d0", "unevaluatedProperties": false, "$defs": fan("allOf")}),
        json!({"oneOf": [{"$ref": "#/$defs/d0"}, {"$ref": "#/$defs/d1"}], "$defs": fan("anyOf")}),
        json!({"oneOf": vec![json!({"type": "object", "properties": {"a": {"const": 1}}}); 2000]}),
    ] {
        assert!(schema::taken(&schema).is_ok());
    }
    assert!(began.elapsed().as_secs() < 5, "{:?}", began.elapsed());
}

#[test]
fn what_is_no_schema_is_told_by_place_and_keyword() {
    let grammars = Grammars::new();
    for (schema, expected) in [
        (
            json!({"properties": {"a": 7}}),
            "#/properties/a is 7, where a schema is expected",
        ),
        (
            json!({"properties": {"a": {"type": "text"}}}),
            "'type' at #/properties/a is \"text\", but must be one of string, number",
        ),
        (
            json!({"minLength": -1, "type": "string"}),
            "'minLength' at # is -1, but must be a whole number",
        ),
        (
            json!({"$ref": "https://example.org/a"}),
            "names a schema elsewhere",
        ),
        (
            json!({"items": {"$ref": "#/$defs/A"}}),
            "the reference \"#/$defs/A\" at #/items names nothing",
        ),
        (
            json!({"$ref": "#/$defs/A", "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "null"}]}}}),
            "leads back to itself",
        ),
        (
            json!({"anyOf": []}),
            "'anyOf' at # is [], but must be a list of schemas",
        ),
        (
            json!({"type": "string", "minLength": 3, "maxLength": 2}),
            "no value fulfils the JSON schema: minLength (3)",
        ),
        (json!(false), "accepts nothing"),
    ] {
        let message = grammars.refusal(&schema);
        assert!(message.contains(expected), "{schema}: {message}");
    }
}

#[test]
fn an_answer_may_be_marked_to_be_something_else() {
    let grammars = Grammars::new();
    let answer = Box::new(Language::JsonSchema(json!({"type": "integer"})));
    let marks = vec!["<call>".to_owned()];
    let grammar = Grammar::new(&grammars.vocabulary, Language::Unless { answer, marks });
    let grammar = grammar.expect("it is one");
    let accepts = |text: &str| {
        let tokens = grammars.tokenizer.encode(text, false);
        grammar.accepts(&tokens.expect("it is a text"))
    };
    for text in ["7", "<call>now", "\n<call>{\"a\"", "<call>"] {
        assert!(accepts(text), "{text:?} is of it");
    }
    for text in ["now", "7<call>", "<cal", "{}"] {
        assert!(!accepts(text), "{text:?} is not of it");
    }
}

#[test]
fn a_regular_expression_matches_the_whole_answer() {
    let grammars = Grammars::new();
    for (regex, yes, no, lost) in [
        (r"^\d{2}/[ab]$", "12/a", "12/ab", 0),
        (r"(a|b)\1", "aa", "ca", 1),
        ("[0-9]+", "123", "12x", 0),
    ] {
        let grammar = Grammar::new(&grammars.vocabulary, Language::Regex(regex.to_owned()));
        let grammar = grammar.expect("it is one");
        let accepts = |text: &str| {
            let tokens = grammars.tokenizer.encode(text, false);
            grammar.accepts(&tokens.expect("it is a text"))
        };
        assert!(accepts(yes) && !accepts(no), "{regex}");
        assert_eq!(grammar.not_enforced().len(), lost, "{regex}");
    }
}

#[test]
fn what_would_end_every_answer_is_told_before_one_begins() {
    let grammars = Grammars::new();
    let schema = |count: usize| {
        let property = |i| (format!("property{i}"), json!({"type": "string"}));
        let properties: serde_json::Map<_, _> = (0..count).map(property).collect();
        json!({"type": "object", "properties": properties})
    };
    assert!(grammars.get(&schema(300)).is_ok());
    let refused = grammars.refusal(&schema(900));
    assert!(
        refused.contains("at most 2000 are followed; have fewer"),
        "{refused}"
    );
    let choices = |count: usize| {
        let choices: Vec<_> = (0..count).map(|i| format!("\"choice {i}\"")).collect();
        let language = Language::Lark(format!("start: {}", choices.join(" | ")));
        Grammar::new(&grammars.vocabulary, language)
    };
    assert!(choices(1500).is_ok() && choices(2500).is_err());
}
