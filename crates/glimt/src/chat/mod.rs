//! Conversations in the model's chat template.
//!
//! [`Chat`] is text in, text out. What follows is what it is made of, for who needs more.
//!
//! A [`Conversation`] holds the turns. [`Conversation::prompt`] gives the tokens of all of them, up to where the model is to answer. The
//! tokens of earlier answers are those that were generated, never made from text again. So a session that has computed them keeps them
//! ([`Session::sync`](crate::engine::Session::sync)). [`ReplyReader`] tells thoughts and answer apart while the model
//! generates, and makes the next turn of them. [`StopFilter`] ends an answer before a text.

#[cfg(not(target_arch = "wasm32"))]
mod blocking;
mod conversation;
mod prompt;
mod reply;
#[cfg(test)]
mod said;
mod stop;
mod talk;
#[cfg(test)]
mod tests;

pub use conversation::{Conversation, Passage, Reply, Turn};
pub use prompt::Prompt;
pub use reply::{Piece, ReplyReader};
pub use stop::StopFilter;
pub use talk::{Chat, Pieces};
