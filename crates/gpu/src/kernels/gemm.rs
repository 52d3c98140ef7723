//! Matrix times matrix: the products of a prompt, for many tokens at once.
//!
//! Their twins are those of the products of few tokens: [`matvec`](super::products::Products::matvec), [`gate_up`](super::products::Products::gate_up)
//! and, for an expert's second half, [`matvec`](super::products::Products::matvec) again.

use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::machine::tiles::LARGEST;
use crate::gpu::memory::{GpuWeight, Piece};
use crate::gpu::{Coop, Gpu, GpuError, Target, Tier};
use crate::quant::repack::{has_codes, shader_module};

use super::expert_rows::tile_extent;
use super::{MAX_GRID, coop};

mod tiles;
mod trial;
pub use tiles::{Tile, Tiles, expert_tiles, tiles};

/// The way in which a device multiplies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Products in f32, which run everywhere; `eight` where all subgroups have 8 lanes.
    Float {
        /// Whether the kernel may take a subgroup for 8 threads.
        eight: bool,
    },
    /// Products by cooperative matrices, with inputs and weights rounded to f16.
    Matrix(Coop),
}

impl Form {
    /// The form in f32 for a device.
    pub fn float(target: &Target) -> Self {
        Self::Float {
            eight: target.machine.subgroup == [8; 2] && target.tier != Tier::Plain,
        }
    }

    /// The cooperative matrices that it takes.
    fn matrices(self) -> Option<Coop> {
        match self {
            Self::Float { .. } => None,
            Self::Matrix(coop) => Some(coop),
        }
    }

    /// The fastest form of a device.
    pub fn best(target: &Target) -> Self {
        match target.coop {
            Some(coop) => Self::Matrix(coop),
            None => Self::float(target),
        }
    }

    /// The fastest form whose results agree with those in f32 on the device (one that fails, or is slower, is named in the log).
    ///
    /// # Errors
    /// The error that the device reports in the trial.
    pub async fn for_prompts(gpu: &Gpu) -> Result<Self, GpuError> {
        let (best, float) = (Self::best(gpu), Self::float(gpu));
        if best == float {
            return Ok(float);
        }
        const WHAT: &str = "the products of prompts";
        let good = coop::once(gpu, WHAT, async {
            let compared = trial::product(gpu, best, trial::COMPARED, true);
            let timed = trial::product(gpu, best, trial::TIMED, false);
            Ok(
                coop::agrees(gpu, WHAT, trial::LIMIT, compared.nmse(gpu).await)?
                    && timed.is_faster(gpu, WHAT).await?,
            )
        })
        .await?;
        Ok(if good { best } else { float })
    }
}

/// The tokens of each expert, and how a product reads and writes them.
#[derive(Debug, Clone)]
pub struct GpuExperts {
    /// Tiles by expert, each (expert, first place, places, 0), [`expert_rows::tile_count`](super::expert_rows::tile_count)
    /// of them.
    pub tiles: Range,
    /// Slots (token * used + rank) by expert, (max_tokens * used).
    pub slots: Range,
    /// Experts of a token.
    pub used: u32,
    /// Places of a tile.
    pub height: u32,
    /// Whether the input is by token (gate and up) and the output by place, or the input by place and the output by slot
    /// (down).
    pub gather: bool,
    /// The counts of the workgroups of both products of these tiles ([`workgroups`](Self::workgroups)). Without them, as many as there may
    /// be are dispatched.
    pub counts: Option<Range>,
    /// Whether a product by tiles of another height stands beside this one, of which one has none.
    pub either: bool,
}

impl GpuExperts {
    /// The first content of [`Buffer::counts`](crate::gpu::buffer::Buffer::counts) for gate and up, of `rows[0]` rows each, and for down,
    /// of `rows[1]`. The number of tiles, each of which has a row of workgroups, is still 0.
    pub fn workgroups(form: Form, height: u32, rows: [u32; 2]) -> [[u32; 3]; 2] {
        let across = |pair, rows| [Tile::of_height(form, pair, height).across(rows), 0, 1];
        [across(true, rows[0]), across(false, rows[1])]
    }

    /// The counts of the product that reads and writes as this one does.
    pub(super) fn own_counts(&self) -> Option<Range> {
        let skipped = if self.gather { 0 } else { 12 };
        self.counts.as_ref().map(|counts| Range {
            offset: counts.offset + skipped,
            ..counts.clone()
        })
    }
}

/// The input of a product.
#[derive(Debug, Clone)]
pub enum Input {
    /// f32, for [`Form::Float`].
    Floats(Range),
    /// Halves and a scale per row, for [`Form::Matrix`].
    Halves([Range; 2]),
}

