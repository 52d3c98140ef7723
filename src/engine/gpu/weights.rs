//! A model's weights on a device.

use super::{TierTrial, random};
use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::memory::{GpuWeight, Loader};
use crate::gpu::{Gpu, GpuError, tuning};
use crate::kernels::router::MAX_EXPERTS;
use crate::kernels::sample::MAX_VOCAB;
use crate::model::precompose::Pairs;
use crate::model::{Config, Experts, Ffn, Layer, Model, Query, Weight};
use std::sync::Arc;

/// Widest latent of the attention kernel: 8 values for each of its 256 threads.
const MAX_KV_LORA: usize = 2048;

/// A model whose weights are on `gpu`, shared by every session.
pub struct GpuModel {
    /// The device, in the tier that the model decodes in.
    pub gpu: Arc<Gpu>,
    /// The model in the file: its configuration and names.
    pub model: Arc<Model>,
    pub(super) token_embd: GpuWeight,
    pub(super) layers: Vec<GpuLayer>,
    pub(super) output_norm: Range,
    pub(super) output: GpuWeight,
    /// The pairs of weights that decoding reads composed; the layers hold their products.
    pub(super) pairs: Pairs,
    /// What was measured now to choose the tier; `None` where that was not needed.
    pub(super) tier_trial: Option<TierTrial>,
}

/// One block; the fields are those of [`Layer`].
pub(super) struct GpuLayer {
    pub attn_norm: Range,
    pub q: GpuQuery,
    pub attn_kv_a_mqa: GpuWeight,
    pub attn_kv_a_norm: Range,
    pub attn_k_b: GpuWeight,
    pub attn_v_b: GpuWeight,
    pub attn_output: GpuWeight,
    pub ffn_norm: Range,
    pub ffn: GpuFfn,
    pub composed: Composed,
}

/// Precomposed weights of a block ([`crate::model::precompose`]).
#[derive(Default)]
pub(super) struct Composed {
    /// (heads * (kv_lora + rope)) x the width of the query's input.
    pub qk: Option<GpuWeight>,
    /// embedding_length x (heads * kv_lora).
    pub vo: Option<GpuWeight>,
}

pub(super) enum GpuQuery {
    Lora {
        attn_q_a: GpuWeight,
        attn_q_a_norm: Range,
        attn_q_b: GpuWeight,
    },
    Full {
        attn_q: GpuWeight,
    },
}

pub(super) enum GpuFfn {
    Dense(GpuMlp),
    Moe(Box<GpuMoe>),
}

pub(super) struct GpuMoe {
    pub ffn_gate_inp: GpuWeight,
    pub exp_probs_b: Option<Range>,
    pub experts: GpuMlp,
    pub shared: Option<GpuMlp>,
}

pub(super) struct GpuMlp {
    pub gate: GpuWeight,
    pub up: GpuWeight,
    pub down: GpuWeight,
}

impl GpuModel {
    /// How the experts of a layer that has some are chosen: the loader refuses such a layer where the file does not say.
    pub(super) fn experts(&self) -> &Experts {
        let experts = self.model.config.experts.as_ref();
        experts.expect("a MoE layer has experts in its config")
    }

