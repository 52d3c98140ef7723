//! The steps of one sequence or of several, with the buffers that they share.

use super::few::{self, BeforeNorm, Few};
use super::nextn::{self, Predicting};
use super::prompt::Prompt;
use super::{
    Attention, AttentionWeights, BatchSizes, Body, Chunk, ChunkSize, Context, FEW, Given, Room,
    Rooms, frame, prompt,
};
use crate::gpu::buffer::Range;
use crate::gpu::call::State;
use crate::gpu::machine::Machine;
use crate::gpu::{GpuError, Step, Target};
use crate::kernels::attention::{Cut, Seen};
use crate::kernels::gemm::Form;
use crate::kernels::sequences::Sequences;
use crate::kernels::token::TokenInput;
use crate::model::Ffn;
use std::sync::{Arc, OnceLock};

/// The steps of one sequence or of several, for any device that takes their kernels, and the buffers that they share.
pub struct Steps {
    pub(crate) body: Body,
    pub(crate) attention: Arc<dyn Attention>,
    /// The context of steps whose tokens have a table of their places.
    pub(crate) context: Context,
    /// The context of steps whose tokens belong to one sequence and follow each other.
    pub(crate) alone: Context,
    /// The output of the last layer of few tokens, prepared.
    hidden: BeforeNorm,
    /// The output of the last layer of one token, in the tiers with subgroups.
    last: BeforeNorm,
    /// The buffers of other steps, whose output is in f32. A device makes them if it records such a step.
    chunk: Chunk,
    sizes: BatchSizes,
    /// The most tokens of a step of several by the kernels of a decoded token.
    as_one: u32,
    /// The most tokens of a step of several whose experts surely have slots; 0 if there is none.
    with_slots: u32,
    /// The buffers of such steps, which all of them share.
    of_layers: OnceLock<Vec<Range>>,
    /// The prediction layer, if it makes drafts.
    pub(super) predicting: Option<Predicting>,
}

impl Steps {
    /// The steps of these sizes.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] for a cache that no binding has room for.
    pub(super) fn new(
        target: &Target,
        body: &Body,
        products: Form,
        attention: &dyn AttentionWeights,
        sizes: BatchSizes,
    ) -> Result<Self, GpuError> {
        let layers = body.config.block_count + usize::from(body.nextn.is_some());
        let rows = [layers, attention.cache_row()];
        let as_one = match body.is_one_by_one {
            true => 0,
            false => as_one(target, sizes),
        };
        let slices = as_one * attention.most_slices(target, sizes.n_ctx);
        let room = Room {
            tokens: sizes.of_several().max(as_one),
            slices: sizes.slices().max(slices as usize),
        };
        let mut context = Context::new(target, rows, products, sizes, room)?;
        let slices = slices as usize;
        let tokens = as_one;
        let predicting =
            Predicting::new(target, body, &mut context, sizes, Room { tokens, slices });
        let size = ChunkSize {
            machine: target.machine,
            products,
            tokens: sizes.of_several().max(sizes.chunk),
        };
        let few = target.machine.tuned.few_of_batch.min(sizes.tokens);
        let with_slots = most_with_slots(body);
        let kept = with_slots <= as_one || sizes.class(with_slots) <= few;
        let hidden = |tokens| few::hidden(target, body, tokens);
        Ok(Self {
            hidden: hidden(few.max(sizes.most_drawn()).max(as_one)),
            last: hidden(1),
            chunk: Chunk::new(size, &body.config, attention.values()),
            attention: attention.sized(target, size, sizes),
            alone: context.alone(),
            context,
            body: body.clone(),
            sizes,
            as_one,
            with_slots: if kept { with_slots } else { 0 },
            of_layers: OnceLock::new(),
            predicting,
        })
    }

    /// The most tokens of a step of several that takes the kernels of a decoded token, and so leaves for each what it has alone, to the bit
    /// ([`several_equal_one`](Self::several_equal_one)); 0 where there is none.
    pub fn as_one(&self) -> u32 {
        self.as_one
    }

    /// Whether there are steps of one token alone.
    pub fn is_one_by_one(&self) -> bool {
        self.body.is_one_by_one
    }

    /// Whether each token of such a step gets what it gets alone, to the bit. With serial passes a token alone takes other kernels, which add up in
    /// another order.
    pub fn several_equal_one(&self, target: &Target) -> bool {
        self.as_one > 1 && !target.machine.serial_passes
    }

    /// The most tokens of a step that suits `tokens`, where `class` suits all numbers: fewer if the experts of so many surely have slots. Its kernels
    /// are those of the class, so that its results are, too.
    pub fn class_with_slots(&self, tokens: u32, class: u32) -> u32 {
        let most = self.most_with_slots();
        match (tokens..class).contains(&most) {
            true => most,
            false => class,
        }
    }

    /// The most tokens of a step of several whose experts surely have slots; 0 if there is none.
    pub fn most_with_slots(&self) -> u32 {
        self.with_slots
    }