/// A product on the device.
pub struct GpuGemm<'a> {
    /// The way in which it is multiplied.
    pub form: Form,
    /// W, (groups, rows, cols): heads, experts or one group.
    pub weight: &'a GpuWeight,
    /// A second weight of the same shape and pieces, with which the product is silu(weight x) * (up x).
    pub up: Option<&'a GpuWeight>,
    /// Most tokens of a replay.
    pub max_tokens: u32,
    /// The input, (tokens or places, x_stride).
    pub x: Input,
    /// Values from one row of the input to the next.
    pub x_stride: u32,
    /// Values from one group's input to the next, where groups are heads.
    pub x_group_stride: u32,
    /// The tokens that each group multiplies, where groups are experts.
    pub experts: Option<GpuExperts>,
    /// Added to the output, of its shape; not with `up` or `experts`.
    pub residual: Option<Range>,
    /// Split-K: ranges that the columns are cut into, a divisor of the units of 32 columns, usually 1. Their partial sums are left
    /// for the next kernel to add up. Only for one group without `up`, `experts` or `residual`.
    pub split_k: u32,
    /// The output, (tokens, groups * rows), or (places or slots, rows) with experts, or (split_k, max_tokens, rows).
    pub y: Range,
    /// A tile of the form to use; none for the best.
    pub tile: Option<Tile>,
}

impl<'a> GpuGemm<'a> {
    /// The product of `weight`, of one group, with `x` (max_tokens, cols) alone, to be completed.
    pub fn of(form: Form, weight: &'a GpuWeight, x: Input, max_tokens: u32, y: &Range) -> Self {
        Self {
            form,
            weight,
            up: None,
            max_tokens,
            x,
            x_stride: weight.cols,
            x_group_stride: 0,
            experts: None,
            residual: None,
            split_k: 1,
            y: y.clone(),
            tile: None,
        }
    }

    /// The dispatches on this device: one per piece of the weight.
    ///
    /// # Panics
    /// If what is multiplied does not go together, or not with the tile.
    pub fn calls(&self, target: &Target) -> Vec<Call> {
        self.check();
        let w = self.weight;
        let pair = self.up.is_some();
        let tile = match (&self.experts, self.tile) {
            (_, Some(tile)) => tile,
            (Some(experts), None) => Tile::of_height(self.form, pair, experts.height),
            (None, None) => Tile::choose(
                target.machine,
                self.form,
                pair,
                self.max_tokens,
                w.total_rows(),
                self.split_k,
            ),
        };
        let tile = tile.for_units(w.cols / 32 / self.split_k);
        if let Some(e) = &self.experts {
            assert_eq!(e.height, tile.tokens, "{}: tiles of the list", w.name);
        }
        let kernel = self.kernel(tile);
        let call = |(i, piece)| {
            let up = self.up.map(|up| &up.pieces[i]);
            self.call(kernel.clone(), tile, piece, up)
        };
        w.pieces.iter().enumerate().map(call).collect()
    }

    /// The kernel in tiles, with nothing bound yet.
    fn kernel(&self, tile: Tile) -> Call {
        let (tokens, rows) = (tile.tokens, tile.rows);
        let [along_tokens, along_rows] = tile.subgroups;
        let (name, threads) = match self.form {
            Form::Float { eight: true } => ("gemm_eight", along_tokens * along_rows),
            Form::Float { eight: false } => ("gemm", along_tokens * along_rows),
            Form::Matrix(coop) => ("gemm_coop", along_tokens * along_rows * coop.lanes),
        };
        assert!(
            (tokens * 8).is_multiple_of(threads) && threads.is_multiple_of(64),
            "{tile:?}: whole loads for {threads} threads"
        );
        let w_rows = if self.up.is_some() { 2 * rows } else { rows };
        let mut call = Call::new(name)
            .module("WEIGHT", shader_module(self.weight.ty))
            .module("GROUPS", self.groups())
            .number("BM", tokens)
            .number("BN", rows)
            .number("W_ROWS", w_rows);
        if let Some(experts) = &self.experts {
            call = call.number("USED", experts.used);
        }
        if let Some(up) = self.up {
            call = call.module("UP", shader_module(up.ty));
        }
        match self.form {
            Form::Matrix(coop) => self.by_matrices(call, tile, coop, threads),
            Form::Float { eight } => {
                assert!(
                    along_rows == 8 && along_tokens.is_multiple_of(8) && tokens <= 8 * along_tokens,
                    "{tile:?}: rows of a tile lie in turns of 8, a lane reads one row of x at most"
                );
                if !eight {
                    call = call.number("X_LOADS", tokens * 8 / threads);
                }
                call.number("WG", threads)
                    .number("RM", tokens / along_tokens)
                    .number("RN", rows / 8)
                    .number("W_RN", w_rows / 8)
                    .number("W_LOADS", w_rows.div_ceil(threads))
            }
        }
    }

