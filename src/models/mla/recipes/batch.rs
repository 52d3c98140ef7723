//! The layer recipe of a batch, in the tiers with subgroups: a few tokens, each of which may belong to another sequence. As for one token,
//! every product leaves its output prepared for the next. But no work is repeated to save a dispatch, since all of it is done for each token.

use super::Given;
use super::context::TokenLayer;
use crate::gpu::buffer::{Buffer, Range};
use crate::gpu::call::{Call, Sublayer, belong};
use crate::gpu::memory::GpuWeight;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::attention_merge::Output;
use crate::kernels::batch_combine::GpuBatchCombine;
use crate::kernels::batch_matvec::{self, GpuBatchMatvec, Input};
use crate::kernels::embed;
use crate::kernels::expert_rows::{GpuExpertRows, TileList, tile_count};
use crate::kernels::gemm::GpuExperts;
use crate::kernels::rope_cache::{self, Queries};
use crate::kernels::router::{self, GpuRouter};
use crate::kernels::token::{self, Divided, TokenInput, TokenOutput, unsupported};
use crate::model::{Ffn, Mlp, Moe};
use crate::models::mla::{Config, GpuLayer, Query};
use crate::quant::activation::Activation;

/// What is given to a sublayer for each token.
#[derive(Clone)]
struct Stream {
    /// (tokens, d) f32.
    x: Range,
    /// x times the weight of the norm that comes next, prepared, with its sums of squares; or already normed.
    values: TokenInput,
}

/// The buffers of a layer, for up to so many tokens: all f32 or prepared, a row for each token unless they say otherwise.
#[derive(Clone)]
struct Buffers {
    q_a: TokenOutput,
    q: Range,
    prepared_q: Range,
    kv_a: Range,
    q_lat: Range,
    q_pe: Range,
    latents: Range,
    values: Range,
    after_attention: Range,
    ffn_values: [Range; 2],
    logits: Range,
    ids: Range,
    weights: Range,
    slots: Range,
    tiles: Range,
    h: Range,
    shared_h: Range,
    slot_sums: Range,
    after_shared: Range,
    after: Range,
    next_values: [Range; 2],
}

impl Buffers {
    fn new(config: &Config, activation: Activation, tokens: u32) -> Self {
        let dims = config.dims();
        let n = u64::from(tokens);
        let floats = |name, width: usize| Range::floats(name, n * width as u64);
        let words = |name, width: usize| Range::words(name, n * width as u64);
        let values = |name, width: usize| Range::prepared(name, activation, tokens * width as u32);
        let normed = |name, width| [values(name, width), floats("squares", width.div_ceil(16))];
        let d = config.embedding_length;
        let experts = config.experts.as_ref();
        let [count, used] = experts.map_or([0, 0], |e| [e.count, e.used]);
        let ff = experts.map_or(0, |e| e.feed_forward_length);
        let shared = experts.map_or(0, |e| e.shared_count) * ff;
        let dense = config.feed_forward_length;
        let q_lora = config.q_lora_rank.unwrap_or(0);
        let heads = dims.heads;
        let [q_a, q_a_squares] = normed("prepared q_a", q_lora);
        // The norm's weight is the layer's.
        let q_a = TokenOutput {
            values: q_a,
            norm: Some((q_a_squares.clone(), q_a_squares)),
        };
        let least_height = height(1);
        let tiles = match count {
            0 => 0,
            _ => tile_count(tokens, used as u32, least_height, count as u32),
        };
        Self {
            q_a,
            q: floats("q", heads * dims.head()),
            prepared_q: values("prepared q", heads * dims.head()),
            kv_a: floats("kv_a", dims.cache_row()),
            q_lat: floats("q_lat", heads * dims.kv_lora),
            q_pe: floats("q_pe", heads * dims.rope),
            latents: values("latents", heads * dims.kv_lora),
            values: values("values", heads * config.v_head_dim),
            after_attention: floats("after attention", d),
            ffn_values: normed("prepared stream", d),
            logits: floats("router logits", count),
            ids: words("expert ids", used),
            weights: floats("expert weights", used),
            slots: words("expert slots", used),
            tiles: Range::words("expert tiles", u64::from(tiles) * 4),
            h: values("h", dense.max(used * ff)),
            shared_h: values("shared h", shared),
            slot_sums: floats("slots", used * d),
            after_shared: floats("after shared", d),
            after: floats("after ffn", d),
            next_values: normed("prepared stream", d),
        }
    }
}

