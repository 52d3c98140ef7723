//! The functions that a web page calls: a model from bytes that the page has fetched, on the browser's GPU, and its answers piece by
//! piece.
//!
//! [`Model`] is the whole interface. Texts in JSON go both ways, since a page has them at hand. Nothing here blocks: what takes time is
//! a promise, and the page is drawn while the GPU computes.

mod answer;
mod console;

use js_sys::Function;
use serde::{Deserialize, Serialize};
use wasm_bindgen::prelude::*;

use crate::chat::Conversation;
use crate::engine::{
    DeviceChoice, Engine, EngineOptions, GpuOptions, LoadProgress, Opened, Session, Tier,
};
use crate::gguf::Gguf;
use crate::gpu;

/// An error as the page shows it: a sentence.
fn sentence(error: impl std::fmt::Display) -> JsError {
    JsError::new(&error.to_string())
}

/// How a page wants a model loaded.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Wanted {
    /// A tier to force.
    tier: Option<String>,
    /// Tokens of the context; without it as many as natively.
    ctx: Option<usize>,
}

/// The facts that a page tells of a model.
#[derive(Debug, Serialize)]
struct About {
    /// `general.name` of the file.
    name: String,
    /// The adapter.
    adapter: String,
    /// The tier of the kernels.
    tier: &'static str,
    /// The features that the browser and the adapter lack for tier `subgroup`, in words; empty where they have all.
    lacks: String,
    /// Tokens of the context.
    context: usize,
    /// Whether the model's file has a chat template.
    talks: bool,
    /// The settings that are recommended for the model.
    recommended: answer::Settings,
}

/// A model on the browser's GPU, with one conversation.
#[wasm_bindgen]
pub struct Model {
    engine: Engine,
    session: Session,
    conversation: Conversation,
    /// The features that the browser lacks for tier `subgroup`.
    lacks: String,
}

#[wasm_bindgen]
impl Model {
    /// Loads a model from the bytes of its file. `wanted` is a JSON object: `tier` and `ctx`. `on_progress` is called with the bytes of
    /// weights that are on the GPU, and with those of all.
    ///
    /// # Errors
    /// A sentence that says why: the file, the adapter, its limits, its memory.
    pub async fn load(
        bytes: Vec<u8>,
        name: String,
        wanted: String,
        on_progress: Function,
    ) -> Result<Model, JsError> {
        console::begin();
        let wanted: Wanted = serde_json::from_str(&wanted).map_err(sentence)?;
        let tier = wanted.tier.map(|tier| tier.parse::<Tier>());
        let tier = tier.transpose().map_err(|reason| JsError::new(&reason))?;
        // The browser shows one adapter. The CPU reference would hold up the page.
        let device = DeviceChoice::Index(0);
        let lacks = gpu::lacks(&device, Tier::Subgroup).await;
        let lacks = lacks.map_err(sentence)?;
        let options = EngineOptions {
            gpu: GpuOptions {
                device,
                tier,
                ..GpuOptions::default()
            },
            ctx: wanted.ctx,
            ..EngineOptions::default()
        };
        let gguf = Gguf::from_bytes(bytes, &name).map_err(sentence)?;
        let opened = Opened::of_gguf(gguf, &options).await;
        let told = &mut |progress: LoadProgress| {
            let [done, total] = [progress.done, progress.total].map(|bytes| bytes as f64);
            let _ = on_progress.call2(&JsValue::NULL, &done.into(), &total.into());
        };
        let engine = Engine::load(opened.map_err(sentence)?, told).await;
        let engine = engine.map_err(sentence)?;
        Ok(Model {
            session: engine.session().await.map_err(sentence)?,
            engine,
            conversation: Conversation::default(),
            lacks,
        })
    }

    /// The facts that the page tells of the model, as a JSON object.
    ///
    /// # Errors
    /// None that can be made to happen: every value has a form in JSON.
    pub fn about(&self) -> Result<String, JsError> {
        let engine = &self.engine;
        let about = About {
            name: engine.model().config().name.clone(),
            adapter: engine.adapter_name(),
            tier: engine.tier().map_or("none", Tier::name),
            lacks: self.lacks.clone(),
            context: engine.n_ctx(),
            talks: engine.chat_template().is_some(),
            recommended: answer::Settings::recommended(engine.recommended()),
        };
        serde_json::to_string(&about).map_err(sentence)
    }

    /// Forgets the conversation.
    pub fn forget(&mut self) {
        self.conversation = Conversation::default();
        self.session.reset();
    }

    /// Answers `text`, as a turn of the conversation or as a text to go on with, as `settings` (a JSON object) say. `on_piece` is called
    /// with what a piece is (`prompt`, `thought` or `answer`) and with its text, of `prompt` how many tokens are computed and how many
    /// there are. It ends the answer by returning true. Returned is a JSON object: what the answer took.
    ///
    /// # Errors
    /// A sentence that says why.
    pub async fn answer(
        &mut self,
        text: String,
        settings: String,
        on_piece: Function,
    ) -> Result<String, JsError> {
        let settings = serde_json::from_str(&settings).map_err(sentence)?;
        let told = answer::Told::new(&on_piece);
        let took = answer::answer(self, text, &settings, &told).await;
        serde_json::to_string(&took.map_err(sentence)?).map_err(sentence)
    }
}
