//! The reasons why a measurement of a server is refused.

use crate::plural::count;

/// An error of `bench-serve`. Messages name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    #[error("cannot reach {url}: {problem}; start a server (glimt serve), or name it with --url")]
    Unreachable { url: String, problem: String },
    #[error("{url} answered with status {status}: {message}")]
    Refused {
        url: String,
        status: u16,
        message: String,
    },
    #[error("{url} names no model; give its name with --served-model-name")]
    NoModel { url: String },
    #[error("{url} does not tell how many tokens its model knows; give the number with --vocab")]
    NoVocabulary { url: String },
    #[error(
        "a request would have {}, but the server's context holds {most}; use a smaller -p, -n, --shared-prefix or --join, or give the \
         server more (glimt serve -c)",
        count(*needed, "token")
    )]
    TooLong {
        /// Tokens of the longest request with its answer.
        needed: usize,
        most: usize,
    },
    #[error("none of {} was answered; the first failed: {first}", count(*asked, "request"))]
    NoneAnswered { asked: usize, first: String },
    #[error("the long prompt of --join failed: {0}")]
    JoinFailed(String),
    #[error(
        "the others had ended before the first token of --join came; ask them for more tokens with -n"
    )]
    JoinedLate,
}
