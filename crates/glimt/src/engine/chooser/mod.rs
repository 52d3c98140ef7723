//! The choice of a token on the host.
//!
//! Devices choose by a few samplers ([`Sampling`]). Whatever else is asked of a choice needs a row of logits on the host, which
//! [`Session::generate_chosen`](super::Session::generate_chosen) hands to a [`Chooser`]. The [`Chain`] is one; others may be put
//! before it.

mod candidates;
mod chain;
mod dry;
mod follower;
mod gbnf;
mod grammar;
mod log_probs;
mod mirostat;
pub(super) mod quiet;
mod refused;
mod schema;
mod size;
mod state;
mod threads;
mod typical;
mod vocabulary;
mod xtc;

use web_time::Duration;

use crate::effort::Stopped;
pub use crate::kernels::sampling::Sampling;
pub use chain::{Chain, ChainSettings};
pub use dry::{Breakers, Dry};
pub use gbnf::GbnfError;
#[cfg(not(target_arch = "wasm32"))]
pub use grammar::regex_in_lark;
pub use grammar::{Constrained, Grammar, Language};
pub use log_probs::{LogProbs, TokenLogProbs};
pub use mirostat::Mirostat;
pub use schema::{Lost, SchemaError};
pub use vocabulary::Vocabulary;
pub use xtc::Xtc;

/// Chooses the tokens of an answer, one after another.
pub trait Chooser: Send {
    /// The token that continues `context`, from its logits (vocab), which it may change. All are finite.
    ///
    /// # Errors
    /// [`ChooserError`].
    fn choose(&mut self, logits: &mut [f32], context: &[u32]) -> Result<u32, ChooserError>;

    /// Takes each token that was chosen, before the next one is.
    ///
    /// # Errors
    /// [`ChooserError`].
    fn accept(&mut self, token: u32) -> Result<(), ChooserError> {
        let _ = token;
        Ok(())
    }

    /// Whether [`choose`](Self::choose) has all that it needs but the logits. That is waited for, but no longer than `most`.
    fn is_ready(&mut self, most: Duration) -> bool {
        let _ = most;
        true
    }
}

/// Why no token was chosen.
#[derive(Debug, thiserror::Error)]
pub enum ChooserError {
    /// No token is left to choose from.
    #[error(
        "every token that could follow is excluded; take back some of the biases (--logit-bias), or let the grammar allow more"
    )]
    NothingLeft,
    /// A grammar is none, or cannot be followed.
    #[error("the grammar cannot be used: {reason}")]
    Grammar {
        /// A description of the fault.
        reason: String,
    },
    /// A grammar leaves so much open that following an answer in it takes too long.
    #[error(
        "the answer was ended: which tokens its grammar allows took more than {seconds:.1} seconds to find, which is the most for an answer of this length; have fewer rules match the same text, or bound what repeats"
    )]
    GrammarTooSlow {
        /// The time that it had.
        seconds: f64,
    },
    /// A JSON schema is none.
    #[error("the JSON schema cannot be used: {0}")]
    Schema(#[from] SchemaError),
    /// A grammar is no GBNF.
    #[error("the grammar cannot be read: {0}")]
    Gbnf(#[from] GbnfError),
    /// The reading of a grammar was stopped.
    #[error("the grammar was not read to its end: {0}")]
    Stopped(#[from] Stopped),
    /// The vocabulary has no token to end an answer, so no answer can be kept to a grammar.
    #[error(
        "the model's vocabulary has no token that ends an answer, so an answer cannot be kept to a grammar; leave out --grammar or --json-schema"
    )]
    NoStopToken,
    /// The code that chooses has panicked: a bug, in a grammar's engine or here.
    #[error(
        "the choice of a token failed by a bug of this program; leave out what asks for it, such as a grammar"
    )]
    Panicked,
}
