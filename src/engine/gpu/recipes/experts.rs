//! The feed-forward half of a layer for many tokens: dense, or experts grouped by their tokens beside the shared one.

use super::prompt_buffers::{INNER, NORMED, SHARED, router_parts};
use super::recipe_prompt::{Parts, RecipePrompt, Rows};
use super::weights::{GpuFfn, GpuLayer, GpuMlp, GpuMoe};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range};
use crate::kernels::expert_rows::{GpuExpertRows, Other, TileList, tile_count};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile};
use crate::kernels::moe_combine::GpuMoeCombine;
use crate::kernels::router;
use crate::kernels::rows_f16::GpuRowsF16;

/// The experts that a router chose for a chunk.
struct Chosen {
    /// (max_tokens, used).
    weights: Range,
    /// Their tokens, as gate and up take them, in tiles or in low and in tall ones, of which one kind has none.
    gathers: Vec<GpuExperts>,
}

/// What products by low and by tall tiles leave.
const H: [&str; 2] = ["h", "tall h"];
const SLOTS: [&str; 2] = ["slots", "tall slots"];
const TILES: [&str; 2] = ["expert tiles", "tall tiles"];

/// What was left by low tiles, or by tall ones where those are given.
fn low_or_tall(ranges: &[Range], gathers: &[GpuExperts]) -> Parts {
    let other = ranges.get(1).map(|tall| Other {
        rows: tall.clone(),
        tiles: gathers[1].tiles.clone(),
    });
    Parts {
        other,
        ..Parts::whole(&ranges[0])
    }
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
        self.calls.extend(product.calls(self.gpu));
        Ok(y)
    }

    fn mixture(&mut self, moe: &GpuMoe, norm: &Range, x: &Range) -> Result<Range, GpuError> {
        let (experts, shared) = (&moe.experts, moe.shared.as_ref());
        let d = experts.down.rows;
        // The router reads floats in every form.
        let floats = self.activation(NORMED[0], d)?;
        let input = self.normed(x, norm, d, Some(floats.clone()))?;
        let Chosen { weights, gathers } = self.choice(moe, floats)?;
        let used = gathers[0].used;
        // Each step of the shared expert stands beside that of the others, for which it does not wait: its few workgroups fill
        // what theirs leave idle at the end. So do products by low and by tall tiles: they write to buffers of their own.
        let h = gathers
            .iter()
            .zip(H)
            .map(|(gather, name)| self.gate_up(name, experts, &input, Some(gather.clone())));
        let h = h.collect::<Result<Vec<_>, _>>()?;
        let shared_h = shared.map(|mlp| self.gate_up("shared h", mlp, &input, None));
        let shared_h = shared_h.transpose()?;
        let h = self.inner(&h, &gathers, experts.down.cols)?;
        let shared_h = match (shared, shared_h) {
            (Some(mlp), Some(h)) => Some((mlp, self.rows(SHARED, &h, mlp.down.cols, 1, None)?)),
            _ => None,
        };
        let mut slots = vec![];
        for ((gather, h), name) in gathers.iter().zip(&h).zip(SLOTS) {
            let y = self.activation(name, used * d)?;
            let down = GpuGemm {
                experts: Some(GpuExperts {
                    gather: false,
                    ..gather.clone()
                }),
                ..self.gemm(&experts.down, h, &y)
            };
            self.calls.extend(down.calls(self.gpu));
            slots.push(y);
        }
        let slots = low_or_tall(&slots, &gathers);
        let residual = match shared_h {
            Some((mlp, h)) => self.product("after shared", &mlp.down, &h, 0, Some(x))?,
            None => x.clone(),
        };
        let y = self.activation("after ffn", d)?;
        self.calls.push(
            GpuMoeCombine {
                slots: slots.range,
                other: slots.other,
                weights,
                residual,
                y: y.clone(),
                used,
                rows: d,
            }
            .call(),
        );
        Ok(y)
    }

    /// The inputs of `down` by each kind of tiles: halves are the same for both, of what either left.
    fn inner(
        &mut self,
        h: &[Range],
        gathers: &[GpuExperts],
        cols: u32,
    ) -> Result<Vec<Rows>, GpuError> {
        let used = gathers[0].used;
        if let Form::Float { .. } = self.form {
            let rows = h.iter().map(|h| self.rows(INNER, h, cols, used, None));
            return rows.collect();
        }
        let rows = self.rows_of(INNER, &low_or_tall(h, gathers), cols, used, None)?;
        Ok(vec![rows; h.len()])
    }

    /// The choice of experts by the normed rows in f32: rounding should not turn it.
    fn choice(&mut self, moe: &GpuMoe, floats: Range) -> Result<Chosen, GpuError> {
        let router = &moe.ffn_gate_inp;
        let config = self.model.experts();
        let (used, count) = (config.used as u32, config.count as u32);
        let parts = router_parts(self.gpu.machine, router.cols);
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
        self.calls.extend(product.calls(self.gpu));
        let ids = self.activation("expert ids", used)?;
        let weights = self.activation("expert weights", used)?;
        self.calls.push(router::call(&router::GpuRouter {
            logits,
            parts,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.max_tokens,
            ids: ids.clone(),
            weights: weights.clone(),
        }));
        let height = Tile::for_experts(self.form, (self.max_tokens * used).div_ceil(count));
        let heights = [height].into_iter().chain(Tile::taller(self.form, height));
        let mut lists = vec![];
        let mut grids = vec![];
        for (height, name) in heights.zip(TILES) {
            let tiles = u64::from(tile_count(self.max_tokens, used, height, count));
            let tiles = self.words(name, tiles * 4)?;
            lists.push(TileList { height, tiles });
            let rows = [&moe.experts.gate, &moe.experts.down].map(|w| w.rows);
            grids.extend(GpuExperts::workgroups(self.form, height, rows));
        }
        let counts = Range::whole(&Buffer::counts("workgroups of experts", &grids));
        let list = GpuExpertRows {
            ids,
            experts: count,
            used,
            slots: self.activation("expert slots", used)?,
            lists,
            counts: counts.clone(),
        };
        self.calls.push(list.call());
        let gather = |(i, of): (usize, &TileList)| GpuExperts {
            tiles: of.tiles.clone(),
            slots: list.slots.clone(),
            used,
            height: of.height,
            gather: true,
            counts: Some(Range {
                offset: 24 * i as u64,
                ..counts.clone()
            }),
            either: list.lists.len() > 1,
        };
        let gathers = list.lists.iter().enumerate().map(gather).collect();
        Ok(Chosen { weights, gathers })
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
        self.calls.push(
            GpuRowsF16 {
                x: parts.range,
                other: parts.other,
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
            .call(),
        );
        Ok(Rows {
            input,
            stride: cols,
        })
    }
}
