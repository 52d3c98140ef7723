//! The laboratory of glimt: kernels on devices that nobody here has, and kernels with mistakes.
//!
//! The tests of glimt's kernels have the program of this package rewrite shaders or run them ([`waves`], [`matrices`], [`metal`], [`mutants`]).
//! The tests in `tests` hold steps, shaders and plans against what other devices have. README.md says what each protects.

pub mod known;
pub mod matrices;
pub mod metal;
pub mod mutants;
pub mod tables;
pub mod waves;

/// The folder of the repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