/// Tokens of an expert that a workgroup takes at once, in steps of up to so many tokens.
fn height(tokens: u32) -> u32 {
    if tokens <= 8 { 4 } else { 8 }
}

/// In steps of up to so many tokens every layer has buffers of its own, so that dispatches wait only for what they read. More tokens fill the
/// device anyway, and their buffers are larger.
const OWN_BUFFERS: u32 = 8;

/// Where a step leaves its hidden states: the last norm is done, or its sums of squares are beside them.
#[derive(Clone)]
pub struct Hidden {
    values: Range,
    squares: Range,
    /// Whether the sums of squares are still to be used.
    normed: bool,
}

impl Hidden {
    /// For steps of up to `tokens` tokens. The last layer says whether it norms what it leaves.
    pub fn new(given: Given<'_>, activation: Activation, tokens: u32) -> Self {
        let d = given.config().embedding_length as u32;
        let last = given.weights.layers.last();
        Self {
            values: Range::prepared("hidden states", activation, tokens * d),
            squares: Range::floats("squares", u64::from(tokens * d / 16)),
            normed: last.is_none_or(|layer| matches!(layer.ffn, Ffn::Moe(_))),
        }
    }
}

/// The step over up to `most` tokens, which leaves their hidden states.
///
/// # Errors
/// [`GpuError::TierUnsupported`] where the tier has no kernel for a size.
pub fn step(
    given: Given<'_>,
    activation: Activation,
    most: u32,
    hidden: &Hidden,
) -> Result<Step, GpuError> {
    let dims = given.dims();
    let d = given.config().embedding_length;
    for (what, width) in [
        ("query heads", dims.head()),
        ("latents", dims.kv_lora),
        ("hidden states", d),
    ] {
        if !width.is_multiple_of(32) {
            let missing = format!("a kernel for {what} of {width}, no multiple of 32");
            return Err(unsupported(given.target, &missing));
        }
    }
    let recipe = Recipe {
        given,
        activation,
        most,
        calls: vec![],
    };
    Ok(Step::of(
        super::most(given.context, most),
        recipe.step(hidden)?,
    ))
}

/// From the hidden states of up to `most` tokens to their logits (tokens, vocab).
///
/// # Errors
/// As [`step`].
pub fn head(
    given: Given<'_>,
    activation: Activation,
    most: u32,
    hidden: &Hidden,
    logits: &Range,
) -> Result<Step, GpuError> {
    let input = TokenInput {
        values: hidden.values.clone(),
        rms: (!hidden.normed).then(|| (hidden.squares.clone(), given.config().rms_eps)),
    };
    let product = GpuBatchMatvec {
        y: Some(logits.clone()),
        ..GpuBatchMatvec::new(
            given.target.machine,
            &given.weights.output,
            activation,
            most,
            Input::Prepared(input),
        )
    };
    Ok(Step::of(
        super::most(given.context, most),
        product.calls(given.target)?,
    ))
}

/// From the first rows of hidden states in f32, (tokens, d) before the last norm, to the logits (tokens, vocab) of up to `most` tokens.
/// They become the `hidden` states that a step of few tokens leaves.
///
/// # Errors
/// As [`step`].
pub fn head_of_floats(
    given: Given<'_>,
    activation: Activation,
    most: u32,
    [floats, logits]: [&Range; 2],
    hidden: &Hidden,
) -> Result<Step, GpuError> {
    let norm = GpuBatchCombine {
        slots: None,
        used: 0,
        residual: floats.clone(),
        x: None,
        norm: (given.weights.output_norm.clone(), given.config().rms_eps),
        values: hidden.values.clone(),
        activation,
        rows: given.config().embedding_length as u32,
    };
    let hidden = Hidden {
        normed: true,
        ..hidden.clone()
    };
    let head = head(given, activation, most, &hidden, logits)?;
    Ok(Step::of(head.most, [norm.call()]).then(&head.calls))
}

/// Builds the dispatches of a step of up to `most` tokens.
struct Recipe<'a> {
    given: Given<'a>,
    activation: Activation,
    most: u32,
    calls: Vec<Call>,
}

