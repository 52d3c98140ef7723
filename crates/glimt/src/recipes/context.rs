//! The context of all steps: sizes, the cache, the ids of tokens, and where tokens stand.

use crate::gpu::buffer::{Buffer, Range, Role};
use crate::gpu::{GpuError, Most, Target};
use crate::kernels::attention::MAX_SLICES;
use crate::kernels::gemm::Form;
use crate::kernels::keep_states::States;
use crate::kernels::sequences::{PAGE, RECORD, SLICE, Sequences};

/// The sequences, the cache and the steps of a model on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BatchSizes {
    /// The most positions of a sequence.
    pub n_ctx: usize,
    /// Pages of the cache, of [`PAGE`] rows each; 0 where the rows of the only sequence follow each other.
    pub pages: u32,
    /// Sequences at once.
    pub sequences: u32,
    /// The most tokens of a step, of any sequences.
    pub tokens: u32,
    /// The most tokens of a step of a prompt, all of one sequence.
    pub chunk: u32,
    /// The most drafts of a step, of all sequences together.
    pub drafts: u32,
}

impl BatchSizes {
    /// One sequence, whose tokens are decoded one by one and whose prompts are computed in steps of up to `chunk` tokens.
    pub fn of_one(n_ctx: usize, chunk: u32) -> Self {
        Self {
            n_ctx,
            pages: 0,
            sequences: 1,
            tokens: 1,
            chunk,
            drafts: 0,
        }
    }

    /// These sizes with up to `drafts` drafts in each step.
    pub fn with_drafts(self, drafts: u32) -> Self {
        let tokens = match self.pages {
            0 => 1 + drafts,
            _ => self.tokens,
        };
        Self {
            tokens,
            drafts,
            ..self
        }
    }

    /// Rows of the cache.
    pub fn rows(self) -> usize {
        match self.pages {
            0 => self.n_ctx,
            pages => (pages * PAGE) as usize,
        }
    }

    /// The most tokens of any step after which a token is chosen: one of each sequence, or a token and all drafts, rounded up to the steps that
    /// are compiled.
    pub fn most_drawn(self) -> u32 {
        self.class(self.sequences.max(1 + self.drafts).max(2))
    }

    /// The most tokens of the step that suits `tokens`.
    pub fn class(self, tokens: u32) -> u32 {
        tokens.next_power_of_two().min(self.tokens)
    }

    /// The most tokens of a step of several sequences: 0 where there is one.
    pub fn of_several(self) -> u32 {
        match self.pages {
            0 => 0,
            _ => self.tokens,
        }
    }

    /// The most slices that the contexts of several sequences are cut into: 0 where there is one.
    pub fn slices(self) -> usize {
        match self.pages {
            0 => 0,
            _ => MAX_SLICES + self.tokens as usize,
        }
    }
}

/// Room for the places of tokens in steps of several.
#[derive(Debug, Clone, Copy)]
pub struct Room {
    /// The most tokens.
    pub tokens: u32,
    /// The most slices that their contexts are cut into.
    pub slices: usize,
}

/// The buffers that every step shares, and what steps are recorded with.
#[derive(Clone)]
pub struct Context {
    /// Positions of a sequence.
    pub rows: u32,
    /// The places of the tokens of steps of several, which may belong to several sequences if the caches have pages.
    pub sequences: Option<Sequences>,
    /// Token ids by position, (sequences, n_ctx + 1) u32.
    pub history: Range,
    /// Per layer the rows of the cache.
    pub cache: Vec<Range>,
    /// The form in which the products of prompts are multiplied.
    pub products: Form,
    /// The states of the last positions, where a prediction layer goes on from them.
    pub kept: Option<States>,
}

impl Context {
    /// The context for sequences and steps of these sizes, with a cache of `cache_row` words of 16 bits a row for each of the layers.
    ///
    /// # Errors
    /// [`GpuError::BindingTooLarge`] where a layer's cache does not fit one binding.
    pub fn new(
        target: &Target,
        [layers, cache_row]: [usize; 2],
        products: Form,
        sizes: BatchSizes,
        room: Room,
    ) -> Result<Self, GpuError> {
        let ids = u64::from(sizes.sequences) * (sizes.n_ctx as u64 + 1);
        let bytes = (sizes.rows() * cache_row * 2) as u64;
        if bytes > target.max_binding {
            return Err(GpuError::BindingTooLarge {
                what: format!("the cache of a layer for {} positions", sizes.rows()),
                bytes,
                adapter: target.name.clone(),
                limit: target.max_binding,
                remedy: "use a smaller context (-c)",
            });
        }
        let cache = |_| Range::whole(&Buffer::new("cache", bytes, Role::Cache));
        Ok(Self {
            rows: sizes.n_ctx as u32,
            sequences: (room.tokens > 0).then(|| sequences(sizes, room, ids)),
            history: Range::words("token histories", ids),
            cache: (0..layers).map(cache).collect(),
            products,
            kept: None,
        })
    }

    /// The same context with a table of its own, for steps of up to `room` tokens of several sequences in one submission with others.
    pub fn with_table(&self, room: Room) -> Self {
        let sequences = self.sequences.as_ref().map(|known| {
            let (table, work) = tables(room);
            Sequences {
                table,
                work,
                ..known.clone()
            }
        });
        Self {
            sequences,
            ..self.clone()
        }
    }

    /// The context for steps whose tokens all belong to one sequence and follow each other: a token alone, or a chunk of a prompt.
    pub fn alone(&self) -> Self {
        let in_pages = self.sequences.as_ref().filter(|s| s.pages.is_some());
        Self {
            sequences: in_pages.map(|s| s.of_steps(1)),
            ..self.clone()
        }
    }

    /// Whether the tokens of a step have a table of their places, so that they may belong to several sequences.
    pub fn has_several(&self) -> bool {
        self.sequences.as_ref().is_some_and(|s| !s.alone)
    }

    /// The largest replay of a step over up to `tokens` tokens, whose buffers may hold more than the context does.
    pub fn most(&self, tokens: u32) -> Most {
        Most {
            tokens,
            context: self.rows,
        }
    }
}

/// The places of tokens of several sequences, which have `ids` ids in all.
fn sequences(sizes: BatchSizes, room: Room, ids: u64) -> Sequences {
    let per_sequence = sizes.n_ctx.div_ceil(PAGE as usize) as u64;
    let (table, work) = tables(room);
    let entries = u64::from(sizes.sequences) * per_sequence;
    Sequences {
        table,
        pages: (sizes.pages > 0).then(|| Range::words("pages", entries)),
        work,
        page: PAGE,
        rows: sizes.pages * PAGE,
        ids: ids as u32,
        alone: false,
    }
}

/// The table of the places of tokens, and that of their slices.
fn tables(room: Room) -> (Range, Range) {
    let words = u64::from(room.tokens) * RECORD as u64;
    (
        Range::words("where tokens stand", words),
        Range::words("slices of tokens", (room.slices * SLICE) as u64),
    )
}
