//! The state of an answer in its grammar: the tokens that may come next.

use llguidance::Matcher;
use llguidance::toktrie::SimpleVob;
use web_time::Duration;

use super::ChooserError;
use super::refused::refused;

/// The tokens that may come next, and whether the answer may end.
pub(super) struct State {
    /// The tokens that may come next.
    pub(super) allowed: SimpleVob,
    /// Whether the answer may end here.
    pub(super) may_end: bool,
}

impl State {
    /// The state of a matcher now.
    pub(super) fn of(matcher: &mut Matcher) -> Result<Self, ChooserError> {
        let may_end = matcher.is_stopped() || matcher.is_accepting().map_err(refused)?;
        let allowed = matcher.compute_mask_or_eos().map_err(refused)?;
        Ok(Self { allowed, may_end })
    }
}

/// A state, and how long it took to find.
pub(super) type Found = (Result<State, ChooserError>, Duration);