impl Recipe<'_> {
    fn target(&self) -> &Target {
        self.given.target
    }

    fn eps(&self) -> f32 {
        self.given.config().rms_eps
    }

    /// The dispatches from token ids to hidden states.
    fn step(mut self, hidden: &Hidden) -> Result<Vec<Call>, GpuError> {
        let Given {
            weights, context, ..
        } = self.given;
        let config = self.given.config();
        let new = || Buffers::new(config, self.activation, self.most);
        let shared = new();
        let own = self.most <= OWN_BUFFERS;
        let norms = weights.layers.iter().map(|layer| &layer.attn_norm);
        let norms: Vec<&Range> = norms.chain([&weights.output_norm]).collect();
        let x = Range::floats(
            "embedding",
            u64::from(self.most) * config.embedding_length as u64,
        );
        self.calls.extend(embed::calls_of(
            context.sequences.as_ref(),
            &weights.token_embd,
            &context.history,
            &x,
        ));
        let values = Range::prepared(
            "embedding values",
            self.activation,
            self.most * config.embedding_length as u32,
        );
        self.combine(None, &x, None, norms[0], &values);
        let mut stream = Stream {
            x,
            values: TokenInput::of(values),
        };
        let last = weights.layers.len() - 1;
        for (i, of) in self.given.layers(self.most).enumerate() {
            let mut buffers = match own {
                true => Buffers::new(config, self.activation, self.most),
                false => shared.clone(),
            };
            if i == last {
                buffers.next_values = [hidden.values.clone(), hidden.squares.clone()];
            }
            let begin = self.calls.len();
            let after = self.attention(of, &stream, &buffers)?;
            let middle = self.calls.len();
            stream = self.feed_forward(of.layer, &after, norms[i + 1], &buffers)?;
            belong(&mut self.calls[begin..middle], Sublayer::Attention(i));
            belong(&mut self.calls[middle..], Sublayer::FeedForward(i));
        }
        Ok(self.calls)
    }

    /// The product of `weight` with `x`, to be completed.
    fn product<'w>(&self, weight: &'w GpuWeight, x: &TokenInput) -> GpuBatchMatvec<'w> {
        let x = Input::Prepared(x.clone());
        let machine = self.target().machine;
        GpuBatchMatvec::new(machine, weight, self.activation, self.most, x)
    }

    fn record(&mut self, product: &GpuBatchMatvec<'_>) -> Result<(), GpuError> {
        let calls = product.calls(self.target())?;
        self.calls.extend(calls);
        Ok(())
    }

    /// The residual and what the experts gave, normed and prepared.
    fn combine(
        &mut self,
        slots: Option<(&Buffers, u32)>,
        residual: &Range,
        x: Option<&Range>,
        norm: &Range,
        values: &Range,
    ) {
        let combine = GpuBatchCombine {
            slots: slots.map(|(b, _)| [b.slot_sums.clone(), b.weights.clone()]),
            used: slots.map_or(0, |(_, used)| used),
            residual: residual.clone(),
            x: x.cloned(),
            norm: (norm.clone(), self.eps()),
            values: values.clone(),
            activation: self.activation,
            rows: self.given.config().embedding_length as u32,
        };
        self.calls.push(combine.call());
    }

    /// The query heads, in f32 and prepared, and `kv_a`.
    fn query(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<TokenInput, GpuError> {
        let heads = |product: GpuBatchMatvec<'_>, recipe: &mut Self| {
            recipe.record(&GpuBatchMatvec {
                y: Some(b.q.clone()),
                prepared: Some(TokenOutput {
                    values: b.prepared_q.clone(),
                    norm: None,
                }),
                ..product
            })
        };
        let kv_a = GpuBatchMatvec {
            y: Some(b.kv_a.clone()),
            ..self.product(&layer.attn_kv_a_mqa, &stream.values)
        };
        match &layer.q {
            Query::Full { attn_q } => {
                heads(self.product(attn_q, &stream.values), self)?;
                self.record(&kv_a)?;
            }
            Query::Lora {
                attn_q_a,
                attn_q_a_norm,
                attn_q_b,
            } => {
                let squares = b.q_a.norm.as_ref().map(|(_, squares)| squares.clone());
                let squares = squares.expect("a norm follows");
                self.record(&GpuBatchMatvec {
                    prepared: Some(TokenOutput {
                        values: b.q_a.values.clone(),
                        norm: Some((attn_q_a_norm.clone(), squares.clone())),
                    }),
                    ..self.product(attn_q_a, &stream.values)
                })?;
                self.record(&kv_a)?;
                let q_a = TokenInput {
                    values: b.q_a.values.clone(),
                    rms: Some((squares, self.eps())),
                };
                heads(self.product(attn_q_b, &q_a), self)?;
            }
        }
        Ok(TokenInput::of(b.prepared_q.clone()))
    }

    /// The stream after the attention, prepared for the feed-forward network.
    fn attention(
        &mut self,
        of: TokenLayer<'_>,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<Stream, GpuError> {
        let (layer, dims) = (of.layer, self.given.dims());
        let units = |n: usize| (n / 32) as u32;
        let q = self.query(layer, stream, b)?;
        self.record(&GpuBatchMatvec {
            x_stride: units(dims.heads * dims.head()),
            x_group: units(dims.head()),
            y: Some(b.q_lat.clone()),
            ..self.product(&layer.attn_k_b, &q)
        })?;
        let rows = self.given.cache_rows(of, b.kv_a.clone());
        self.calls.push(rope_cache::call(&rope_cache::GpuRopeCache {
            queries: Some(Queries {
                q: b.q.clone(),
                q_pe: b.q_pe.clone(),
            }),
            ..rows
        }));
        let form = self.given.context.forms.token;
        let queries = [b.q_lat.clone(), b.q_pe.clone()];
        let attention = self.given.attention(form, queries, of.cache);
        self.calls.extend(attention.calls());
        let output = match self.activation {
            Activation::Bytes => Output::Bytes,
            Activation::Halves { .. } => Output::Halves,
            Activation::Floats => Output::Floats,
        };
        let merge = self.given.merge(&b.latents, output);
        self.calls.push(merge);
        self.record(&GpuBatchMatvec {
            x_stride: units(dims.heads * dims.kv_lora),
            x_group: units(dims.kv_lora),
            prepared: Some(TokenOutput {
                values: b.values.clone(),
                norm: None,
            }),
            ..self.product(&layer.attn_v_b, &TokenInput::of(b.latents.clone()))
        })?;
        let values = TokenInput::of(b.values.clone());
        let [prepared, squares] = &b.ffn_values;
        self.record(&GpuBatchMatvec {
            residual: Some(stream.x.clone()),
            y: Some(b.after_attention.clone()),
            prepared: Some(TokenOutput {
                values: prepared.clone(),
                norm: Some((layer.ffn_norm.clone(), squares.clone())),
            }),
            ..self.product(&layer.attn_output, &values)
        })?;
        Ok(Stream {
            x: b.after_attention.clone(),
            values: TokenInput {
                values: prepared.clone(),
                rms: Some((squares.clone(), self.eps())),
            },
        })
    }

    /// silu(gate) * up of a dense block or of the shared expert.
    fn gate_up(&mut self, mlp: &Mlp<GpuWeight>, x: &TokenInput, h: &Range) -> Result<(), GpuError> {
        self.record(&GpuBatchMatvec {
            up: Some(&mlp.up),
            prepared: Some(TokenOutput {
                values: h.clone(),
                norm: None,
            }),
            ..self.product(&mlp.gate, x)
        })
    }

    fn feed_forward(
        &mut self,
        layer: &GpuLayer,
        stream: &Stream,
        next: &Range,
        b: &Buffers,
    ) -> Result<Stream, GpuError> {
        let [values, squares] = &b.next_values;
        match &layer.ffn {
            Ffn::Dense(mlp) => {
                self.gate_up(mlp, &stream.values, &b.h)?;
                self.record(&GpuBatchMatvec {
                    residual: Some(stream.x.clone()),
                    y: Some(b.after.clone()),
                    prepared: Some(TokenOutput {
                        values: values.clone(),
                        norm: Some((next.clone(), squares.clone())),
                    }),
                    ..self.product(&mlp.down, &TokenInput::of(b.h.clone()))
                })?;
                Ok(Stream {
                    x: b.after.clone(),
                    values: TokenInput {
                        values: values.clone(),
                        rms: Some((squares.clone(), self.eps())),
                    },
                })
            }
            Ffn::Moe(moe) => {
                self.mixture(moe, &layer.ffn_norm, stream, next, b)?;
                Ok(Stream {
                    x: b.after.clone(),
                    values: TokenInput::of(values.clone()),
                })
            }
        }
    }

    fn mixture(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        norm: &Range,
        stream: &Stream,
        next: &Range,
        b: &Buffers,
    ) -> Result<(), GpuError> {
        let (experts, shared) = (&moe.experts, moe.shared.as_ref());
        let used = self.given.experts().used as u32;
        // What does not wait for each other stands together: the router beside gate and up of the shared expert.
        self.router_logits(moe, norm, stream, b)?;
        if let Some(mlp) = shared {
            self.gate_up(mlp, &stream.values, &b.shared_h)?;
        }
        let gather = self.choice(moe, b)?;
        self.record(&GpuBatchMatvec {
            up: Some(&experts.up),
            experts: Some(gather.clone()),
            prepared: Some(TokenOutput {
                values: b.h.clone(),
                norm: None,
            }),
            ..self.product(&experts.gate, &stream.values)
        })?;
        let residual = match shared {
            Some(mlp) => {
                self.record(&GpuBatchMatvec {
                    residual: Some(stream.x.clone()),
                    y: Some(b.after_shared.clone()),
                    ..self.product(&mlp.down, &TokenInput::of(b.shared_h.clone()))
                })?;
                &b.after_shared
            }
            None => &stream.x,
        };
        self.record(&GpuBatchMatvec {
            experts: Some(GpuExperts {
                gather: false,
                ..gather
            }),
            y: Some(b.slot_sums.clone()),
            ..self.product(&experts.down, &TokenInput::of(b.h.clone()))
        })?;
        let [values, _] = &b.next_values;
        self.combine(Some((b, used)), residual, Some(&b.after), next, values);
        Ok(())
    }

    /// The experts' logits, in f32: rounding should not choose experts.
    fn router_logits(
        &mut self,
        moe: &Moe<GpuWeight, Range>,
        norm: &Range,
        stream: &Stream,
        b: &Buffers,
    ) -> Result<(), GpuError> {
        let rms = stream.values.rms.as_ref();
        let (squares, eps) = rms.expect("the attention leaves sums of squares").clone();
        let x = Input::Stream(stream.x.clone(), norm.clone(), squares, eps);
        self.record(&GpuBatchMatvec {
            y: Some(b.logits.clone()),
            ..GpuBatchMatvec::new(
                self.target().machine,
                &moe.ffn_gate_inp,
                self.activation,
                self.most,
                x,
            )
        })
    }

    /// The chosen experts with their tokens in tiles, as gate and up take them.
    fn choice(&mut self, moe: &Moe<GpuWeight, Range>, b: &Buffers) -> Result<GpuExperts, GpuError> {
        let config = self.given.experts();
        let (used, count) = (config.used as u32, config.count as u32);
        self.calls.push(router::call(&GpuRouter {
            logits: b.logits.clone(),
            partial_sums: 1,
            bias: moe.exp_probs_b.clone(),
            experts: config,
            max_tokens: self.most,
            ids: b.ids.clone(),
            weights: b.weights.clone(),
        }));
        let height = height(self.most);
        let mut gather = GpuExperts {
            tiles: b.tiles.clone(),
            slots: b.slots.clone(),
            used,
            height,
            gather: true,
            counts: None,
            either: false,
        };
        let across = self.across(moe, &gather)?;
        let grids = batch_matvec::workgroups(across);
        let counts = Range::whole(&Buffer::counts("workgroups of experts", &grids));
        let list = GpuExpertRows {
            ids: b.ids.clone(),
            experts: count,
            used,
            slots: b.slots.clone(),
            lists: vec![TileList {
                height,
                tiles: b.tiles.clone(),
            }],
            counts: counts.clone(),
        };
        self.calls.push(list.call());
        gather.counts = Some(counts);
        Ok(gather)
    }

    /// Workgroups along the rows of gate and up, and of down.
    fn across(
        &self,
        moe: &Moe<GpuWeight, Range>,
        gather: &GpuExperts,
    ) -> Result<[u32; 2], GpuError> {
        let values = TokenInput::of(Range::words("none", 1));
        let gate = GpuBatchMatvec {
            up: Some(&moe.experts.up),
            experts: Some(gather.clone()),
            prepared: Some(TokenOutput {
                values: values.values.clone(),
                norm: None,
            }),
            ..self.product(&moe.experts.gate, &values)
        };
        let down = GpuBatchMatvec {
            experts: Some(gather.clone()),
            ..self.product(&moe.experts.down, &values)
        };
        let across = |product: &GpuBatchMatvec<'_>| {
            let geometry = token::geometry(self.target(), &product.site())?;
            Ok(product.weight.rows.div_ceil(geometry.tile))
        };
        Ok([across(&gate)?, across(&down)?])
    }
}
