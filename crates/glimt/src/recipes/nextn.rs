//! The prediction layer in steps: its rows for tokens that are known, drafts one behind the other, and its rows of the cache for prompts.

use super::few::{self, BeforeNorm, Few, Place, Product};
use super::prompt::Prompt;
use super::{Attention, BatchSizes, Body, Context, Given, GpuNextn, Room, RowsBuffer};
use crate::gpu::buffer::Range;
use crate::gpu::call::Call;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::embed;
use crate::kernels::keep_states::{self, States};
use crate::kernels::nextn_input::{GpuNextnInput, StatesFrom};
use crate::kernels::sequences::Sequences;
use crate::kernels::token::TokenInput;
use crate::quant::activation::Activation;

/// The most drafts of the layer in a step: each further one is accepted less often.
pub const MOST_PREDICTED: u32 = 8;

/// The prediction layer with the buffers of its steps.
pub struct Predicting {
    /// The layer as the last block of a body, whose embedding, last norm and head are its own.
    body: Body,
    layer: GpuNextn,
    /// The weight of the norm that ends the states of the model.
    output_norm: Range,
    /// The states of the model at the last positions.
    states: States,
    /// For each draft of a step the places of its rows, of which the first also has those of earlier tokens.
    drafts: Vec<Draft>,
    /// The input of `eh_proj` for steps of many tokens, and the same as products take it.
    paired: RowsBuffer,
}

/// The buffers of a draft.
struct Draft {
    /// The context of rows that have a table, which is their own.
    context: Context,
    /// The context of a row alone.
    alone: Context,
    /// The stream behind the block, before the norm, (rows, d) f32.
    stream: Range,
    /// The same, prepared for the head.
    hidden: BeforeNorm,
}

impl Predicting {
    /// The prediction layer for steps of these sizes; `None` where there is none, or steps have no drafts. `context` then keeps the states that it
    /// takes. `room` is that of a step of several tokens by the kernels of one.
    pub(super) fn new(
        target: &Target,
        body: &Body,
        context: &mut Context,
        sizes: BatchSizes,
        room: Room,
    ) -> Option<Self> {
        let layer = body.nextn.clone().filter(|_| sizes.drafts > 0)?;
        let width = body.config.embedding_length as u32;
        let states = States::new(sizes.sequences, sizes.n_ctx, width);
        let output_norm = body.output_norm.clone();
        let mut body = Body {
            output_norm: layer.shared_head_norm.clone(),
            nextn: None,
            ..body.clone()
        };
        body.layers.push(layer.block.clone());
        body.token_embd = layer.embed_tokens.clone().unwrap_or(body.token_embd);
        body.output = layer.shared_head_head.clone().unwrap_or(body.output);
        let draft = |_| {
            let tokens = room.tokens;
            let context = context.with_table(room);
            Draft {
                alone: context.alone(),
                context,
                stream: Range::floats("predicted stream", u64::from(tokens * width)),
                hidden: few::hidden(target, &body, tokens),
            }
        };
        let drafts = (0..sizes.drafts.min(MOST_PREDICTED)).map(draft).collect();
        context.kept = Some(states.clone());
        let (tokens, cols) = (sizes.of_several().max(sizes.chunk), u64::from(2 * width));
        Some(Self {
            drafts,
            paired: RowsBuffer::new("paired", u64::from(tokens), cols, 1),
            body,
            layer,
            output_norm,
            states,
        })
    }

    /// The block's number.
    fn number(&self) -> usize {
        self.body.layers.len() - 1
    }

    /// The input of the recipe for the rows of a draft, of which there are up to `most`.
    fn given<'a>(&'a self, target: &'a Target, number: usize, most: u32) -> Given<'a> {
        let draft = &self.drafts[number];
        Given {
            target,
            body: &self.body,
            context: match most {
                1 => &draft.alone,
                _ => &draft.context,
            },
        }
    }

