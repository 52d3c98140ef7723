//! Models by name: fetched from a hub that speaks as Hugging Face's does, into the cache that other tools share, and found in the
//! stores of this machine.
//!
//! A [`Name`] says which model is meant. [`find`](stores::find) looks for it in the cache, in LM Studio's folder and in ollama's
//! store, which are only read. [`Hub::offer`] asks the hub which files a name means, and [`Hub::pull`] fetches them. The layout of
//! the cache is that of Python's `huggingface_hub`, so each finds what the other has fetched.

mod api;
mod cache;
mod check;
mod choice;
mod download;
mod error;
mod event;
mod http;
mod lock;
mod name;
mod ollama;
mod pull;
mod remove;
mod settings;
mod space;
mod steady;
pub mod stores;

pub use api::OfferedFile;
pub use check::Sum;
pub use choice::{is_computed, quantisation};
pub use error::HubError;
pub use event::Event;
pub use name::Name;
pub use pull::{Hub, Offer, Other};
pub use remove::Removal;
pub use settings::{Patience, Settings, Token};
pub use stores::{Found, Store};