    /// The module that tells what the groups of the weight are.
    fn groups(&self) -> &'static str {
        match &self.experts {
            Some(experts) if experts.gather => "gemm_gather",
            Some(_) => "gemm_scatter",
            None if self.split_k > 1 => "gemm_columns",
            None => "gemm_heads",
        }
    }

    /// Adds the numbers and modules that only the kernel by cooperative matrices has.
    fn by_matrices(&self, mut call: Call, tile: Tile, coop: Coop, threads: u32) -> Call {
        let (tokens, rows, units) = (tile.tokens, tile.rows, tile.units);
        let [along_tokens, along_rows] = tile.subgroups;
        let Coop { size, lanes } = coop;
        let subgroups = along_tokens * along_rows;
        // Threads per unit of a row: as few as leave none idle.
        let fractions = (threads / (rows * units)).max(1);
        assert!(
            [1, 2, 4].contains(&fractions) && (rows * units * fractions).is_multiple_of(threads),
            "{tile:?}: whole fractions of units for {threads} threads"
        );
        let module = |ty| match has_codes(ty) {
            true => "fraction_codes",
            false => "fraction_floats",
        };
        call = call.module("W_FRACTION", module(self.weight.ty));
        if let Some(up) = self.up {
            call = call.module("U_FRACTION", module(up.ty));
        }
        // How a tile works that is full, half or a quarter full: matrices of a subgroup along tokens, loads of a thread.
        let along = [tokens / size / along_tokens, rows / size / along_rows];
        for (matrices, loads, of) in [
            ("all_FM", "all_X_LOADS", 1),
            ("half_FM", "half_X_LOADS", 2),
            ("quarter_FM", "quarter_X_LOADS", 4),
        ] {
            if of > 1 && (self.experts.is_none() || along[0] <= of / 2) {
                continue;
            }
            let high = along[0].div_ceil(of);
            let vectors = high * along_tokens * size * 8 * units;
            call = call
                .number(matrices, high)
                .number(loads, vectors.div_ceil(threads));
        }
        let weights = if self.up.is_some() { 2 } else { 1 };
        // Only Metal has these matrices.
        let metal = (size, lanes) == (8, 32);
        assert!(
            [tokens, rows] == [0, 1].map(|i| along[i] * tile.subgroups[i] * size)
                && [8, 16].contains(&size),
            "{tile:?}: whole matrices of {size}"
        );
        // Whatever piece of the weight, group or range of the columns: its rows begin and end with a vector of the output.
        let w = self.weight;
        let mut numbers = w.pieces.iter().flat_map(|p| [p.first_row, p.rows]);
        let vectors = w.rows.is_multiple_of(4) && numbers.all(|n| n.is_multiple_of(4));
        call.module("MATRICES", coop::module(size as usize))
            .number("MAT", size)
            .number("STAGE_UNITS", units)
            .number("STEPS", 32 * units / size)
            .number("W_LOADS", rows * units * fractions / threads)
            .number("OUTS", subgroups.min(tile.writers))
            .number("TURNS", subgroups.div_ceil(tile.writers))
            .number("LANE_VECTORS", (size * size / 4 / lanes).max(1))
            // Subgroups that write to the same place take turns.
            .flag("TOGETHER", subgroups > tile.writers)
            .flag("WHOLE_VECTORS", vectors)
            .flag("EXCLUSIVE", self.is_exclusive(tile))
            .number("FRACTIONS", fractions)
            .number("FRACTION_VECTORS", 8 / fractions)
            .number("LANES", lanes)
            .number("SM", along_tokens)
            .number("SN", along_rows)
            .number("FM", along[0])
            .number("FN", along[1])
            .number("W_FN", along[1] * weights)
            .flag("HALF", self.experts.is_some() && along[0] > 1)
            .flag("QUARTER", self.experts.is_some() && along[0] > 2)
            .flag("VECTORS", !metal)
    }

    /// Whether nothing else is to read the same buffers meanwhile, for loads that are not moved past barriers: the largest tiles
    /// by NVIDIA's matrices. A dense pair stays beside other products, and experts beside those by other tiles.
    fn is_exclusive(&self, tile: Tile) -> bool {
        let dense_pair = self.up.is_some() && self.experts.is_none();
        let beside = dense_pair || self.experts.as_ref().is_some_and(|e| e.either);
        let nvidia = matches!(self.form, Form::Matrix(Coop { size: 16, .. }));
        nvidia && tile.tokens >= LARGEST && !beside
    }

    /// Rows of the output that a token has in each group.
    fn used(&self) -> u32 {
        self.experts.as_ref().map_or(1, |e| e.used)
    }

    /// The dispatch for a piece of the weight, and of the second one.
    fn call(&self, kernel: Call, tile: Tile, piece: &Piece, up: Option<&Piece>) -> Call {
        let w = self.weight;
        let [rows, first_group, groups] = super::groups_of(w, piece);
        let units = w.cols / 32;
        let (first_row, y_stride) = match self.experts {
            Some(_) => (0, w.rows),
            None => (piece.first_row, w.total_rows()),
        };
        let cut = self.split_k > 1;
        let x_group_stride = match cut {
            true => units / self.split_k * 8,
            false => self.x_group_stride / 4,
        };
        let (along_tokens, along_groups) = match &self.experts {
            Some(e) => (tile_extent(e.used, e.height, w.groups), 1),
            None => (Extent::TokensBy(tile.tokens), groups * self.split_k),
        };
        let across = Extent::N(tile.across(rows));
        // Two products that stand beside each other differ in the tokens of their tiles.
        let shape = match &self.experts {
            Some(e) if e.either => format!("{} by {}", w.shape(), e.height),
            _ => w.shape(),
        };
        let bytes = |piece: &Piece| piece.quants.size + piece.scales.size;
        let weights = if up.is_some() { 2 } else { 1 };
        let products = 2 * weights * u64::from(piece.rows) * u64::from(w.cols);
        let flops = match &self.experts {
            // A piece has its share of the experts, and of those used on average.
            Some(e) => products * u64::from(e.used) / u64::from(w.groups),
            None => products,
        };
        let mut call = kernel.planes(["w_q", "w_s"], piece);
        if let Some(up) = up {
            assert_eq!(
                (piece.first_row, piece.rows),
                (up.first_row, up.rows),
                "pieces of {}",
                w.name
            );
            call = call.planes(["u_q", "u_s"], up);
        }
        call = match &self.x {
            Input::Floats(x) => call.bind("x", x),
            Input::Halves([halves, scales]) => call.bind("x", halves).bind("x_scales", scales),
        };
        call.bind_some("tiles", self.experts.as_ref().map(|e| &e.tiles))
            .bind_some("slots", self.experts.as_ref().map(|e| &e.slots))
            .bind_some("residual", self.residual.as_ref())
            .bind("y", &self.y)
            .word("rows", rows)
            .word("first_row", first_row)
            .word("first_group", first_group)
            .word("groups", groups)
            .word("units", units / self.split_k)
            .word("sub", piece.sub)
            .word_some("u_sub", up.map(|up| up.sub))
            .word("tokens", Word::Tokens)
            .word("x_stride", self.x_stride / 4)
            .word("x_group_stride", x_group_stride)
            .word("y_stride", y_stride)
            .word_some("row_units", cut.then_some(units))
            .word_some("partial_stride", cut.then_some(self.max_tokens * y_stride))
            .grid([across, along_tokens, Extent::N(along_groups)])
            .with_bytes(bytes(piece) + up.map_or(0, bytes))
            .with_flops(super::per_token(flops))
            .with_shape(shape)
            .with_counts(self.experts.as_ref().and_then(GpuExperts::own_counts))
    }

    /// Fails unless what is multiplied goes together.
    fn check(&self) {
        let w = self.weight;
        let name = &w.name;
        assert!(
            self.x_stride.is_multiple_of(4) && self.x_group_stride.is_multiple_of(4),
            "{name}: rows of whole vectors"
        );
        let plain = self.up.is_none() && self.experts.is_none();
        assert!(
            self.residual.is_none() || plain,
            "{name}: a residual is for one plain weight"
        );
        let whole = plain && self.residual.is_none() && w.groups == 1;
        assert!(
            self.split_k == 1 || whole && (w.cols / 32).is_multiple_of(self.split_k),
            "{name}: {} ranges of the columns of one weight",
            self.split_k
        );
        if let Some(up) = self.up {
            assert_eq!(
                (w.groups, w.rows, w.cols, w.pieces.len()),
                (up.groups, up.rows, up.cols, up.pieces.len()),
                "{name} and {}",
                up.name
            );
            assert!(
                w.groups == 1 || self.experts.is_some(),
                "{name}: a pair has experts or one group"
            );
        }
        let places = self.max_tokens * self.used();
        let rows = w.pieces.iter().map(|p| p.rows).max().unwrap_or(0);
        assert!(
            rows.div_ceil(16) <= MAX_GRID && places.div_ceil(16) + w.groups <= MAX_GRID,
            "{name}: workgroups along one dimension"
        );
    }
}

#[cfg(test)]
mod tests;
