//! The feed-forward half of a layer for many tokens: dense, or experts grouped by their tokens beside the shared one.

use super::{Between, PartialSums, Prompt, Rows};
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::memory::GpuWeight;
use crate::kernels::expert_rows::{GpuExpertRows, Other, TileList};
use crate::kernels::gemm::{Form, GpuExperts, GpuGemm, Input, Tile};
use crate::kernels::moe_combine::GpuMoeCombine;
use crate::kernels::router;
use crate::model::{Ffn, Mlp, Moe};
use crate::recipes::Rooms;
use crate::recipes::chunk::router_split_k;

/// The output of products by low tiles, or by tall ones where both are recorded and the low list is empty.
fn low_or_tall(ranges: &[Range; 2], gathers: &[GpuExperts]) -> PartialSums {
    let other = gathers.get(1).map(|tall| Other {
        rows: ranges[1].clone(),
        tiles: tall.tiles.clone(),
    });
    PartialSums {
        other,
        ..PartialSums::whole(&ranges[0])
    }
}

impl<'a> Prompt<'a> {
    /// The stream behind the feed-forward network of layer `i`, in a step of `least` tokens or more.
    pub(in crate::recipes) fn feed_forward(
        &mut self,
        i: usize,
        between: Between,
        least: u32,
    ) -> Range {
        let body = self.given.body;
        let layer = &body.layers[i];
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                let chunk = self.chunk;
                let x = between.x.clone();
                let input = self.normed(between, &layer.ffn_norm, mlp.gate.cols, false);
                let h = &chunk.h[0];
                self.gate_up(h, mlp, &input, None);
                let h = self.plain_input(&chunk.inner, h, mlp.down.cols);
                self.product(&chunk.after_ffn, &mlp.down, &h, 0, Some(&x))
            }
            Ffn::Moe(moe) => {
                let rooms = body.rooms_of(i);
                self.mixture((moe, rooms), &layer.ffn_norm, between, least)
            }
        }
    }

    /// silu(gate) * up, for all tokens or for those of each expert.
    fn gate_up(&mut self, h: &Range, mlp: &Mlp<GpuWeight>, x: &Rows, experts: Option<GpuExperts>) {
        let product = GpuGemm {
            up: Some(&mlp.up),
            experts,
            ..self.gemm(&mlp.gate, x, h)
        };
        self.multiply(&product);
    }

    fn mixture(
        &mut self,
        (moe, rooms): (&'a Moe<GpuWeight, Range>, Option<&'a Rooms>),
        norm: &Range,
        between: Between,
        least: u32,
    ) -> Range {
        let (shared, chunk) = (moe.shared.as_ref(), self.chunk);
        let experts = rooms.map_or(&moe.experts, |rooms| &rooms.staging);
        let (d, x) = (experts.down.rows, between.x.clone());
        // The router reads floats in every form.
        let input = self.normed(between, norm, d, true);
        let gathers = self.choice(moe);
        if let Some(rooms) = rooms {
            self.fill(rooms, &moe.experts, least);
        }
        let used = gathers[0].used;
        let asks = rooms.is_some_and(Rooms::asks_for_experts);
        let mut residual = x.clone();
        if let Some(mlp) = shared.filter(|_| asks) {
            residual = self.shared_beside_reads(mlp, &input, &x);
        }
        let shared = shared.filter(|_| !asks);
        // Each step of the shared expert stands beside that of the others, for which it does not wait: its few workgroups fill
        // what theirs leave idle at the end. So do products by low and by tall tiles: they write to buffers of their own.
        for (gather, h) in gathers.iter().zip(&chunk.h) {
            self.gate_up(h, experts, &input, Some(gather.clone()));
        }
        if let Some(mlp) = shared {
            self.gate_up(&chunk.shared_h, mlp, &input, None);
        }
        let h = self.inner(&gathers, experts.down.cols);
        let shared_h = shared.map(|mlp| {
            let (to, h) = (&chunk.shared_inner, &chunk.shared_h);
            (mlp, self.plain_input(to, h, mlp.down.cols))
        });
        for ((gather, h), y) in gathers.iter().zip(&h).zip(&chunk.slots) {
            let down = GpuGemm {
                experts: Some(GpuExperts {
                    gather: false,
                    ..gather.clone()
                }),
                ..self.gemm(&experts.down, h, y)
            };
            self.multiply(&down);
        }
        let slots = low_or_tall(&chunk.slots, &gathers);
        let residual = match shared_h {
            Some((mlp, h)) => self.product(&chunk.after_shared, &mlp.down, &h, 0, Some(&x)),
            None => residual,
        };
        let combine = GpuMoeCombine {
            slots: slots.range,
            other: slots.other,
            weights: chunk.expert_weights.clone(),
            residual,
            y: chunk.after_ffn.clone(),
            used,
            rows: d,
        };
        self.calls.push(combine.call());
        chunk.after_ffn.clone()
    }

    /// The stream `x` behind the shared expert, which does not need the answer to the last question.
    fn shared_beside_reads(&mut self, mlp: &Mlp<GpuWeight>, input: &Rows, x: &Range) -> Range {
        let chunk = self.chunk;
        self.gate_up(&chunk.shared_h, mlp, input, None);
        let h = self.plain_input(&chunk.shared_inner, &chunk.shared_h, mlp.down.cols);
        let after = self.product(&chunk.after_shared, &mlp.down, &h, 0, Some(x));
        if let Some(question) = self.questions.last_mut() {
            question.due = self.calls.len();
        }
        after
    }

    /// The inputs of `down` by each kind of tiles: halves are the same for both, of what either left.
    fn inner(&mut self, gathers: &[GpuExperts], cols: u32) -> Vec<Rows> {
        let (used, chunk) = (gathers[0].used, self.chunk);
        if let Form::Float { .. } = self.form {
            let h = chunk.h.iter().take(gathers.len());
            return h
                .map(|h| self.input(&chunk.inner, &PartialSums::whole(h), cols, used, None))
                .collect();
        }
        let h = low_or_tall(&chunk.h, gathers);
        let rows = self.input(&chunk.inner, &h, cols, used, None);
        vec![rows; gathers.len()]
    }

    /// The choice of experts by the normed rows in f32: rounding should not turn it. Their tokens, as gate and up take them, in tiles or in
    /// low and in tall ones, of which one kind has none.
    fn choice(&mut self, moe: &Moe<GpuWeight, Range>) -> Vec<GpuExperts> {
        let (router, chunk, target) = (&moe.ffn_gate_inp, self.chunk, self.given.target);
        let config = self.given.experts();
        let (used, count) = (config.used as u32, config.count as u32);
        let split_k = router_split_k(target.machine, router.cols);
        let rows = Rows {
            input: Input::Floats(chunk.normed.floats.clone()),
            stride: router.cols,
        };
        let product = GpuGemm {
            form: Form::float(target),
            split_k,
            ..self.gemm(router, &rows, &chunk.router_logits)
        };
        self.multiply(&product);
        self.calls.push(router::call(&router::GpuRouter {
            logits: chunk.router_logits.clone(),
            partial_sums: split_k,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.max_tokens,
            ids: chunk.expert_ids.clone(),
            weights: chunk.expert_weights.clone(),
        }));
        let height = Tile::for_experts(self.form, (self.max_tokens * used).div_ceil(count));
        let heights = [height].into_iter().chain(Tile::taller(self.form, height));
        let mut lists = vec![];
        let mut grids = vec![];
        for (height, tiles) in heights.zip(&chunk.tiles) {
            let tiles = tiles.clone();
            lists.push(TileList { height, tiles });
            let rows = [&moe.experts.gate, &moe.experts.down].map(|w| w.rows);
            grids.extend(GpuExperts::workgroups(self.form, height, rows));
        }
        let counts = Range::whole(&Buffer::counts("workgroups of experts", &grids));
        let list = GpuExpertRows {
            ids: chunk.expert_ids.clone(),
            experts: count,
            used,
            slots: chunk.expert_slots.clone(),
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
        list.lists.iter().enumerate().map(gather).collect()
    }

    /// The normed rows of the stream as products of this form take them, and besides as floats where `router` reads those; the stream itself
    /// is added up where the attention left that to do.
    fn normed(&mut self, between: Between, norm: &Range, cols: u32, router: bool) -> Rows {
        let Between { x, unsummed } = between;
        let (x, sum) = match unsummed {
            Some((sums, residual)) => (sums, Some([residual, x])),
            None => (PartialSums::whole(&x), None),
        };
        let to = &self.chunk.normed;
        let (input, mut rows) = self.rows(to, &x, cols, 1, Some(norm));
        rows.sum = sum;
        if router {
            rows.floats = Some(to.floats.clone());
        }
        self.calls.push(rows.call());
        input
    }
}
