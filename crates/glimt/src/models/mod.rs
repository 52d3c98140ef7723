//! The families of models. Each has a folder with what only its models have; what all share is in [`model`](crate::model).
//!
//! The engine knows no family: it asks for what the traits of this module name, and for steps that [`recipes`](crate::recipes) make. A further
//! family is a folder that has these traits and those of its attention there, and a line in `FAMILIES`.

mod body;
pub mod gqa;
pub mod mla;

use std::fmt;
use std::ops::ControlFlow;
use std::sync::Arc;

use half::f16;
use half::slice::HalfFloatSliceExt;

use crate::gguf::Gguf;
use crate::gpu::{GpuError, Target};
use crate::kernels::products::Products;
use crate::kernels::sequences::PAGE;
use crate::kernels::{CacheType, Rows};
use crate::model::pairs::{Factors, Pair};
use crate::model::{Config, ModelError, NextnSource, Weight};
use crate::recipes::{Placed, Residence};

/// Every family that glimt runs.
const FAMILIES: [Family; 2] = [mla::FAMILY, gqa::FAMILY];

/// Models that are computed alike.
pub struct Family {
    /// Values of `general.architecture` that its files have.
    pub architectures: &'static [&'static str],
    /// The names of these models, for a message.
    pub models: &'static str,
    /// Reads the configuration and finds all weights, those of the prediction layer from its source.
    pub load: fn(Arc<Gguf>, &NextnSource) -> Loaded,
}

/// The result of reading a model.
pub type Loaded = Result<Arc<dyn Model>, ModelError>;

/// Reads the configuration of a model of any family and finds all its weights but those of a prediction layer.
///
/// # Errors
/// The errors of [`load_with_nextn`].
pub fn load(gguf: Arc<Gguf>) -> Loaded {
    load_with_nextn(gguf, &NextnSource::None)
}

/// Loads a model of any family like [`load`], and the prediction layer of `nextn`.
///
/// # Errors
/// [`ModelError::Architecture`] where no family has the file's architecture, or what its family refuses.
pub fn load_with_nextn(gguf: Arc<Gguf>, nextn: &NextnSource) -> Loaded {
    let architecture = gguf.require_str("general.architecture")?;
    let family = FAMILIES
        .iter()
        .find(|f| f.architectures.contains(&architecture));
    let Some(family) = family else {
        return Err(ModelError::Architecture {
            found: architecture.to_owned(),
            runs: all_that_run(),
        });
    };
    (family.load)(gguf, nextn)
}

/// Loads a model of any family like [`load_with_nextn`], with a cache of this type.
///
/// # Errors
/// The errors of [`load_with_nextn`], and [`ModelError::CacheType`].
pub fn load_with_cache(gguf: Arc<Gguf>, nextn: &NextnSource, cache: CacheType) -> Loaded {
    let mut model = load_with_nextn(gguf, nextn)?;
    let own = Arc::get_mut(&mut model).expect("nobody else has the model yet");
    own.set_cache_type(cache)?;
    Ok(model)
}

/// Whether a family has this architecture.
pub fn runs(architecture: &str) -> bool {
    FAMILIES
        .iter()
        .any(|family| family.architectures.contains(&architecture))
}

/// The architectures of all families and their models, for a message.
pub fn all_that_run() -> String {
    let runs = FAMILIES.iter().map(|family| {
        let quoted: Vec<_> = family
            .architectures
            .iter()
            .map(|a| format!("{a:?}"))
            .collect();
        format!("{}: {}", quoted.join(", "), family.models)
    });
    runs.collect::<Vec<_>>().join("; ")
}

/// A model: its sizes, and weights that are views of its file.
pub trait Model: fmt::Debug + Send + Sync {
    /// The configuration that models of all families have.
    fn config(&self) -> &Config;

