//! The slices that contexts are cut into, for any kernel that attends to them.

use super::Form;
use crate::gpu::call::KERNELS;
use crate::gpu::interface::MAX_SLICES;
use crate::gpu::machine::Machine;
use crate::gpu::machine::attention::{SHARING_TOKENS, SHORT_ROWS};
use crate::kernels::sequences::SLICE;

/// A kernel that attends to slices of a context: what decides how many there are.
pub trait Cuts: Copy {
    /// Cache rows that a workgroup takes at once, and query heads that it takes, in a context of `rows` rows.
    fn tile(self, rows: usize) -> (usize, usize);

    /// Workgroups that are wanted on a device with `cores` cores.
    fn full(self, cores: usize) -> usize;

    /// Slices that are wanted there, of which each takes `parts` workgroups.
    fn wanted(self, cores: usize, parts: usize) -> usize {
        self.full(cores).div_ceil(parts)
    }

    /// The fewest tiles of a slice, of `tiles` in all.
    fn least(self, machine: Machine, tiles: usize) -> usize;

    /// Whether tokens of a sequence that follow each other share workgroups, where the heads of one leave places for queries of the next.
    fn shares(self) -> bool {
        false
    }

    /// Rows of a slice of the kernel that attends to short contexts ([`OfOne::short`]).
    fn short_slice(self) -> u32 {
        SHORT_ROWS
    }

    /// The rows of a context, more than `rows`, up to which another kernel of the form attends than above.
    fn bound_above(self, _rows: u32) -> Option<u32> {
        None
    }
}

/// The fewest tiles of a slice, of `tiles` in all, where a tile takes as long as `joined` slices take to be joined, which is tuned: time is
/// least where there are that many times as many slices as a slice has tiles (benches/notes.md, "How many slices a context is cut into").
pub(in crate::kernels) fn least(joined: u32, tiles: usize) -> usize {
    let slices = (joined as usize * tiles).isqrt().max(1);
    (tiles + slices / 2) / slices
}

/// The number of slices of a context of `rows` cache rows (pos + tokens), and the cache rows of each slice, for
/// [`State::slices`](crate::gpu::call::State::slices) and `slice_rows`. `machine` is the device.
///
/// There are as many slices as fill the GPU with all heads and tokens. None is shorter than a tile, so a short context is one slice.
/// Contexts of medium length may have fewer slices: see [`Cuts::least`].
/// Each form is right for the cuts of the others too.
///
/// # Panics
/// If there are no rows, tokens or heads.
pub fn cut_context(
    form: impl Cuts,
    machine: Machine,
    rows: usize,
    tokens: usize,
    heads: usize,
) -> (u32, u32) {
    let cores = machine.cores as usize;
    assert!(
        rows > 0 && tokens > 0 && heads > 0 && cores > 0,
        "nothing to attend to"
    );
    let (tile, group) = form.tile(rows);
    let wanted = form.wanted(cores, heads.div_ceil(group) * tokens);
    let most = (MAX_SLICES / tokens).max(1);
    let tiles = rows.div_ceil(tile);
    let of_slice = tiles
        .div_ceil(wanted.min(most))
        .max(form.least(machine, tiles));
    let slice_rows = of_slice * tile;
    (rows.div_ceil(slice_rows) as u32, slice_rows as u32)
}

/// A token of one of several sequences, which sees the rows of its sequence up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// A number of its sequence.
    pub sequence: u32,
    /// The token's position in its sequence.
    pub position: u32,
}

/// The attention of steps of one token: the form, and the rows of a context up to which a kernel for short contexts takes its place.
#[derive(Debug, Clone, Copy)]
pub struct OfOne<F = Form> {
    /// The form.
    pub form: F,
    /// The rows, or 0.
    pub short: u32,
}

