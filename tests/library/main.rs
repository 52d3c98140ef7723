//! The library as programs use it: whole models, sessions and their files, tokens, grammars, and the examples. Tests of one module run alone
//! by its name, such as `cargo test --test library session::`.

mod at_once;
mod built_in;
mod cache_types;
mod converter;
mod dequant_gpu;
mod drafts;
mod examples;
mod golden;
mod golden_cpu;
mod golden_gpu;
mod golden_gqa;
mod golden_nextn;
mod grammar;
mod measure;
mod polling;
mod real;
mod saved;
mod session;
mod synth;
#[path = "../../crates/formats/src/testing.rs"]
#[allow(dead_code, reason = "other tests use its other parts")]
mod testing;
mod texts;
mod tokenizer;