    /// The sizes that only its family has, by name; `None` of what the model does without.
    fn sizes(&self) -> Vec<(&'static str, Option<usize>)>;

    /// The sizes of its attention in words, as `inspect` has them.
    fn attention(&self) -> String;

    /// The file.
    fn gguf(&self) -> &Arc<Gguf>;

    /// Whether its weights have bytes; those of a model without a file do not ([`Gguf::planned`]).
    fn has_data(&self) -> bool;

    /// Whether its prediction layer is loaded, so that it can make drafts. Whether a file has one is told by
    /// [`has_nextn`](crate::model::has_nextn).
    fn nextn(&self) -> bool;

    /// The matrices of its prediction layer; none where that is not loaded. Tables that it shares with the model do not count.
    fn nextn_weights(&self) -> Vec<&Weight> {
        vec![]
    }

    /// Bytes of these matrices.
    fn nextn_bytes(&self) -> u64 {
        let weights = self.nextn_weights().into_iter();
        weights.map(Weight::byte_len).sum()
    }

    /// The layout of a row of the cache of a layer.
    fn cache_row(&self) -> Rows;

    /// The type of the rows of its cache.
    fn cache_type(&self) -> CacheType {
        self.cache_row().cache
    }

    /// Has the rows of its cache be of this type from now on.
    ///
    /// # Errors
    /// [`ModelError::CacheType`] where its rows have no whole blocks.
    fn set_cache_type(&mut self, cache: CacheType) -> Result<(), ModelError>;

    /// So many rows of the cache of a layer, made of the `values` that are wanted for them.
    fn cache_rows(&self, rows: usize, values: fn(usize) -> Vec<f16>) -> Vec<f16> {
        let layout = self.cache_row();
        let values = values(rows * layout.values());
        match layout.cache {
            CacheType::F16 => values,
            CacheType::Q8_0 => {
                let mut wide = vec![0.0; values.len()];
                values.convert_to_f32_slice(&mut wide);
                layout.write_all(&wide)
            }
        }
    }

    /// Bytes that a position takes in the cache, of all layers, also of the prediction layer if that is loaded.
    fn cache_bytes_per_token(&self) -> u64 {
        let layers = self.config().block_count + usize::from(self.nextn());
        (layers * self.cache_row().words() * size_of::<f16>()) as u64
    }

    /// The weights of each block that `pair` multiplies; nothing where blocks have no such weights.
    fn factors(&self, pair: Pair) -> Vec<Factors<'_>>;

    /// The forward pass on the CPU, for contexts of `n_ctx` tokens with `rows` rows of the cache in all.
    ///
    /// # Errors
    /// [`OutOfMemory`] where the cache has no room.
    fn reference(
        self: Arc<Self>,
        products: Products,
        n_ctx: usize,
        rows: usize,
    ) -> Result<Box<dyn Reference>, OutOfMemory>;

    /// The places of its weights on a device, and of its experts as `residence` says.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`].
    fn place(&self, target: &Target, residence: Residence) -> Result<Placed<'_>, GpuError>;
}

/// The error that the host has no room for a cache of these bytes.
#[derive(Debug)]
pub struct OutOfMemory {
    /// Bytes of the cache.
    pub bytes: usize,
}

/// The listener to the number of blocks of a forward pass that are done.
pub type OnBlock<'a> = dyn FnMut(usize) -> ControlFlow<()> + 'a;

/// Tokens of a forward pass on the CPU that follow each other in one sequence.
#[derive(Debug, Clone, Copy)]
pub struct Part<'a> {
    /// The number of tokens.
    pub tokens: usize,
    /// The position of the first.
    pub pos: usize,
    /// The pages of the cache that hold the rows of the sequence, in order; none where the row of a position is its number.
    pub pages: &'a [u32],
}

impl Part<'_> {
    /// The result of `work` on the rows of the sequence up to the last of these tokens, in their order. `row` is the number of words of 16 bits of one.
    /// The rows of these tokens are put back into their pages.
    pub fn in_order<T>(
        &self,
        cache: &mut [f16],
        row: usize,
        work: impl FnOnce(&mut [f16]) -> T,
    ) -> T {
        let page = PAGE as usize * row;
        let count = (self.pos + self.tokens).div_ceil(PAGE as usize);
        let pages = &self.pages[..count.min(self.pages.len())];
        let place = |number: u32| number as usize * page..(number as usize + 1) * page;
        let Some(&first) = pages.first() else {
            return work(cache);
        };
        if pages.iter().zip(first..).all(|(page, next)| *page == next) {
            return work(&mut cache[place(first).start..][..pages.len() * page]);
        }
        let rows = pages.iter().flat_map(|number| &cache[place(*number)]);
        let mut rows: Vec<f16> = rows.copied().collect();
        let done = work(&mut rows);
        let pairs = rows.chunks_exact(page).zip(pages);
        for (rows, number) in pairs.skip(self.pos / PAGE as usize) {
            cache[place(*number)].copy_from_slice(rows);
        }
        done
    }
}