impl<F: Cuts> OfOne<F> {
    /// The number of slices of a context of `rows` rows, and the rows of each.
    pub fn slices(self, machine: Machine, rows: usize, heads: usize) -> (u32, u32) {
        if rows <= self.short as usize {
            let slice = self.form.short_slice();
            return ((rows as u32).div_ceil(slice), slice);
        }
        cut_context(self.form, machine, rows, 1, heads)
    }

    /// The most slices of a context of up to `n_ctx` rows.
    pub fn most_slices(self, machine: Machine, n_ctx: usize, heads: usize) -> u32 {
        // Tiles are multiples of 8 rows, and the number of slices changes behind a tile.
        let rows = (1..=n_ctx.max(1)).step_by(8);
        let slices = rows.map(|rows| self.slices(machine, rows, heads).0);
        slices.max().unwrap_or(1)
    }

    /// The number of the kernel, in the order of [`calls_of_one`](super::GpuAttention::calls_of_one), for a context of `rows` rows.
    fn kernel(self, rows: usize) -> u32 {
        let bounds = [
            (self.short > 0).then_some(self.short),
            self.form.bound_above(self.short),
        ];
        let below = bounds
            .iter()
            .flatten()
            .filter(|bound| rows > **bound as usize);
        below.count() as u32
    }

    /// The slices of `tokens` as each has them alone.
    pub fn cut(self, machine: Machine, tokens: &[Seen], heads: usize) -> Cut {
        let mut cut = Cut {
            work: vec![],
            slices: vec![],
            rows: 0,
            kernels: 0,
            slices_of: [0; KERNELS],
        };
        let mut of_kernels: [Vec<_>; KERNELS] = Default::default();
        let mut first = 0;
        for (token, seen) in tokens.iter().enumerate() {
            let rows = seen.position as usize + 1;
            let (count, slice_rows) = self.slices(machine, rows, heads);
            let kernel = self.kernel(rows);
            of_kernels[kernel as usize].extend((0..count).map(|nth| {
                let begin = nth * slice_rows;
                let end = (begin + slice_rows).min(rows as u32);
                [token as u32, begin, end, nth, 0, heads as u32, 0, 0]
            }));
            cut.slices.push([first, count]);
            cut.rows = cut.rows.max(rows as u32);
            cut.kernels |= 1 << kernel;
            first += count;
        }
        cut.slices_of = of_kernels.each_ref().map(|work| work.len() as u32);
        cut.work = of_kernels.concat();
        cut
    }
}

/// The slices of the contexts of several tokens.
pub struct Cut {
    /// The record of each slice, as [`Sequences::work`](crate::kernels::sequences::Sequences::work) has it.
    pub work: Vec<[u32; SLICE]>,
    /// The first slice of each token, and how many it has.
    pub slices: Vec<[u32; 2]>,
    /// The rows of the longest context, by which a replay chooses among kernels ([`When::Rows`](crate::gpu::call::When::Rows)).
    pub rows: u32,
    /// The bits of the kernels that some slice is for, if the kernels of one token attend ([`OfOne`]).
    pub kernels: u32,
    /// The slices of each of these kernels, which follow each other in `work`.
    pub slices_of: [u32; KERNELS],
}

impl Cut {
    /// The most rows and the most slices of each kernel of several cuts, without the slices themselves; `None` if they take different kernels, or
    /// there is none.
    pub fn widest<'a>(mut cuts: impl Iterator<Item = &'a Self>) -> Option<Self> {
        let first = cuts.next()?;
        let mut widest = Self {
            work: vec![],
            slices: vec![],
            ..*first
        };
        for cut in cuts {
            if cut.kernels != widest.kernels {
                return None;
            }
            widest.rows = widest.rows.max(cut.rows);
            for (most, own) in widest.slices_of.iter_mut().zip(cut.slices_of) {
                *most = own.max(*most);
            }
        }
        Some(widest)
    }

    /// Its slices, the last of each kernel repeated up to the number that the kernel has in `widest`: it is computed again, to the same end.
    pub fn padded(&self, widest: &Self) -> Vec<[u32; SLICE]> {
        let (mut all, mut first) = (vec![], 0);
        for (own, most) in self.slices_of.into_iter().zip(widest.slices_of) {
            let own = &self.work[first..first + own as usize];
            first += own.len();
            all.extend(own);
            let last = own.last().into_iter().cycle();
            all.extend(last.take((most as usize).saturating_sub(own.len())));
        }
        all
    }
}

