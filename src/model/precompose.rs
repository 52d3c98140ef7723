//! Precomposed weights (`--precompose`): two matrices of a block with nothing between them, multiplied once at load.
//!
//! `qk` joins the query's projection (`attn_q_b`, or `attn_q` where there is no query latent) with `attn_k_b`: for head h,
//! q_lat = K\[h\] (Q\[h\] x)_nope becomes one matrix of kv_lora rows. The rotated rows of Q stay as they are, behind those of
//! all heads, so one product gives all of a query. `vo` joins `attn_v_b` with `attn_output`, which then reads the merged
//! latents. Both trade bytes for dispatches, so only decoding uses them: prompts keep the weights of the file.
//!
//! The product is kept as Q8_0: half a step of its blocks is a fourth of a percent of their largest weight, below what 4- to
//! 6-bit factors leave. Where both factors are floats it is kept as F16, so that a file of floats is not quantised unasked.

use super::{Config, Layer, Model};
use crate::quant::{GgmlType, repack};

/// What `--precompose` asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PrecomposeChoice {
    /// Measure on this device and this model, and keep what is faster.
    Auto,
    /// Nothing.
    Off,
    /// The query's projection with `attn_k_b`.
    Qk,
    /// `attn_v_b` with `attn_output`.
    Vo,
    /// Both.
    Both,
}

/// What is done where nothing is asked for. `Auto` waits for its figures on real hardware (BENCHMARKS.md).
pub const DEFAULT_PRECOMPOSE: PrecomposeChoice = PrecomposeChoice::Off;

impl PrecomposeChoice {
    /// Every choice.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Off, Self::Qk, Self::Vo, Self::Both];

    /// The name that `--precompose` takes.
    pub const fn name(self) -> &'static str {
        match self.pairs() {
            Some(pairs) => pairs.name(),
            None => "auto",
        }
    }

    /// The pairs asked for; `None` where they are to be found by measuring.
    pub const fn pairs(self) -> Option<Pairs> {
        match self {
            Self::Auto => None,
            Self::Off => Some(Pairs::NONE),
            Self::Qk => Some(Pairs::QK),
            Self::Vo => Some(Pairs::VO),
            Self::Both => Some(Pairs::BOTH),
        }
    }
}

impl std::str::FromStr for PrecomposeChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|choice| choice.name() == text)
            .ok_or_else(|| format!("unknown choice '{text}', expected auto, qk, vo, both or off"))
    }
}

/// Which pairs of weights are composed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pairs {
    /// The query's projection with `attn_k_b`.
    pub qk: bool,
    /// `attn_v_b` with `attn_output`.
    pub vo: bool,
}

impl Pairs {
    /// None.
    pub const NONE: Self = Self {
        qk: false,
        vo: false,
    };
    /// The first.
    pub const QK: Self = Self {
        qk: true,
        ..Self::NONE
    };
    /// The second.
    pub const VO: Self = Self {
        vo: true,
        ..Self::NONE
    };
    /// Both.
    pub const BOTH: Self = Self { qk: true, vo: true };

    /// The name that `--precompose` has for them.
    pub const fn name(self) -> &'static str {
        match (self.qk, self.vo) {
            (false, false) => "off",
            (true, false) => "qk",
            (false, true) => "vo",
            (true, true) => "both",
        }
    }

    /// These and others.
    pub const fn with(self, other: Self) -> Self {
        Self {
            qk: self.qk || other.qk,
            vo: self.vo || other.vo,
        }
    }

    /// Whether these are among them.
    pub fn contains(self, others: Self) -> bool {
        self.with(others) == self
    }

    /// The compositions of a model with these sizes.
    pub fn compositions(self, config: &Config) -> impl Iterator<Item = Composition> {
        let qk = self.qk.then(|| Composition::qk(config));
        let vo = self.vo.then(|| Composition::vo(config));
        qk.into_iter().chain(vo)
    }

    /// Bytes that the composed weights of `model` take on a device.
    pub fn bytes(self, model: &Model) -> u64 {
        self.compositions(&model.config)
            .flat_map(|composition| model.layers.iter().map(move |layer| (composition, layer)))
            .map(|(composition, layer)| composition.bytes(composition.kept_as(layer)))
            .sum()
    }
}

/// The product of two weights, head by head. In rows counted over all groups, and for c in 0..cols, r in 0..rows:
///
/// out\[h * out_row + r\]\[h * out_col + c\] = sum over j in 0..depth of
/// left\[h * left_row + r\]\[h * left_col + j\] * right\[h * right_row + j\]\[c\]
///
/// and out\[heads * rows + h * kept + i\] = right\[h * right_row + depth + i\] for i in 0..kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Composition {
    /// The pair's name.
    pub name: &'static str,
    /// Query heads.
    pub heads: usize,
    /// Rows of a head's product.
    pub rows: usize,
    /// Terms of each sum.
    pub depth: usize,
    /// Columns of a head's product, and of the right factor.
    pub cols: usize,
    /// Rows from one head to the next in the left factor.
    pub left_row: usize,
    /// Columns from one head to the next in the left factor.
    pub left_col: usize,
    /// Rows from one head to the next in the right factor.
    pub right_row: usize,
    /// Rows from one head to the next in the product.
    pub out_row: usize,
    /// Columns from one head to the next in the product.
    pub out_col: usize,
    /// Rows of each head of the right factor that follow the product unchanged.
    pub kept: usize,
}