/// The forward pass on the CPU: the twins of the kernels, composed, with a cache, and with products of one kind or the other.
pub trait Reference: Send + Sync {
    /// The hidden states (T, embedding_length) behind the last block for tokens of one sequence or of several, part after part; fills their
    /// cache rows. Before each block but the first, `on_block` is told how many are done. A break there ends it with `None`, and the rows are then
    /// undefined.
    fn forward(
        &mut self,
        tokens: &[u32],
        parts: &[Part<'_>],
        on_block: &mut OnBlock<'_>,
    ) -> Option<Vec<f32>>;

    /// The logits (T, vocab_size) of hidden states (T, embedding_length).
    fn head(&self, x: &[f32]) -> Vec<f32>;

    /// The states (T, embedding_length) after the last norm, of those behind the last block: the prediction layer takes them.
    fn normed(&self, x: &[f32]) -> Vec<f32>;

    /// The states (T, embedding_length) of the prediction layer behind its last norm, for tokens of one sequence or of several; fills their rows
    /// of the layer's cache. The parts say where the tokens stand, and `hidden` (T, embedding_length) has the [normed](Self::normed) state of the
    /// position before each: zeros for position 0. For a token that is a draft it has what this gave for the position before instead. The state of
    /// a position proposes the token behind it.
    ///
    /// # Panics
    /// If the model has no such layer loaded ([`Model::nextn`]).
    fn predict(&mut self, tokens: &[u32], hidden: &[f32], parts: &[Part<'_>]) -> Vec<f32>;

    /// Fills the rows of the layer's cache like [`predict`](Self::predict), and computes nothing else: the rows of a prompt.
    ///
    /// # Panics
    /// If the model has no such layer loaded.
    fn predict_rows(&mut self, tokens: &[u32], hidden: &[f32], parts: &[Part<'_>]);

    /// The logits (T, vocab_size) of states that [`predict`](Self::predict) gave.
    ///
    /// # Panics
    /// If the model has no such layer loaded.
    fn predicted_head(&self, states: &[f32]) -> Vec<f32>;

    /// The cache of each layer, the same number of values for each position. That of the prediction layer is the last, if it is loaded.
    fn cache(&mut self) -> &mut [Vec<f16>];

    /// The cache of each layer, to be read alone.
    fn cached(&self) -> &[Vec<f16>];
}

#[cfg(test)]
mod tests {
    use super::Part;
    use super::mla::testing::Draft;
    use crate::kernels::sequences::PAGE;
    use half::f16;

    #[test]
    fn rows_stand_in_order_and_go_back_to_their_pages() {
        const ROW: usize = 3;
        let page = PAGE as usize;
        let number = |value: f16| value.to_f32() as usize;
        let fresh: Vec<f16> = (0..4 * page)
            .flat_map(|i| [f16::from_f32(i as f32); ROW])
            .collect();
        for pages in [&[][..], &[1, 2, 3], &[2, 0, 3]] {
            let (mut cache, pos, tokens) = (fresh.clone(), page + 7, page);
            let part = Part { tokens, pos, pages };
            part.in_order(&mut cache, ROW, |rows| {
                for (i, row) in rows.chunks_exact_mut(ROW).take(pos + tokens).enumerate() {
                    let first = pages.get(i / page).map_or(i / page, |page| *page as usize);
                    assert_eq!(number(row[0]), first * page + i % page, "{pages:?}");
                    if i >= pos {
                        row.fill(f16::from_f32(1024.0 + i as f32));
                    }
                }
            });
            let written: Vec<usize> = cache.iter().step_by(ROW).map(|row| number(*row)).collect();
            for (i, row) in written.iter().enumerate() {
                let of = |first: &u32| *first as usize == i / page;
                let at = match pages.is_empty() {
                    true => Some(i),
                    false => pages.iter().position(of).map(|at| at * page + i % page),
                };
                let new = at.filter(|at| (pos..pos + tokens).contains(at));
                assert_eq!(*row, new.map_or(i, |at| 1024 + at), "{pages:?}");
            }
        }
    }

    #[test]
    fn files_of_ollamas_converter_are_read() {
        let mut draft = Draft::glm(2);
        for (key, _) in &mut draft.metadata {
            if let Some(name) = key.strip_prefix("deepseek2.") {
                *key = format!("glm4moelite.{name}");
            }
        }
        draft.set_raw("general.architecture", "glm4moelite");
        let model = super::load(draft.open()).expect("it is a GLM");
        assert_eq!(model.config().block_count, 2);
        assert_eq!(model.config().architecture, "glm4moelite");
    }

    #[test]
    fn fewer_blocks_than_the_file_has_are_refused() {
        let mut draft = Draft::glm(3);
        draft.set("block_count", 2u32);
        let error = super::load(draft.open()).expect_err("a block is left out");
        let message = error.to_string();
        for expected in ["deepseek2.block_count is 2", "blk.2."] {
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn other_architectures_are_named_beside_those_that_run() {
        let refused = |architecture: &str| {
            let mut draft = Draft::glm(1);
            draft.set_raw("general.architecture", architecture);
            let error = super::load(draft.open()).expect_err("no family has it");
            error.to_string()
        };
        // MiniCPM3 has latent attention, too, but scales its embeddings, its depth and its logits.
        let message = refused("minicpm3");
        let expected = "the file holds a model of the architecture \"minicpm3\"; glimt runs";
        assert!(message.starts_with(expected), "{message}");
        assert_eq!(
            refused("gemma3"),
            "the file holds a model of the architecture \"gemma3\"; glimt runs \"deepseek2\", \"glm4moelite\": GLM-4.7-Flash, DeepSeek-V2-Lite, \
             Youtu-LLM-2B and models of their shape; \"qwen3moe\", \"qwen3\", \"qwen2\", \"llama\": Qwen3-30B-A3B, Qwen3, Qwen2.5, Llama 3, \
             SmolLM2 and models of their shape"
        );
    }
}