/// Tokens of a sequence that follow each other and share workgroups: the first, the rows that it sees, and how many they are.
struct Run {
    token: usize,
    seen: usize,
    count: usize,
}

impl Run {
    /// Runs of up to `most` tokens.
    fn of(tokens: &[Seen], most: usize) -> Vec<Self> {
        let follows = |a: &Seen, b: &Seen| a.sequence == b.sequence && a.position + 1 == b.position;
        let mut token = 0;
        let runs = tokens.chunk_by(follows).flat_map(|run| run.chunks(most));
        let run = |run: &[Seen]| {
            token += run.len();
            Self {
                token: token - run.len(),
                seen: run[0].position as usize + 1,
                count: run.len(),
            }
        };
        runs.map(run).collect()
    }

    /// The rows that its last token sees.
    const fn rows(&self) -> usize {
        self.seen + self.count - 1
    }
}

/// Cuts contexts of different lengths into slices of the same length, as many as fill the device. No slice but the last of a context is
/// shorter than a tile, and there are at most [`MAX_SLICES`] more than tokens.
///
/// Tokens of a sequence that follow each other may share workgroups: see [`Cuts::shares`].
///
/// # Panics
/// If there are no tokens or heads.
pub fn cut_sequences(form: impl Cuts, machine: Machine, tokens: &[Seen], heads: usize) -> Cut {
    let longest = tokens.iter().map(|t| t.position as usize + 1).max();
    let longest = longest.unwrap_or(0);
    assert!(longest > 0 && heads > 0, "nothing to attend to");
    let (tile, group) = form.tile(longest);
    let shares = form.shares() && heads < group;
    let runs = Run::of(tokens, if shares { SHARING_TOKENS } else { 1 });
    // Workgroups of each slice that are in the list. Others are along the second axis of the grid.
    let listed = |run: &Run| match shares {
        true => (run.count * heads).div_ceil(group),
        false => 1,
    };
    let tiles = |run: &Run| run.rows().div_ceil(tile);
    let all: usize = runs.iter().map(|run| listed(run) * tiles(run)).sum();
    let wanted = form.wanted(machine.cores as usize, heads.div_ceil(group));
    // Each context may end with a shorter slice besides.
    let even = all.div_ceil(wanted.clamp(1, MAX_SLICES));
    let of_tokens: usize = runs.iter().map(|run| run.count * tiles(run)).sum();
    let even = even.max(of_tokens.div_ceil(MAX_SLICES));
    let of_slice = even.max(form.least(machine, longest.div_ceil(tile)));
    let of_slice = of_slice.max(1) * tile;
    let mut cut = Cut {
        work: vec![],
        slices: vec![],
        rows: longest as u32,
        kernels: 1,
        slices_of: [0; KERNELS],
    };
    let mut slices = 0;
    for run in &runs {
        let count = run.rows().div_ceil(of_slice);
        let queries = run.count * heads;
        for first in (0..listed(run)).map(|nth| nth * group) {
            let last = (first + group).min(queries) - 1;
            let seen = run.seen + if shares { last / heads } else { 0 };
            cut.work.extend((0..count).map(|nth| {
                let begin = nth * of_slice;
                let end = (begin + of_slice).min(seen);
                [run.token, begin, end, nth, first, queries, 0, 0].map(|n| n as u32)
            }));
        }
        for _ in 0..run.count {
            cut.slices.push([slices, count].map(|n| n as u32));
            slices += count;
        }
    }
    cut
}