    /// The input of recipes for steps of up to `most` tokens of any sequences, or for one token or others of one sequence.
    fn given<'a>(&'a self, target: &'a Target, most: u32) -> Given<'a> {
        Given {
            target,
            body: &self.body,
            context: match most {
                1 => &self.alone,
                _ => &self.context,
            },
        }
    }

    /// The tables that tell where tokens stand, which the host writes before a step of several. `None` if there are no such steps.
    pub fn sequences(&self) -> Option<&Sequences> {
        self.context.sequences.as_ref()
    }

    /// What tells a step of up to `most` tokens where these stand. `None` for a token of a single sequence without pages.
    pub fn sequences_of(&self, most: u32) -> Option<&Sequences> {
        match most {
            1 => self.alone.sequences.as_ref(),
            _ => self.context.sequences.as_ref(),
        }
    }

    /// Token ids, (sequences, n_ctx + 1) u32, which the host writes before a step reads them.
    pub fn history(&self) -> &Range {
        &self.context.history
    }

    /// The cache of each layer, the same number of bytes for each row.
    pub fn cache(&self) -> &[Range] {
        &self.context.cache
    }

    /// The step from up to `most` tokens of any sequences to their hidden states. A
    /// step of one token reads where it stands from the words of its replay ([`State`]), all others from the table.
    ///
    /// # Errors
    /// [`GpuError::TierUnsupported`] where a kernel does not take the shapes.
    pub fn step(&self, target: &Target, most: u32) -> Result<Step, GpuError> {
        let given = self.given(target, most);
        let attention = &*self.attention;
        let hidden = self.hidden_of(target, most);
        if most > 1 && self.is_as_one(target, most) {
            return self.few_as_one(target, most);
        }
        if !is_few(target, most) {
            return frame::prompt(given, attention, (&self.chunk, None), 1, most);
        }
        let class = match most == self.with_slots {
            true => self.sizes.class(most).max(most),
            false => most,
        };
        let step = Few::new(given, class, self.is_as_one(target, most)).of_up_to(most);
        let is_continued = self.predicting.is_some() && most > 1;
        let floats = is_continued.then_some(self.hidden());
        Ok(frame::few(step, attention, hidden, floats)?.done())
    }

    /// The step that leaves for the prediction layer what it needs of a step of up to `most` tokens of any sequences: their states, and before these
    /// its rows of the cache if they are to be made. `None` where there is no such layer, or the other step is by the kernels of a decoded token: then
    /// that one keeps the states itself, and its rows are made when drafts are.
    pub fn of_layer(&self, target: &Target, most: u32, makes_rows: bool) -> Option<Step> {
        let layer = self.predicting.as_ref()?;
        if most == 1 || self.is_as_one(target, most) {
            return None;
        }
        let given = self.given(target, most);
        let mut step = Prompt::new(given, &self.chunk, most);
        if makes_rows {
            layer.rows_of(&mut step, &*self.attention, !is_few(target, most));
        }
        nextn::keep(given, &mut step.calls, self.hidden(), most);
        Some(step.done())
    }

    /// The step of up to `most` tokens, of several, by the kernels of a decoded token. All such steps share their buffers.
    fn few_as_one(&self, target: &Target, most: u32) -> Result<Step, GpuError> {
        let record = |most: u32, others: &[Range]| {
            let step = Few::new(self.given(target, most), most, true).within(others);
            frame::few(step, &*self.attention, &self.hidden, None)
        };
        if let Some(buffers) = self.of_layers.get() {
            return Ok(record(most, buffers)?.done());
        }
        let largest = record(self.as_one, &[])?;
        let buffers = self.of_layers.get_or_init(|| largest.made().to_vec());
        Ok(record(most, buffers)?.done())
    }

    /// The step of the prediction layer's rows of the cache for up to `most` tokens of any sequences that earlier steps have computed. `None` where there
    /// is no such layer, or only one sequence.
    pub fn rows_of_layer(&self, target: &Target, most: u32) -> Option<Step> {
        let layer = self.predicting.as_ref().filter(|_| self.sizes.pages > 0)?;
        let mut step = Prompt::new(self.given(target, most), &self.chunk, most);
        layer.rows_of_kept(&mut step, &*self.attention);
        Some(step.done())
    }

    /// Whether a step of up to `most` tokens takes the kernels of a decoded token.
    fn is_as_one(&self, target: &Target, most: u32) -> bool {
        most <= self.as_one || most == 1 && target.tier.has_subgroups()
    }

