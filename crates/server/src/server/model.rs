//! The model that is served, and what requests that leave it open get.

use crate::engine::Engine;
use crate::engine::chooser::ChainSettings;
use crate::engine::draft::DraftOptions;

/// The model that is served.
pub struct Model {
    /// The engine with its weights.
    pub engine: Engine,
    /// The name of the model in requests.
    pub name: String,
    /// Whether requests with another name are refused.
    pub strict_name: bool,
    /// The name of the model on the page.
    pub title: String,
    /// How tokens are chosen where a request does not say it, of a model that may think.
    pub thinking: ChainSettings,
    /// The sampling settings where the model is told not to think.
    pub answering: ChainSettings,
    /// Whether the model thinks where a request does not say it; `None` leaves it to the chat template.
    pub think: Option<bool>,
    /// The most tokens of an answer, where a request does not say it.
    pub limit: Option<usize>,
    /// The seed of requests that name none; `None` is a random one for each.
    pub seed: Option<u64>,
    /// Whether the repeat penalty was asked for. One that is only recommended is for draws, and not for answers that are greedy.
    pub penalty_asked: bool,
    /// The drafts that answers may take.
    pub drafts: DraftOptions,
    /// When it was loaded, in seconds since 1970.
    pub created: i64,
}

impl Model {
    /// Whether its template lets requests switch thinking on and off.
    pub(super) fn may_switch_thinking(&self) -> bool {
        let template = self.engine.chat_template();
        template.is_some_and(|template| template.supports_thinking())
    }
}