    /// Uploads every weight, telling `progress` the bytes done and the bytes in all. The weights of a model without a
    /// file ([`crate::synth::without_matrices`]) are made on the device.
    ///
    /// On a device whose tier was not asked for, the tier is chosen then: the one kept for this device and such a model, else by
    /// measuring, where the device [may run](crate::gpu::Tier::may_be_measured) more than one. So the model's
    /// [`gpu`](Self::gpu) can be in another tier than the one passed.
    ///
    /// # Errors
    /// [`GpuError::UnsupportedSize`], [`GpuError::BindingTooLarge`], [`GpuError::OutOfMemory`],
    /// [`GpuError::ReadWeights`] or what the device reports.
    pub fn load(
        gpu: Arc<Gpu>,
        model: Arc<Model>,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, GpuError> {
        check_sizes(&model.config)?;
        let mut loader = Loader::new(&gpu);
        let token_embd = loader.add(&model.token_embd)?;
        let output = if model.tied {
            token_embd
        } else {
            loader.add(&model.output)?
        };
        let plans = model
            .layers
            .iter()
            .map(|l| plan_layer(&mut loader, l))
            .collect::<Result<Vec<_>, _>>()?;
        let total = loader.bytes();
        let weights = loader.load(&mut |done| progress(done, total))?;
        if !model.token_embd.has_data() {
            random::fill_weights(&gpu, &weights, &mut |done| progress(done, total))?;
        }

        let mut vectors = Vectors::new(&gpu);
        let output_norm = vectors.add(&model.output_norm);
        let spans: Vec<_> = model
            .layers
            .iter()
            .map(|l| plan_vectors(&mut vectors, l))
            .collect();
        let vectors = vectors.upload()?;
        let layers = plans
            .iter()
            .zip(&spans)
            .map(|(plan, spans)| plan.layer(&weights, spans, &vectors))
            .collect();
        gpu.check()?;
        let mut model = Self {
            token_embd: weights[token_embd].clone(),
            output: weights[output].clone(),
            output_norm: vectors.range(output_norm),
            layers,
            pairs: Pairs::NONE,
            tier_trial: None,
            gpu,
            model,
        };
        if model.gpu.tier_is_open {
            model.settle_tier(tuning::folder().ok().as_deref())?;
        }
        Ok(model)
    }

    /// What was measured while loading to choose the tier; `None` where one was asked for or kept, or the device has no choice.
    pub fn tier_trial(&self) -> Option<&TierTrial> {
        self.tier_trial.as_ref()
    }

    /// Bytes of weights on the device.
    pub fn bytes(&self) -> u64 {
        self.gpu.allocated()
    }
}

/// Refuses models of sizes that the kernels cannot index: their constructors assert what is checked here.
///
/// # Errors
/// [`GpuError::UnsupportedSize`].
fn check_sizes(config: &Config) -> Result<(), GpuError> {
    let refuse = |key, found, supported| {
        Err(GpuError::UnsupportedSize {
            key,
            found,
            supported,
        })
    };
    let experts = config.experts.as_ref().map_or(0, |e| e.count);
    for (key, found, limit) in [
        ("vocab_size", config.vocab_size, MAX_VOCAB),
        ("attention.kv_lora_rank", config.kv_lora_rank, MAX_KV_LORA),
        ("expert_count", experts, MAX_EXPERTS),
    ] {
        if found > limit {
            return refuse(key, found, format!("{limit} at most"));
        }
    }
    for (key, found) in [
        ("attention.kv_lora_rank", config.kv_lora_rank),
        ("rope.dimension_count", config.qk_rope_head_dim),
    ] {
        if !found.is_multiple_of(8) {
            return refuse(key, found, "multiples of 8".to_owned());
        }
    }
    Ok(())
}

/// The numbers that the loader gave a layer's tensors.
struct Plan {
    q: Vec<usize>,
    kv_a: usize,
    k_b: usize,
    v_b: usize,
    output: usize,
    router: Option<usize>,
    /// gate, up and down of the dense block or the experts, then of the shared expert.
    mlps: Vec<[usize; 3]>,
}

fn plan_layer<'a>(loader: &mut Loader<'a>, layer: &'a Layer) -> Result<Plan, GpuError> {
    let q = match &layer.q {
        Query::Lora {
            attn_q_a, attn_q_b, ..
        } => vec![loader.add(attn_q_a)?, loader.add(attn_q_b)?],
        Query::Full { attn_q } => vec![loader.add(attn_q)?],
    };
    let (kv_a, k_b) = (
        loader.add(&layer.attn_kv_a_mqa)?,
        loader.add(&layer.attn_k_b)?,
    );
    let (v_b, output) = (
        loader.add(&layer.attn_v_b)?,
        loader.add(&layer.attn_output)?,
    );
    let mut mlp = |gate: &'a Weight, up: &'a Weight, down: &'a Weight| {
        let pair = loader.add_alike(&[gate, up])?;
        Ok::<_, GpuError>([pair[0], pair[1], loader.add(down)?])
    };
    let (router, mlps) = match &layer.ffn {
        Ffn::Dense { gate, up, down } => (None, vec![mlp(gate, up, down)?]),
        Ffn::Moe {
            ffn_gate_inp,
            gate_exps,
            up_exps,
            down_exps,
            shared,
            ..
        } => {
            let mut mlps = vec![mlp(gate_exps, up_exps, down_exps)?];
            if let Some(s) = shared {
                mlps.push(mlp(&s.gate, &s.up, &s.down)?);
            }
            (Some(loader.add(ffn_gate_inp)?), mlps)
        }
    };
    Ok(Plan {
        q,
        kv_a,
        k_b,
        v_b,
        output,
        router,
        mlps,
    })
}

/// Where a layer's vectors lie.
struct Spans {
    attn_norm: Span,
    q_a_norm: Option<Span>,
    kv_a_norm: Span,
    ffn_norm: Span,
    exp_probs_b: Option<Span>,
}