    /// The step from the hidden states of another step's first tokens to their logits, (tokens, vocab). The other step has up to `of`
    /// tokens, and up to `most` of them get logits. If `of` is 1, `most` must be 1. Else `most` must be greater, unless the step takes the kernels
    /// of a decoded token.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn head(
        &self,
        target: &Target,
        of: u32,
        most: u32,
        logits: &Range,
    ) -> Result<Step, GpuError> {
        let (given, hidden) = (self.given(target, of), self.hidden_of(target, of));
        if !is_few(target, of) {
            return few::head_of_floats(given, most, [&self.chunk.after_ffn, logits], hidden);
        }
        let last = self.body.layers.last();
        let ends_with_experts = last.is_none_or(|layer| matches!(layer.ffn, Ffn::Moe(_)));
        let as_one = self.is_as_one(target, of);
        // The experts of many tokens norm what the last layer leaves.
        let x = match ends_with_experts && !as_one {
            true => TokenInput::of(hidden.values.clone()),
            false => hidden.input(given.eps()),
        };
        few::head(given, (most, as_one), &x, logits)
    }

    /// The step from one token to its logits (vocab).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn token(&self, target: &Target, logits: &Range) -> Result<Step, GpuError> {
        let step = self.step(target, 1)?;
        Ok(step.then(&self.head(target, 1, 1, logits)?.calls))
    }

    /// The step from `least` to `most` tokens of one sequence, which follow each other, to their [hidden states](Self::hidden).
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn prompt(&self, target: &Target, least: u32, most: u32) -> Result<Step, GpuError> {
        let (given, attention) = (self.given(target, 1), &*self.attention);
        if most > FEW {
            let predicting = self.predicting.as_ref();
            return frame::prompt(given, attention, (&self.chunk, predicting), least, most);
        }
        let hidden = few::hidden(target, &self.body, most);
        let step = Few::new(given, most, false);
        Ok(frame::few(step, attention, &hidden, Some(self.hidden()))?.done())
    }

    /// The hidden states that [`prompt`](Self::prompt) leaves, (chunk, embedding_length).
    pub fn hidden(&self) -> &Range {
        &self.chunk.after_ffn
    }

    /// The step from hidden states to the logits (vocab) of the last token.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    pub fn last_logits(&self, target: &Target, logits: &Range) -> Result<Step, GpuError> {
        let given = self.given(target, 1);
        prompt::last_logits(given, &self.chunk, self.sizes.chunk, logits)
    }

    /// The step from one of several slices of the hidden states, of up to `tokens` tokens, to the logits (tokens, vocab); the state's slot
    /// names the slice.
    pub fn logits_of_slices(
        &self,
        target: &Target,
        tokens: u32,
        slices: &[Range],
        logits: &Range,
    ) -> Step {
        let given = self.given(target, 1);
        prompt::logits_of_slices(given, &self.chunk, tokens, slices, logits)
    }

    /// The slices that the attention of tokens of several sequences is cut into, in a step of up to `most` tokens.
    pub fn cut(&self, target: &Target, most: u32, tokens: &[Seen]) -> Cut {
        self.attention
            .cut(target, tokens, self.is_as_one(target, most))
    }

    /// The words of a replay over `tokens` tokens of the first sequence from `pos` on.
    pub fn state(&self, machine: Machine, pos: usize, tokens: usize) -> State {
        self.attention.state(&self.alone, machine, pos, tokens)
    }

    /// The most drafts that the prediction layer makes in a step; 0 where there is none.
    pub fn predicts(&self) -> usize {
        self.predicting.as_ref().map_or(0, Predicting::most)
    }

    /// The tables that tell where the rows of a draft stand, which the host writes if there are several.
    pub fn sequences_of_draft(&self, number: usize, most: u32) -> Option<&Sequences> {
        self.predicting.as_ref()?.sequences(number, most)
    }

    /// The step of up to `most` rows of draft `number`, and the head of the first `drawn` of them, which leaves `logits` (drawn, vocab). The rows of
    /// draft 0 are those of tokens that are known, the drafts' own first; every row of a further draft is one.
    ///
    /// # Errors
    /// The errors of [`step`](Self::step).
    ///
    /// # Panics
    /// If the layer does not make so many drafts.
    pub fn draft(
        &self,
        target: &Target,
        number: usize,
        rows: [u32; 2],
        logits: &Range,
    ) -> Result<[Step; 2], GpuError> {
        let layer = self.predicting.as_ref();
        let layer = layer.expect("a prediction layer");
        layer.draft(target, &*self.attention, (number, rows), logits)
    }

    /// The prepared hidden states of a step of up to `most` tokens.
    fn hidden_of(&self, target: &Target, most: u32) -> &BeforeNorm {
        match most == 1 && target.tier.has_subgroups() {
            true => &self.last,
            false => &self.hidden,
        }
    }
}

/// The most tokens of steps of several, of such sizes, that take the kernels of a decoded token.
fn as_one(target: &Target, sizes: BatchSizes) -> u32 {
    match (few::most_as_one(target, sizes.pages > 0), sizes.pages) {
        (most @ 2.., 0) => most,
        (most @ 2.., _) => most.min(sizes.tokens),
        _ => 0,
    }
}

/// The most tokens, several, whose experts surely have slots; 0 if there are none.
fn most_with_slots(body: &Body) -> u32 {
    let used = body.config.experts.as_ref().map_or(1, |e| e.used as u32);
    let tables = body.rooms.iter().flatten().filter_map(Rooms::table);
    let slots = tables.map(|table| table.slots).min().unwrap_or(0);
    match slots / used.max(1) {
        0 | 1 => 0,
        most => most,
    }
}

/// Whether a step of up to `most` tokens takes kernels for few of them.
fn is_few(target: &Target, most: u32) -> bool {
    most <= target.machine.tuned.few_of_batch
}
