//! Measuring a model's speed in llama-bench's terms, so that rows stand side by side.
//!
//! A [`Test`] processes a prompt (`pp`), generates tokens (`tg`) or does one after the other (`pp+tg`), from some depth
//! of context on. Tokens are random, nothing is read as text, generation is greedy and stops at no token. The cache
//! below a depth is filled with random rows, since attention does not care how they came about.

mod drafted;
mod error;
mod parallel;
mod picture;
mod plan;
mod repetition;
mod report;
mod routing;
mod run;
mod source;

pub use drafted::{Drafting, shares};
pub use error::BenchError;
pub use parallel::{MOST_PARALLEL, ParallelOptions, ParallelRow, parallel};
pub use parallel::{head as parallel_head, line as parallel_line};
pub use picture::{bars, svg};
pub use plan::{Test, counts, pair, tests};
pub(crate) use repetition::{measure, tokens_of};
pub use report::{Columns, Format, Row, Statistics, Writer};
pub use report::{build, quoted, rate};
pub use routing::Routing;
pub use run::{BenchOptions, Event, Where, run};
pub(crate) use run::{backend_name, driver, n_ctx};
pub use source::Source;
pub use source::describe;
