//! The feed-forward half of a layer for many tokens: dense, or experts grouped by their tokens beside the shared one.

use super::prompt_buffers::{INNER, NORMED, SHARED, router_parts};
use super::recipe_prompt::{Parts, RecipePrompt, Rows};
use super::weights::{GpuFfn, GpuLayer, GpuMlp, GpuMoe};
use crate::gpu::GpuError;
use crate::gpu::record::Range;
use crate::kernels::expert_rows::{GpuExpertRows, tile_count};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile};
use crate::kernels::moe_combine::GpuMoeCombine;
use crate::kernels::router;
use crate::kernels::rows_f16::GpuRowsF16;

/// The experts that a router chose for a chunk.
struct Chosen {
    /// (max_tokens, used).
    weights: Range,
    /// Their tokens, as gate and up take them.
    gather: GpuExperts,
}

impl RecipePrompt<'_> {
    pub(super) fn feed_forward(&mut self, layer: &GpuLayer, x: &Range) -> Result<Range, GpuError> {
        match &layer.ffn {
            GpuFfn::Dense(mlp) => {
                let input = self.normed(x, &layer.ffn_norm, mlp.gate.cols, None)?;
                let h = self.gate_up("h", mlp, &input, None)?;
                let h = self.rows(INNER, &h, mlp.down.cols, 1, None)?;
                self.product("after ffn", &mlp.down, &h, 0, Some(x))
            }
            GpuFfn::Moe(moe) => self.mixture(moe, &layer.ffn_norm, x),
        }
    }

    /// silu(gate) * up, for all tokens or for those of each expert.
    fn gate_up(
        &mut self,
        name: &'static str,
        mlp: &GpuMlp,
        x: &Rows,
        experts: Option<GpuExperts>,
    ) -> Result<Range, GpuError> {
        let used = experts.as_ref().map_or(1, |e| e.used);
        let y = self.activation(name, used * mlp.gate.rows)?;
        let product = GpuGemm {
            up: Some(&mlp.up),
            experts,
            ..self.gemm(&mlp.gate, x, &y)
        };
        self.ops.extend(product.ops());
        Ok(y)
    }

    fn mixture(&mut self, moe: &GpuMoe, norm: &Range, x: &Range) -> Result<Range, GpuError> {
        let (experts, shared) = (&moe.experts, moe.shared.as_ref());
        let d = experts.down.rows;
        // The router reads floats in every form.
        let floats = self.activation(NORMED[0], d)?;
        let input = self.normed(x, norm, d, Some(floats.clone()))?;
        let Chosen { weights, gather } = self.choice(moe, floats)?;
        let used = gather.used;
        // Each step of the shared expert stands beside that of the others, for which it does not wait: its few workgroups fill
        // what theirs leave idle at the end.
        let h = self.gate_up("h", experts, &input, Some(gather.clone()))?;
        let shared_h = shared.map(|mlp| self.gate_up("shared h", mlp, &input, None));
        let shared_h = shared_h.transpose()?;
        let h = self.rows(INNER, &h, experts.down.cols, used, None)?;
        let shared_h = match (shared, shared_h) {
            (Some(mlp), Some(h)) => Some((mlp, self.rows(SHARED, &h, mlp.down.cols, 1, None)?)),
            _ => None,
        };
        let slots = self.activation("slots", used * d)?;
        let down = GpuGemm {
            experts: Some(GpuExperts {
                gather: false,
                ..gather
            }),
            ..self.gemm(&experts.down, &h, &slots)
        };
        self.ops.extend(down.ops());
        let residual = match shared_h {
            Some((mlp, h)) => self.product("after shared", &mlp.down, &h, 0, Some(x))?,
            None => x.clone(),
        };
        let y = self.activation("after ffn", d)?;
        self.ops.push(
            GpuMoeCombine {
                slots,
                weights,
                residual,
                y: y.clone(),
                max_tokens: self.max_tokens,
                used,
                rows: d,
            }
            .op(),
        );
        Ok(y)
    }

    /// The choice of experts by the normed rows in f32: rounding should not turn it.
    fn choice(&mut self, moe: &GpuMoe, floats: Range) -> Result<Chosen, GpuError> {
        let router = &moe.ffn_gate_inp;
        let config = self.model.experts();
        let (used, count) = (config.used as u32, config.count as u32);
        let parts = router_parts(self.gpu, router.cols);
        let logits = self.activation("router logits", parts * router.rows)?;
        let rows = Rows {
            input: Input::Floats(floats),
            stride: router.cols,
        };
        let product = GpuGemm {
            form: Form::float(self.gpu),
            parts,
            ..self.gemm(router, &rows, &logits)
        };
        self.ops.extend(product.ops());
        let ids = self.activation("expert ids", used)?;
        let weights = self.activation("expert weights", used)?;
        self.ops.push(router::op(&router::GpuRouter {
            logits,
            parts,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.max_tokens,
            ids: ids.clone(),
            weights: weights.clone(),
        }));
        let height = Tile::for_experts(self.form, (self.max_tokens * used).div_ceil(count));
        let tiles = u64::from(tile_count(self.max_tokens, used, height, count));
        let list = GpuExpertRows {
            ids,
            experts: count,
            used,
            height,
            max_tokens: self.max_tokens,
            slots: self.activation("expert slots", used)?,
            tiles: self.words("expert tiles", tiles * 4)?,
        };
        self.ops.push(list.op());
        let gather = GpuExperts {
            tiles: list.tiles,
            slots: list.slots,
            used,
            height,
            gather: true,
        };
        Ok(Chosen { weights, gather })
    }

    /// The normed rows of `x` as products of this form take them, and as floats in `floats` where that is given; `x` itself is
    /// added up where the attention left that to do.
    fn normed(
        &mut self,
        x: &Range,
        norm: &Range,
        cols: u32,
        floats: Option<Range>,
    ) -> Result<Rows, GpuError> {
        let (parts, sum) = match self.unsummed.take() {
            Some((parts, residual)) => (parts, Some([residual, x.clone()])),
            None => (Parts::whole(x), None),
        };
        let (input, halves, floats) = match self.form {
            Form::Float { .. } => {
                let floats = match floats {
                    Some(floats) => floats,
                    None => self.activation(NORMED[0], cols)?,
                };
                (Input::Floats(floats.clone()), None, Some(floats))
            }
            Form::Matrix(_) => {
                let halves = [
                    self.activation(NORMED[1], cols / 2)?,
                    self.activation(NORMED[2], 1)?,
                ];
                (Input::Halves(halves.clone()), Some(halves), floats)
            }
        };
        self.ops.push(
            GpuRowsF16 {
                x: parts.range,
                parts: parts.count,
                cols,
                norm: Some((norm.clone(), self.eps)),
                halves,
                floats,
                max_tokens: self.max_tokens,
                used: 1,
                sum,
                last: false,
            }
            .op(),
        );
        Ok(Rows {
            input,
            stride: cols,
        })
    }
}