    /// The input of `eh_proj`, to be completed.
    fn pair<'a>(
        &self,
        given: Given<'_>,
        embedding: &Range,
        from: StatesFrom<'a>,
    ) -> GpuNextnInput<'a> {
        let layer = &self.layer;
        let state_norm = match from {
            StatesFrom::Own(_) => &layer.shared_head_norm,
            _ => &self.output_norm,
        };
        let norms = [&layer.enorm, &layer.hnorm, state_norm];
        GpuNextnInput {
            embedding: embedding.clone(),
            states: from,
            norms: norms.map(Range::clone),
            eps: given.eps(),
            prepared: self.paired.floats.clone(),
            activation: Activation::Floats,
            width: given.width(),
        }
    }

    /// The step of the rows of draft `number`, up to `most`: from ids to the stream behind the block. The rows of draft 0 take the states of the
    /// model, and each of a further one that which the same row of the draft before has left.
    fn step(
        &self,
        target: &Target,
        attention: &dyn Attention,
        number: usize,
        most: u32,
    ) -> Result<Step, GpuError> {
        attention.check(target)?;
        let given = self.given(target, number, most);
        let (sequences, draft) = (given.context.sequences.as_ref(), &self.drafts[number]);
        let mut step = Few::new(given, most, true);
        let embedding = step.floats("embedding", given.width());
        let (table, history) = (&self.body.token_embd, &given.context.history);
        step.calls
            .extend(embed::calls(sequences, table, history, &embedding));
        let from = match number.checked_sub(1) {
            None => StatesFrom::Kept(sequences, &self.states),
            Some(before) => StatesFrom::Own(self.drafts[before].stream.clone()),
        };
        let paired = step.values("paired", 2 * given.width());
        let pair = GpuNextnInput {
            prepared: paired.clone(),
            activation: step.activation,
            ..self.pair(given, &embedding, from)
        };
        step.calls.push(pair.call());
        let i = self.number();
        let block = &self.body.layers[i];
        let names = ["projected", "prepared projected", "projected squares"];
        let place = step.place(names, &block.attn_norm);
        step.record(&Product {
            y: Some(place.x.clone()),
            prepared: Some(place.prepared.output()),
            ..Product::of(&self.layer.eh_proj, &TokenInput::of(paired))
        })?;
        let stream = place.stream(given.eps());
        let attended = attention.few(&mut step, i, &stream.values)?;
        let (after, logits) = step.after_attention(block, attended, &stream)?;
        let next = Place {
            x: draft.stream.clone(),
            prepared: draft.hidden.clone(),
        };
        step.feed_forward(i, &after, logits, &next)?;
        Ok(step.done())
    }

    /// Records the rows of the layer's cache for the tokens of a step, and nothing else. Their states are in the chunk, and their embeddings too if the
    /// step is one of many tokens.
    pub(super) fn rows_of(&self, step: &mut Prompt<'_>, attention: &dyn Attention, is_many: bool) {
        let sequences = step.given.context.sequences.as_ref();
        let states = step.chunk.after_ffn.clone();
        let from = StatesFrom::Before(sequences, &self.states, states);
        self.rows(step, attention, (from, is_many));
    }

    /// Records the rows of the layer's cache for tokens that earlier steps have computed, whose states are kept.
    pub(super) fn rows_of_kept(&self, step: &mut Prompt<'_>, attention: &dyn Attention) {
        let sequences = step.given.context.sequences.as_ref();
        let from = StatesFrom::Kept(sequences, &self.states);
        self.rows(step, attention, (from, false));
    }

    /// Records the rows of the layer's cache for tokens with these states, and nothing else.
    fn rows(
        &self,
        step: &mut Prompt<'_>,
        attention: &dyn Attention,
        (from, is_embedded): (StatesFrom<'_>, bool),
    ) {
        let (chunk, most) = (step.chunk, step.max_tokens);
        let given = Given {
            body: &self.body,
            ..step.given
        };
        let mut layer = Prompt::new(given, chunk, most);
        let sequences = given.context.sequences.as_ref();
        // The embedding is still there, unless the layer has another.
        if self.layer.embed_tokens.is_some() || !is_embedded {
            let (table, history) = (&self.body.token_embd, &given.context.history);
            let embed = embed::calls(sequences, table, history, &chunk.embedding);
            layer.calls.extend(embed);
        }
        let pair = self.pair(given, &chunk.embedding, from);
        layer.calls.push(pair.call());
        let (eh_proj, x) = (&self.layer.eh_proj, &chunk.after_attention);
        let rows = layer.plain_input(&self.paired, &self.paired.floats, eh_proj.cols);
        layer.product(x, eh_proj, &rows, 0, None);
        let i = self.number();
        let rows = layer.before_attention(&self.body.layers[i], x);
        attention.rows(&mut layer, i, &rows);
        step.calls.extend(layer.calls);
    }

    /// The most drafts of a step.
    pub(super) fn most(&self) -> usize {
        self.drafts.len()
    }

    /// The tables that tell where the up to `most` rows of a draft stand.
    pub(super) fn sequences(&self, number: usize, most: u32) -> Option<&Sequences> {
        let draft = self.drafts.get(number)?;
        let context = match most {
            1 => &draft.alone,
            _ => &draft.context,
        };
        context.sequences.as_ref()
    }

    /// The step of up to `most` rows of draft `number`, and the head of the first `drawn` of them, which leaves `logits` (drawn, vocab).
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    pub(super) fn draft(
        &self,
        target: &Target,
        attention: &dyn Attention,
        (number, [most, drawn]): (usize, [u32; 2]),
        logits: &Range,
    ) -> Result<[Step; 2], GpuError> {
        let step = self.step(target, attention, number, most)?;
        let given = self.given(target, number, most);
        let x = self.drafts[number].hidden.input(given.eps());
        let head = few::head(given, (drawn, true), &x, logits)?;
        Ok([step, head])
    }
}

/// Records the call that keeps the rows of `x`, the stream behind the last layer, of a step of up to `most` tokens, where a prediction layer goes on
/// from them.
pub(super) fn keep(given: Given<'_>, calls: &mut Vec<Call>, x: &Range, most: u32) {
    let context = given.context;
    let Some(states) = &context.kept else {
        return;
    };
    calls.push(keep_states::call(
        context.sequences.as_ref(),
        x,
        states,
        most,
    ));
}
