//! One dispatch as data: its pipeline, buffers, parameter words and grid, when it is encoded and what it is about.

use super::buffer::Range;
use super::geometry::Site;
use super::memory;
use super::shader::Variant;

mod about;
mod state;
pub use about::{About, Flops, Listed, Sublayer, Taken};
pub(super) use state::{Block, extent, fill};
pub use state::{Blocks, Extent, KERNELS, Most, State, When, Word};

/// One dispatch before its pipeline exists: a kernel, what is bound to its names, its parameters and its grid. It is held against what the
/// kernel declares when the step is recorded ([`interface`](super::interface)).
#[derive(Debug, Clone, Default)]
pub struct Call {
    /// The kernel.
    pub kernel: &'static str,
    /// Numbers, flags and modules of the template.
    pub variant: Variant,
    /// The ranges of buffers that are bound, by the names of the bindings.
    pub bindings: Vec<(&'static str, Range)>,
    /// The parameters, by their names.
    pub words: Vec<(&'static str, Word)>,
    /// A binding that takes another buffer per [`State::slot`], and those buffers.
    pub alternatives: Option<(&'static str, Vec<Range>)>,
    /// Whether [`alternatives`](Self::alternatives) alternate with the block of the context instead.
    pub by_block: bool,
    /// Whether the dispatch is encoded one block ahead, so that it overlaps with the work of its neighbours on the previous block.
    pub ahead: bool,
    /// The workgroups.
    pub grid: [Extent; 3],
    /// The place at which an earlier dispatch leaves their number, which is not greater: three words of a
    /// [`Buffer::counts`](super::buffer::Buffer::counts).
    pub counts: Option<Range>,
    /// Whether a level begins with it, so that it stands beside what follows instead of what it would not have to wait for.
    pub begins_level: bool,
    /// The replays in which it takes part.
    pub when: When,
    /// The largest replay that it takes part in, where that is smaller than the step's.
    pub most: Option<Most>,
    /// The site that its geometry was chosen for, where there was a choice.
    pub site: Option<Site>,
    /// Bytes of weights it reads at least (where a token is chosen: of logits), for profiles.
    pub bytes: u64,
    /// Bytes it reads at least for each row of the cache, for profiles.
    pub bytes_per_row: u64,
    /// Bytes it reads at least for the whole context, of which each block has a share if it is repeated for these, for profiles.
    pub bytes_of_blocks: u64,
    /// Floating-point operations, for profiles.
    pub flops: Flops,
    /// The list that it leaves of the experts that tokens chose, for those who count them.
    pub listed: Option<Listed>,
    /// Shape of what it works on, such as `2048x5120`, for profiles; may be empty.
    pub shape: String,
    /// The sublayer, for profiles.
    pub sublayer: Sublayer,
    /// The most slices that the contexts of a replay's tokens are cut into, if it is known.
    pub slices: Option<u32>,
    /// Repeated for each block of the context. Neighbours cut alike are repeated together, in order.
    pub blocks: Option<Blocks>,
    /// A template of a test, in place of the kernel of that name.
    pub source: Option<&'static str>,
    /// A shader to compile in its place, with the same interface.
    #[cfg(any(test, feature = "testing"))]
    pub compiled: Option<&'static str>,
}

impl Call {
    /// A dispatch of `kernel`, of one workgroup unless [`grid`](Self::grid) says more.
    pub fn new(kernel: &'static str) -> Self {
        Self {
            kernel,
            ..Self::default()
        }
    }

    /// A dispatch of a template that a test brings along, of one workgroup. What `source` declares is remembered by the name.
    #[cfg(any(test, feature = "testing"))]
    pub fn inline(kernel: &'static str, source: &'static str) -> Self {
        Self {
            source: Some(source),
            ..Self::new(kernel)
        }
    }

    /// The call with the numbers, flags and modules of `variant`.
    pub fn variant(mut self, variant: Variant) -> Self {
        self.variant = variant;
        self
    }

    /// The call with a number of the template.
    pub fn number(mut self, name: &'static str, value: u32) -> Self {
        self.variant.consts.insert(name, value);
        self
    }

    /// The call with a flag of the template, where `on`.
    pub fn flag(mut self, name: &'static str, on: bool) -> Self {
        self.variant = self.variant.flag(name, on);
        self
    }

    /// The call with a module of the template.
    pub fn module(mut self, name: &'static str, module: &'static str) -> Self {
        self.variant.modules.insert(name, module);
        self
    }

    /// Binds `range` to `name`.
    pub fn bind(mut self, name: &'static str, range: &Range) -> Self {
        self.bindings.push((name, range.clone()));
        self
    }

    /// Binds `range` to `name`, where there is one.
    pub fn bind_some(self, name: &'static str, range: Option<&Range>) -> Self {
        match range {
            Some(range) => self.bind(name, range),
            None => self,
        }
    }

    /// Binds the codes and scales of a piece of a weight.
    pub fn planes(self, [codes, scales]: [&'static str; 2], piece: &memory::Piece) -> Self {
        self.bind(codes, &piece.quants).bind(scales, &piece.scales)
    }

    /// Gives the parameter `name`.
    pub fn word(mut self, name: &'static str, word: impl Into<Word>) -> Self {
        self.words.push((name, word.into()));
        self
    }

    /// Gives the parameter `name`, where there is one.
    pub fn word_some(self, name: &'static str, word: Option<impl Into<Word>>) -> Self {
        match word {
            Some(word) => self.word(name, word),
            None => self,
        }
    }

    /// Sets the workgroups to `grid`.
    pub fn grid(mut self, grid: [Extent; 3]) -> Self {
        self.grid = grid;
        self
    }

    /// The range that is bound to `name`.
    pub fn bound(&self, name: &str) -> Option<&Range> {
        let bound = self.bindings.iter().find(|(given, _)| *given == name);
        bound.map(|(_, range)| range)
    }

    /// The value of the parameter `name`.
    pub(super) fn given(&self, name: &str) -> Option<Word> {
        let given = self.words.iter().find(|(given, _)| *given == name);
        given.map(|(_, word)| *word)
    }

    /// Whether it binds a buffer of `weight`.
    pub fn binds(&self, weight: &memory::GpuWeight) -> bool {
        let mut buffers = weight.buffers();
        buffers.any(|buffer| self.ranges().any(|range| range.buffer == *buffer))
    }

    /// Takes part only in replays of up to `most`, which are smaller than the step's.
    pub fn at_most(mut self, most: Most) -> Self {
        self.most = Some(most);
        self
    }

    /// Everything that it reads or writes in some replay.
    pub fn ranges(&self) -> impl Iterator<Item = &Range> {
        let others = self.alternatives.iter().flat_map(|(_, ranges)| ranges);
        let named = self.bindings.iter().map(|(_, range)| range);
        named.chain(others).chain(&self.counts)
    }

    /// Repeats it for each block of the context, together with its neighbours that are cut alike.
    ///
    /// A replay must keep `pos + tokens` within the blocks.
    pub fn per_block(mut self, blocks: Blocks) -> Self {
        self.blocks = Some(blocks);
        self
    }

    /// Lets binding `name` change with [`State::slot`].
    pub fn with_alternatives(mut self, name: &'static str, ranges: Vec<Range>) -> Self {
        self.alternatives = Some((name, ranges));
        self
    }

    /// Lets binding `name` alternate with the block of the context ([`per_block`](Self::per_block)).
    pub fn with_buffers_by_block(self, name: &'static str, ranges: Vec<Range>) -> Self {
        Self {
            by_block: true,
            ..self.with_alternatives(name, ranges)
        }
    }

    /// Is done for each block beside what its neighbours do with the block before, to whose buffers it must write nothing: a pass
    /// begins with each block, since wgpu waits before a write to what a pass has used.
    pub fn a_block_ahead(mut self) -> Self {
        self.ahead = true;
        self
    }

    /// Takes as many workgroups as `counts` says, which are at most those of its grid. What writes them also writes one of its buffers,
    /// so that it waits for both.
    pub fn with_counts(mut self, counts: Option<Range>) -> Self {
        self.counts = counts;
        self
    }

    /// Has a level begin with it.
    pub fn beginning_level(mut self) -> Self {
        self.begins_level = true;
        self
    }

    /// Takes part only in some replays.
    pub fn only(mut self, when: When) -> Self {
        self.when = when;
        self
    }

    /// Names what its geometry was chosen for, whose shape is that of what it works on.
    pub fn at_site(mut self, site: Site) -> Self {
        self.shape = site.shape.clone();
        self.site = Some(site);
        self
    }

    /// States the list of experts that it leaves, in tiles of `words` words.
    pub fn listing(mut self, tiles: &Range, words: u32) -> Self {
        let tiles = tiles.clone();
        self.listed = Some(Listed { tiles, words });
        self
    }

    /// States the bytes it reads.
    pub fn with_bytes(mut self, bytes: u64) -> Self {
        self.bytes = bytes;
        self
    }

    /// States the bytes it reads for each row of the cache.
    pub fn with_bytes_per_row(mut self, bytes: u64) -> Self {
        self.bytes_per_row = bytes;
        self
    }

    /// States the bytes it reads for the whole context, of which each block has a share if it is repeated for these.
    pub fn with_bytes_of_blocks(mut self, bytes: u64) -> Self {
        self.bytes_of_blocks = bytes;
        self
    }

    /// States the floating-point operations that must be done.
    pub fn with_flops(mut self, flops: Flops) -> Self {
        self.flops = flops;
        self
    }

    /// States the shape of what it works on.
    pub fn with_shape(mut self, shape: String) -> Self {
        self.shape = shape;
        self
    }
}

/// Tells `calls` the sublayer that they belong to.
pub fn belong(calls: &mut [Call], sublayer: Sublayer) {
    for call in calls {
        call.sublayer = sublayer;
    }
}
