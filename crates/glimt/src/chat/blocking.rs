//! Waiting for answers, for native builds.

use super::reply::Piece;
use super::talk::{Chat, Pieces};
use crate::engine::{Engine, EngineError};
use crate::gpu::wait::Wait;

impl Engine {
    /// Asks the model, and waits for its answer. Each call is a conversation of its own; [`Chat`] has longer ones, and answers as they are
    /// generated.
    ///
    /// ```
    /// use glimt::engine::{Engine, EngineError, ModelSource};
    ///
    /// # fn main() -> Result<(), EngineError> {
    /// let engine = Engine::open(ModelSource::Embedded)?;
    /// # if false {
    /// println!("{}", engine.chat("Tell me a story about a king.")?);
    /// # }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`EngineError::NoChatTemplate`], or what the template or the device refuses.
    pub fn chat(&self, text: &str) -> Result<String, EngineError> {
        Chat::new(self).wait()?.say(text).wait()
    }
}

/// It waits for the next piece, as [`next_piece`](Pieces::next_piece) does not.
impl Iterator for Pieces<'_> {
    type Item = Result<Piece, EngineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_piece().wait()
    }
}
