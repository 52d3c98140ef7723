//! What measuring a server can be refused for.

use crate::plural::count;

/// An error of `bench-serve`. Messages name what was found, what was expected and what to do.
#[derive(Debug, thiserror::Error)]
pub(super) enum LoadError {
    /// Nobody answers there.
    #[error("cannot reach {url}: {problem}; start a server (glimt serve), or name it with --url")]
    Unreachable {
        /// What was asked for.
        url: String,
        /// What went wrong.
        problem: String,
    },
    /// The server does not do what is needed.
    #[error("{url} answered with status {status}: {message}")]
    Refused {
        /// What was asked for.
        url: String,
        /// The status.
        status: u16,
        /// What the server said.
        message: String,
    },
    /// The server says nothing of its model.
    #[error("{url} names no model; give its name with --served-model-name")]
    NoModel {
        /// What was asked for.
        url: String,
    },
    /// Random tokens need their bounds.
    #[error("{url} does not tell how many tokens its model knows; give the number with --vocab")]
    NoVocabulary {
        /// What was asked for.
        url: String,
    },
    /// A request would not fit.
    #[error(
        "a request would have {}, but the server's context holds {most}; use a smaller -p, -n, --shared-prefix or --join, or give the \
         server more (-c)",
        count(*needed, "token")
    )]
    TooLong {
        /// Tokens of the longest request with its answer.
        needed: usize,
        /// The server's context.
        most: usize,
    },
    /// Nothing was measured.
    #[error("none of {} was answered; the first failed: {first}", count(*asked, "request"))]
    NoneAnswered {
        /// How many were asked.
        asked: usize,
        /// What the first one failed with.
        first: String,
    },
    /// The long prompt was not measured.
    #[error("the long prompt of --join failed: {0}")]
    JoinFailed(String),
    /// Nothing was decoded beside the long prompt.
    #[error(
        "the others had ended before the first token of --join came; ask them for more tokens with -n"
    )]
    JoinedLate,
}
