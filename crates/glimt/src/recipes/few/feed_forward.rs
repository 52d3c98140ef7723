//! The feed-forward network of a layer of few tokens: dense, or experts of each token or in tiles of tokens.

use super::{Few, Place, Product, Stream, combine};
use crate::gpu::GpuError;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::Call;
use crate::gpu::memory::GpuWeight;
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::batch_experts::{self, GpuBatchExperts, TILE_WORDS};
use crate::kernels::batch_matvec::{GpuBatchMatvec, Input, Tiles};
use crate::kernels::expert_slots::{GpuExpertSlots, Share};
use crate::kernels::expert_sources::ChosenBy;
use crate::kernels::router::GpuRouter;
use crate::kernels::token::{self, Divided, TokenInput, TokenOutput};
use crate::kernels::token_gate_up::{self, GpuTokenGateUp};
use crate::kernels::token_moe_down::GpuTokenMoeDown;
use crate::kernels::token_router::{self, GpuTokenRouter};
use crate::model::{Ffn, Mlp, Moe};
use crate::recipes::{HostShare, Rooms};

/// The experts' logits of each token.
pub(in crate::recipes) struct RouterLogits {
    /// Partial sums of the logits, (partial_sums, experts) f32.
    pub logits: Range,
    pub partial_sums: u32,
    /// Whether the logits are still multiplied by the root mean square of the stream.
    pub raw: bool,
}

/// The choice of the experts that `gate_up` multiplies of each of several tokens, by themselves.
fn chosen_apart<'g>(gate_up: &'g GpuTokenGateUp<'g>) -> GpuExpertSlots<'g> {
    GpuExpertSlots {
        gate_up,
        table: None,
        routing: None,
        fills: None,
        share: None,
    }
}