fn plan_vectors(vectors: &mut Vectors<'_>, layer: &Layer) -> Spans {
    Spans {
        attn_norm: vectors.add(&layer.attn_norm),
        q_a_norm: match &layer.q {
            Query::Lora { attn_q_a_norm, .. } => Some(vectors.add(attn_q_a_norm)),
            Query::Full { .. } => None,
        },
        kv_a_norm: vectors.add(&layer.attn_kv_a_norm),
        ffn_norm: vectors.add(&layer.ffn_norm),
        exp_probs_b: match &layer.ffn {
            Ffn::Moe {
                exp_probs_b: Some(bias),
                ..
            } => Some(vectors.add(bias)),
            _ => None,
        },
    }
}

impl Plan {
    fn layer(&self, weights: &[GpuWeight], spans: &Spans, vectors: &Uploaded) -> GpuLayer {
        let w = |i: usize| weights[i].clone();
        let mlp = |m: &[usize; 3]| GpuMlp {
            gate: w(m[0]),
            up: w(m[1]),
            down: w(m[2]),
        };
        GpuLayer {
            attn_norm: vectors.range(spans.attn_norm),
            q: match spans.q_a_norm {
                Some(norm) => GpuQuery::Lora {
                    attn_q_a: w(self.q[0]),
                    attn_q_a_norm: vectors.range(norm),
                    attn_q_b: w(self.q[1]),
                },
                None => GpuQuery::Full {
                    attn_q: w(self.q[0]),
                },
            },
            attn_kv_a_mqa: w(self.kv_a),
            attn_kv_a_norm: vectors.range(spans.kv_a_norm),
            attn_k_b: w(self.k_b),
            attn_v_b: w(self.v_b),
            attn_output: w(self.output),
            ffn_norm: vectors.range(spans.ffn_norm),
            ffn: match self.router {
                None => GpuFfn::Dense(mlp(&self.mlps[0])),
                Some(router) => GpuFfn::Moe(Box::new(GpuMoe {
                    ffn_gate_inp: w(router),
                    exp_probs_b: spans.exp_probs_b.map(|s| vectors.range(s)),
                    experts: mlp(&self.mlps[0]),
                    shared: self.mlps.get(1).map(mlp),
                })),
            },
            composed: Composed::default(),
        }
    }
}

/// Byte offset and length in the buffer of all vectors.
type Span = (u64, u64);

/// The f32 vectors of a model (norms, selection biases) in one buffer, each at a bindable offset.
struct Vectors<'a> {
    gpu: &'a Gpu,
    bytes: Vec<u8>,
}

struct Uploaded(Buffer);

impl<'a> Vectors<'a> {
    fn new(gpu: &'a Gpu) -> Self {
        Self { gpu, bytes: vec![] }
    }

    fn add(&mut self, values: &[f32]) -> Span {
        let start = self
            .bytes
            .len()
            .next_multiple_of(self.gpu.offset_alignment as usize);
        self.bytes.resize(start, 0);
        self.bytes.extend_from_slice(bytemuck::cast_slice(values));
        // Kernels bind vectors as vec4.
        self.bytes.resize(self.bytes.len().next_multiple_of(16), 0);
        (start as u64, (self.bytes.len() - start) as u64)
    }

    fn upload(self) -> Result<Uploaded, GpuError> {
        Ok(Uploaded(
            self.gpu.storage_with("norms and biases", &self.bytes)?,
        ))
    }
}

impl Uploaded {
    fn range(&self, (offset, size): Span) -> Range {
        Range {
            buffer: self.0.clone(),
            offset,
            size,
            role: Role::Floats,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::ModelSource;

    #[test]
    fn sizes_that_the_kernels_cannot_index_are_refused() {
        let gguf = ModelSource::Embedded
            .open()
            .expect("it is part of the program");
        let config = Config::from_gguf(&gguf).expect("it is supported");
        assert!(check_sizes(&config).is_ok());
        let refused = |key: &str, change: &dyn Fn(&mut Config)| {
            let mut config = config.clone();
            change(&mut config);
            let error = check_sizes(&config).expect_err(key).to_string();
            assert!(
                error.contains(key) && error.contains("--device cpu"),
                "{error}"
            );
        };
        refused("vocab_size", &|c| c.vocab_size = MAX_VOCAB + 1);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = MAX_KV_LORA + 8);
        refused("kv_lora_rank", &|c| c.kv_lora_rank = 500);
        refused("rope.dimension_count", &|c| c.qk_rope_head_dim = 20);
        refused("expert_count", &|c| {
            c.experts.as_mut().expect("it has experts").count = MAX_EXPERTS + 1;
        });
    }
}