impl Composition {
    /// `attn_k_b` times the rows of the query's projection that are not rotated; the rotated ones are kept.
    pub fn qk(config: &Config) -> Self {
        Self {
            name: "attn_k_b with the query's projection",
            heads: config.head_count,
            rows: config.kv_lora_rank,
            depth: config.qk_nope_head_dim,
            cols: config.q_lora_rank.unwrap_or(config.embedding_length),
            left_row: config.kv_lora_rank,
            left_col: 0,
            right_row: config.qk_nope_head_dim + config.qk_rope_head_dim,
            out_row: config.kv_lora_rank,
            out_col: 0,
            kept: config.qk_rope_head_dim,
        }
    }

    /// `attn_output` times `attn_v_b`.
    pub fn vo(config: &Config) -> Self {
        Self {
            name: "attn_output with attn_v_b",
            heads: config.head_count,
            rows: config.embedding_length,
            depth: config.v_head_dim,
            cols: config.kv_lora_rank,
            left_row: 0,
            left_col: config.v_head_dim,
            right_row: config.v_head_dim,
            out_row: 0,
            out_col: config.kv_lora_rank,
            kept: 0,
        }
    }

    /// Whether this is the query's pair.
    fn is_qk(&self) -> bool {
        self.kept > 0
    }

    /// The left and the right factor in `layer`.
    pub fn factors<'a, W, V>(&self, layer: &'a Layer<W, V>) -> [&'a W; 2] {
        if !self.is_qk() {
            return [&layer.attn_output, &layer.attn_v_b];
        }
        [&layer.attn_k_b, layer.query_heads()]
    }

    /// The type that the product is kept as in `layer`.
    pub fn kept_as(&self, layer: &Layer) -> GgmlType {
        let [left, right] = self.factors(layer);
        kept_as(left.ty, right.ty)
    }

    /// Rows of the product.
    pub fn out_rows(&self) -> usize {
        (self.heads - 1) * self.out_row + self.rows + self.heads * self.kept
    }

    /// Columns of the product.
    pub fn out_cols(&self) -> usize {
        (self.heads - 1) * self.out_col + self.cols
    }

    /// Bytes of the product's planes.
    pub fn bytes(&self, ty: GgmlType) -> u64 {
        let (quants, scales) = repack::plane_bytes(ty, self.out_rows(), self.out_cols());
        (quants + scales) as u64
    }
}

/// The type of the product of two weights: see the head of this module.
pub fn kept_as(left: GgmlType, right: GgmlType) -> GgmlType {
    if repack::has_codes(left) || repack::has_codes(right) {
        GgmlType::Q8_0
    } else {
        GgmlType::F16
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;
    use crate::synth::{self, ModelName, Recipe, SynthOptions};
    use std::sync::Arc;

    #[test]
    fn choices_are_read_by_name_and_others_refused() {
        for choice in PrecomposeChoice::ALL {
            assert_eq!(choice.name().parse(), Ok(choice));
            if let Some(pairs) = choice.pairs() {
                assert_eq!(pairs.name(), choice.name());
            }
        }
        let error = "always".parse::<PrecomposeChoice>().unwrap_err();
        assert!(error.contains("both or off"), "{error}");
    }

    #[test]
    fn products_of_the_models_have_the_sizes_of_their_formulas() {
        // Rows and columns of qk, then of vo.
        for (name, qk, vo) in [
            (ModelName::Glm47Flash, (20 * 576, 768), (2048, 20 * 512)),
            (
                ModelName::DeepseekV2Lite,
                (16 * 576, 2048),
                (2048, 16 * 512),
            ),
            (ModelName::YoutuLlm2b, (16 * 576, 1536), (2048, 16 * 512)),
        ] {
            let options = SynthOptions::default();
            let gguf = synth::without_matrices(name, Recipe::Q4_0, &options).unwrap();
            let model = Model::load(Arc::new(gguf)).unwrap();
            let size = |c: Composition| (c.out_rows(), c.out_cols());
            assert_eq!(size(Composition::qk(&model.config)), qk);
            assert_eq!(size(Composition::vo(&model.config)), vo);
            for layer in &model.layers {
                for composition in Pairs::BOTH.compositions(&model.config) {
                    let [left, right] = composition.factors(layer);
                    assert_eq!(right.cols, composition.cols);
                    let per_head = composition.depth + composition.kept;
                    assert_eq!(right.groups * right.rows, composition.heads * per_head);
                    let heads = composition.heads - 1;
                    assert_eq!(left.cols, heads * composition.left_col + composition.depth);
                    let rows = heads * composition.left_row + composition.rows;
                    assert_eq!(left.groups * left.rows, rows);
                }
            }
            let weights = model.layers.len() * (qk.0 * qk.1 + vo.0 * vo.1);
            assert_eq!(Pairs::BOTH.bytes(&model), (weights / 32 * 34) as u64);
            assert_eq!(Pairs::NONE.bytes(&model), 0);
        }
    }

    #[test]
    fn only_floats_stay_floats() {
        assert_eq!(kept_as(GgmlType::F16, GgmlType::F32), GgmlType::F16);
        assert_eq!(kept_as(GgmlType::F16, GgmlType::Q4_0), GgmlType::Q8_0);
        let gguf = ModelSource::Embedded.open().unwrap();
        let model = Model::load(Arc::new(gguf)).unwrap();
        let qk = Composition::qk(&model.config);
        assert_eq!(qk.kept_as(&model.layers[0]), GgmlType::Q8_0);
    }
}