impl Few<'_> {
    /// The stream behind the feed-forward network of layer `i`, in its place.
    pub(in crate::recipes) fn feed_forward(
        &mut self,
        i: usize,
        stream: &Stream,
        logits: Option<RouterLogits>,
        next: &Place,
    ) -> Result<Stream, GpuError> {
        let body = self.given.body;
        let (layer, rooms) = (&body.layers[i], body.rooms_of(i));
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                let h = self.hidden_values(mlp.gate.rows);
                self.gate_up(mlp, &stream.values, &h)?;
                self.record(&Product {
                    residual: Some(stream.x.clone()),
                    y: Some(next.x.clone()),
                    prepared: Some(next.prepared.output()),
                    ..Product::of(&mlp.down, &TokenInput::of(h))
                })?;
            }
            Ffn::Moe(moe) => {
                let logits = match logits {
                    Some(logits) => logits,
                    None => self.router_logits(&moe.ffn_gate_inp, &layer.ffn_norm, stream)?,
                };
                // The last layer of a batch leaves its output in one form for all steps of several, because they share their heads.
                let is_last = i + 1 == body.layers.len();
                if !self.as_one && (is_last || !self.is_apart()) {
                    return self.experts_in_tiles((moe, rooms), stream, logits.logits, next);
                }
                self.experts_apart((moe, rooms), stream, logits, next)?;
            }
        }
        Ok(next.stream(self.given.eps()))
    }

    /// Room for hidden values: by the kernels of a decoded token for a layer that has `of_layer`, else for any layer.
    fn hidden_values(&mut self, of_layer: u32) -> Range {
        let config = self.given.config();
        let routed = config.experts.as_ref();
        let routed = routed.map_or(0, |e| e.used * e.feed_forward_length);
        let width = match self.as_one {
            true => of_layer,
            false => config.feed_forward_length.max(routed) as u32,
        };
        self.values("h", width)
    }

    /// The experts' logits, in f32: rounding should not choose experts.
    fn router_logits(
        &mut self,
        weight: &GpuWeight,
        norm: &Range,
        stream: &Stream,
    ) -> Result<RouterLogits, GpuError> {
        let rms = stream.values.rms.as_ref();
        let (squares, eps) = rms.expect("the attention leaves sums of squares").clone();
        let width = match (self.as_one, self.most) {
            (true, 1) => weight.rows,
            _ => weight.rows.next_multiple_of(4),
        };
        let y = self.floats("router logits", width);
        let (x, norm) = (stream.x.clone(), norm.clone());
        if self.as_one && token_router::fits(weight.ty, weight.cols) {
            let router = GpuTokenRouter {
                weight,
                x,
                norm: Some(norm),
                squares,
                eps,
                y: y.clone(),
                stride: width,
                tokens: self.most,
            };
            self.calls.extend(router.calls());
        } else {
            let x = Input::Stream(x, norm, squares, eps);
            self.record(&Product {
                y: Some(y.clone()),
                ..Product::by(weight, x)
            })?;
        }
        Ok(RouterLogits {
            logits: y,
            partial_sums: 1,
            raw: false,
        })
    }

    /// The experts of each token in workgroups of its own, which also choose them and add up what they give. By the kernels of a decoded token the
    /// shared expert is in the same grids. An expert is read once for each of its tokens, but few tokens share experts.
    fn experts_apart(
        &mut self,
        (moe, rooms): (&Moe<GpuWeight, Range>, Option<&Rooms>),
        stream: &Stream,
        logits: RouterLogits,
        next: &Place,
    ) -> Result<(), GpuError> {
        let (config, target) = (self.given.experts(), self.given.target);
        let used = config.used as u32;
        // The places of the experts that the products read.
        let experts = rooms.map_or(&moe.experts, |rooms| rooms.read_by(config, self.most));
        let (shared, beside) = match self.as_one {
            true => (moe.shared.as_ref(), None),
            false => (None, moe.shared.as_ref()),
        };
        let asks = rooms.is_some_and(Rooms::asks_for_experts);
        let early = (!asks).then(|| self.shared_gate_up(beside, stream));
        let early = early.transpose()?;
        let slots = u64::from(self.most * used);
        let ids = self.buffer("expert ids", || Range::words("expert ids", slots));
        let weights = self.floats("expert weights", used);
        let router = GpuRouter {
            logits: logits.logits,
            partial_sums: logits.partial_sums,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.most,
            ids: ids.clone(),
            weights: weights.clone(),
        };
        let apart = self.as_one && token_gate_up::chooses_apart(target, self.most);
        let shared_rows = shared.map_or(0, |mlp| mlp.gate.rows);
        let h = self.hidden_values(used * experts.gate.rows + shared_rows);
        let gate_up = GpuTokenGateUp {
            tokens: self.most,
            activation: self.activation,
            experts: Some(([&experts.gate, &experts.up], router)),
            given: rooms.is_some() || apart,
            raw_logits: logits.raw,
            shared: shared.map(|mlp| [&mlp.gate, &mlp.up]),
            x: stream.values.clone(),
            h: h.clone(),
        };
        // A share of the host is for one sequence alone, so that text does not depend on others.
        let share = rooms.and_then(|rooms| rooms.share.as_ref());
        let share = share.filter(|_| self.most == 1 && self.given.context.sequences.is_none());
        match rooms {
            Some(rooms) => {
                self.choose_and_fill(&gate_up, &moe.experts, (rooms, share), &stream.x)?
            }
            None if apart => self.calls.push(chosen_apart(&gate_up).call(target)?),
            None => {}
        }
        let beside = match early {
            Some(early) => early,
            None => self.shared_beside_reads(beside, stream)?,
        };
        self.gate_up_of_chosen(&gate_up, asks && shared.is_some(), &ids)?;
        if let (Some(_), Some(question)) = (share, self.questions.last_mut()) {
            // The bus brings experts, and these are multiplied, while the host multiplies others.
            question.due = self.calls.len();
        }
        let residual = self.shared_down(beside, stream)?;
        let down = GpuTokenMoeDown {
            share: share.map(|share| share.sum.clone()),
            tokens: self.most,
            activation: self.activation,
            down: &experts.down,
            shared: shared.map(|mlp| &mlp.down),
            h,
            ids,
            weights,
            used,
            residual,
            y: next.x.clone(),
            prepared: next.prepared.output(),
        };
        self.calls.extend(down.calls(target)?);
        Ok(())
    }

    /// Gate and up of chosen experts, whose `ids` are listed where there are several tokens. Those of a shared expert come first where the host
    /// `reads` the others.
    fn gate_up_of_chosen(
        &mut self,
        gate_up: &GpuTokenGateUp<'_>,
        reads: bool,
        ids: &Range,
    ) -> Result<(), GpuError> {
        let target = self.given.target;
        let mut calls = match reads {
            true => {
                let [beside, calls] = gate_up.calls_apart(target)?;
                self.beside_reads(beside);
                calls
            }
            false => gate_up.calls(target)?,
        };
        if let Some(last) = calls.pop_if(|_| self.most > 1) {
            calls.push(last.listing(ids, 1));
        }
        self.calls.extend(calls);
        Ok(())
    }

    /// Gate and up of the shared expert beside the host's reads.
    fn shared_beside_reads<'w>(
        &mut self,
        shared: Option<&'w Mlp<GpuWeight>>,
        stream: &Stream,
    ) -> Result<Option<(&'w Mlp<GpuWeight>, Range)>, GpuError> {
        let beside = self.shared_gate_up(shared, stream)?;
        self.beside_reads(vec![]);
        Ok(beside)
    }

    /// Records what the answer to the last question is not needed for, and the host's reads run beside.
    fn beside_reads(&mut self, calls: Vec<Call>) {
        self.calls.extend(calls);
        if let Some(question) = self.questions.last_mut() {
            question.due = self.calls.len();
        }
    }

    /// The choice of the experts that `gate_up` multiplies, and the copies of those that are missing in the places that it reads. Of `x`, the
    /// stream, the host multiplies its share.
    fn choose_and_fill(
        &mut self,
        gate_up: &GpuTokenGateUp<'_>,
        host: &Mlp<GpuWeight>,
        (rooms, share): (&Rooms, Option<&HostShare>),
        x: &Range,
    ) -> Result<(), GpuError> {
        let config = self.given.experts();
        let used = config.used as u64;
        let one = self.most == 1;
        let fills =
            one.then(|| self.buffer("fills", || Range::words("fills of experts", 2 * used)));
        let share = share.map(|share| Share {
            split: share.split.clone(),
            asked: self.buffer("experts of the host", || {
                Range::words("experts of the host", used)
            }),
        });
        let chosen = GpuExpertSlots {
            gate_up,
            table: rooms.table().filter(|_| one),
            routing: rooms.routing.as_ref().filter(|_| one),
            fills: fills.clone(),
            share: share.as_ref(),
        };
        self.calls.push(chosen.call(self.given.target)?);
        let (_, router) = gate_up.experts.as_ref().expect("it multiplies experts");
        if let Some(Share { asked, .. }) = share {
            let values = [
                (&asked, used),
                (&router.weights, used),
                (x, u64::from(self.given.width())),
            ];
            let tells = values.map(|(range, values)| Range {
                size: 4 * values,
                ..range.clone()
            });
            let question = rooms.ask_for_sum(config, self.calls.len(), tells.to_vec());
            self.questions.push(question);
        }
        let brought = match fills {
            Some(fills) => rooms.fill_of_token(host, config, &fills),
            None => rooms.fill_of_few(host, config, ChosenBy::Ids(router.ids.clone()), self.most),
        };
        brought.record(&mut self.calls, &mut self.questions);
        Ok(())
    }

    /// The shared expert and its hidden values, where it has dispatches of its own.
    fn shared_gate_up<'w>(
        &mut self,
        shared: Option<&'w Mlp<GpuWeight>>,
        stream: &Stream,
    ) -> Result<Option<(&'w Mlp<GpuWeight>, Range)>, GpuError> {
        let Some(mlp) = shared else {
            return Ok(None);
        };
        // Dispatches that wait for the attention alone stand side by side.
        let h = self.values_beside("shared h", mlp.gate.rows);
        self.gate_up(mlp, &stream.values, &h)?;
        Ok(Some((mlp, h)))
    }

    /// The residual stream after the shared expert.
    fn shared_down(
        &mut self,
        shared: Option<(&Mlp<GpuWeight>, Range)>,
        stream: &Stream,
    ) -> Result<Range, GpuError> {
        let Some((mlp, h)) = shared else {
            return Ok(stream.x.clone());
        };
        let after = self.floats_beside("after shared", self.given.width());
        self.record(&Product {
            residual: Some(stream.x.clone()),
            y: Some(after.clone()),
            ..Product::of(&mlp.down, &TokenInput::of(h))
        })?;
        Ok(after)
    }

    /// The experts in tiles of their tokens, then the sum of what they give each token, normed for the next layer.
    fn experts_in_tiles(
        &mut self,
        (moe, rooms): (&Moe<GpuWeight, Range>, Option<&Rooms>),
        stream: &Stream,
        logits: Range,
        next: &Place,
    ) -> Result<Stream, GpuError> {
        let target = self.given.target;
        let config = self.given.experts();
        let experts = rooms.map_or(&moe.experts, |rooms| rooms.read_by(config, self.most));
        let used = config.used as u32;
        let asks = rooms.is_some_and(Rooms::asks_for_experts);
        let shared = moe.shared.as_ref();
        let shared_h = self.shared_gate_up(shared.filter(|_| !asks), stream)?;
        let weights = self.floats("expert weights", used);
        let [by_token, by_slot] = self.choice(moe, logits, &weights)?;
        if let Some(rooms) = rooms {
            let chosen = ChosenBy::Tiles(by_slot.list.clone(), by_slot.places);
            let config = self.given.experts();
            let fills = rooms.fill_of_few(&moe.experts, config, chosen, self.most);
            fills.record(&mut self.calls, &mut self.questions);
        }
        let mut residual = None;
        if asks {
            let h = self.shared_gate_up(shared, stream)?;
            residual = Some(self.shared_down(h, stream)?);
            self.beside_reads(vec![]);
        }
        let h = self.hidden_values(used * experts.gate.rows);
        let gate_up = GpuBatchMatvec {
            up: Some(&experts.up),
            prepared: Some(TokenOutput::of(h.clone())),
            ..self.of_experts(&experts.gate, &stream.values, by_token)
        };
        self.calls.extend(gate_up.calls(target)?);
        let residual = match residual {
            Some(residual) => residual,
            None => self.shared_down(shared_h, stream)?,
        };
        let slots = self.floats("slots", used * experts.down.rows);
        let down = GpuBatchMatvec {
            y: Some(slots.clone()),
            ..self.of_experts(&experts.down, &TokenInput::of(h), by_slot)
        };
        self.calls.extend(down.calls(target)?);
        let values = &next.prepared.values;
        let sum = GpuBatchCombine {
            slots: Some([slots, weights]),
            used,
            x: Some(next.x.clone()),
            ..combine(self.given, &residual, &next.prepared.norm, values)
        };
        self.calls.push(sum.call());
        Ok(Stream {
            x: next.x.clone(),
            values: TokenInput::of(values.clone()),
        })
    }

    /// The product of experts by their tiles, to be completed.
    fn of_experts<'w>(
        &self,
        weight: &'w GpuWeight,
        x: &TokenInput,
        tiles: Tiles,
    ) -> GpuBatchMatvec<'w> {
        let x = Input::Prepared(x.clone());
        GpuBatchMatvec {
            experts: Some(tiles),
            ..GpuBatchMatvec::new(self.given.target, weight, self.most, x)
        }
    }

    /// The chosen experts with their slots in tiles, as gate and up take them, and as down does.
    fn choice(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        logits: Range,
        weights: &Range,
    ) -> Result<[Tiles; 2], GpuError> {
        let (config, machine) = (self.given.experts(), self.given.target.machine);
        let places = batch_experts::places(machine, self.most);
        let words = batch_experts::tiles(self.most, places, config) * TILE_WORDS;
        let tiles = Tiles {
            list: self.buffer("expert tiles", || {
                Range::words("expert tiles", u64::from(words))
            }),
            places,
            experts: config.count as u32,
            used: config.used as u32,
            most: self.most,
            by_token: true,
            counts: None,
        };
        // The first grid is that of gate and up, the second that of down.
        let grids = self.across(moe, &tiles)?.map(|across| [across, 0, 1]);
        let counts = Range::whole(&Buffer::counts("workgroups of experts", &grids));
        let choice = GpuBatchExperts {
            logits,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.most,
            places,
            weights: weights.clone(),
            tiles: tiles.list.clone(),
            counts: counts.clone(),
        };
        self.calls.push(choice.call(machine));
        Ok([true, false].map(|by_token| Tiles {
            by_token,
            counts: Some(Range {
                offset: counts.offset + if by_token { 0 } else { 12 },
                ..counts.clone()
            }),
            ..tiles.clone()
        }))
    }

    /// Workgroups along the rows of gate and up, and of down.
    fn across(&self, moe: &Moe<GpuWeight, Range>, tiles: &Tiles) -> Result<[u32; 2], GpuError> {
        let values = TokenInput::of(Range::words("none", 1));
        let gate = GpuBatchMatvec {
            up: Some(&moe.experts.up),
            prepared: Some(TokenOutput::of(values.values.clone())),
            ..self.of_experts(&moe.experts.gate, &values, tiles.clone())
        };
        let down = self.of_experts(&moe.experts.down, &values, tiles.clone());
        let across = |product: &GpuBatchMatvec<'_>| {
            let geometry = token::geometry(self.given.target, &product.site())?;
            Ok(product.weight.rows.div_ceil(geometry.tile))
        };
        Ok([across(&gate)?, across(&down)?])
    }
}
