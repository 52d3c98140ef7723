//! The queries of one token in one dispatch: `attn_q_b` and, of each head, `attn_k_b` or the rotation
//! (DeepSeek-V2 paper, section 2.1: the key's up-projection absorbed into the query); and the cache's new row beside them.

use super::MlaDims;
use super::rope_cache::{CacheRow, ROW_SUBGROUPS, rotate_rows};
use super::sequences::Sequences;
use super::token::{TokenInput, kernel, weight};
use super::token_matvec::token_matvec;
use crate::gpu::Target;
use crate::gpu::buffer::Range;
use crate::gpu::call::{Call, Extent, Word};
use crate::gpu::geometry::WHOLE_THREADS;
use crate::gpu::machine::geometries::{NARROW_LANES, divide_well};
use crate::gpu::machine::{Machine, Repeated};
use crate::gpu::memory::GpuWeight;
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;

/// How the workgroups divide a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Division {
    /// Workgroups of a head that repeat its q_nope and share the rows of `attn_k_b`.
    slices: u32,
    /// Threads of a workgroup.
    threads: u32,
    /// Threads that share a row of `attn_q_b`: a power of two.
    lanes: u32,
    /// Threads that share a row of `attn_k_b`: a power of two, at most 8.
    k_lanes: u32,
    /// Lanes of a subgroup at least.
    subgroup: u32,
    /// Units of a row of `attn_q_b` that a thread asks for at once.
    unroll: u32,
}

/// The facts that the pipeline depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct Shape {
    /// The type of `attn_q_b`.
    pub ty: GgmlType,
    /// Units of 32 weights, per row of `attn_q_b`.
    pub units: u32,
    pub dims: MlaDims,
    /// Whether a workgroup of its own writes the cache's new row.
    pub cache: bool,
    /// The most tokens of a step.
    pub tokens: u32,
}

impl Shape {
    /// The additional work of this machine's busiest core, against all cores sharing both products evenly.
    pub(crate) fn repeated(&self, machine: Machine) -> Option<Repeated> {
        let slices = u64::from(self.division(machine)?.slices);
        let cores = u64::from(machine.cores.max(1));
        let dims = self.dims;
        let [heads, nope, rope, kv_lora] =
            [dims.heads, dims.nope, dims.rope, dims.kv_lora].map(|n| n as u64);
        let cols = u64::from(self.units) * 32;
        // The weights that an absorbing workgroup multiplies, and all workgroups.
        let own = nope * cols + kv_lora.div_ceil(slices) * nope;
        let all = heads * (slices * own + rope * cols);
        let once = heads * ((nope + rope) * cols + kv_lora * nope);
        let weights = own.max(all / cores) - once / cores;
        Some(Repeated {
            weights,
            bytes: weights * self.ty.block_bytes() as u64 / self.ty.block_len() as u64,
        })
    }

    /// The default on this machine; `None` where the kernel does not suit it.
    pub fn division(&self, machine: Machine) -> Option<Division> {
        let dims = self.dims;
        let k_units = dims.nope as u32 / 32;
        let suits = k_units > 0
            && dims.nope.is_multiple_of(32)
            && dims.kv_lora.is_multiple_of(32)
            && dims.rope.is_multiple_of(2)
            && dims.rope > 0;
        let most = match self.tokens {
            1 => machine.tuned.absorb_threads,
            _ => machine.tuned.absorb_threads_of_several,
        };
        let most = match self.cache {
            true => most.min(ROW_SUBGROUPS * machine.lanes),
            false => most,
        };
        let threads = 1 << most.min(machine.threads).checked_ilog2()?;
        let most = machine.lanes.min(NARROW_LANES);
        let lanes = (1..=most.checked_ilog2()?).rev().map(|power| 1 << power);
        let good = |lanes: &u32| divide_well(self.units, *lanes);
        let lanes = lanes.clone().find(good).or(lanes.min())?;
        let k_lanes = 1 << k_units.min(8).min(machine.lanes).checked_ilog2()?;
        let widest = dims.nope.max(dims.rope) as u32;
        // The fewest threads that need no more passes over the rows of a head (measured: benches/notes.md,
        // "`token_absorb` in workgroups of 768 threads").
        let passes = widest.div_ceil(threads / lanes);
        let needed = widest.div_ceil(passes) * lanes;
        let threads = threads.min(needed.max(widest).next_multiple_of(WHOLE_THREADS));
        let share = self.units.div_ceil(lanes);
        let of_core = match self.tokens {
            2.. if self.tokens >= machine.tuned.absorb_more_of => 2,
            _ => 1,
        };
        (suits && threads >= WHOLE_THREADS && threads >= widest).then_some(Division {
            // Beside the workgroup that rotates.
            slices: (of_core * machine.spread() / (dims.heads as u32 * self.tokens))
                .saturating_sub(1)
                .max(1),
            threads,
            lanes,
            k_lanes,
            subgroup: machine.lanes,
            // In equal goes.
            unroll: share.div_ceil(share.div_ceil(machine.tuned.absorb_units)),
        })
    }
}

/// The additional work of the kernel's workgroups, against products of their own for `q_b` and `k_b`, with the cache's row in the
/// same grid or without; `None` where the kernel is not for these weights on this device.
pub fn repeated(
    target: &Target,
    [q_b, k_b]: [&GpuWeight; 2],
    dims: MlaDims,
    cache: bool,
) -> Option<Repeated> {
    let shape = Shape {
        ty: q_b.ty,
        units: q_b.cols / 32,
        dims,
        cache,
        tokens: 1,
    };
    let whole = q_b.cols.is_multiple_of(32) && [q_b, k_b].iter().all(|w| w.pieces.len() == 1);
    shape.repeated(target.machine).filter(|_| whole)
}

/// The queries on the device.
pub struct GpuTokenAbsorb<'a> {
    /// `attn_q_b`, (heads * (nope + rope), n).
    pub q_b: &'a GpuWeight,
    /// `attn_k_b`, (heads, kv_lora, nope).
    pub k_b: &'a GpuWeight,
    /// The form of prepared values.
    pub activation: Activation,
    /// x, (tokens, n).
    pub x: TokenInput,
    /// Cosine and sine, (n_ctx, rope / 2).
    pub rope_table: Range,
    /// The sizes of the block.
    pub dims: MlaDims,
    /// Absorbed queries, (tokens, heads, kv_lora) f32.
    pub q_lat: Range,
    /// Rotated queries, (tokens, heads, rope) f32.
    pub q_pe: Range,
    /// The cache's new row, where it is written here.
    pub row: Option<CacheRow>,
    /// The place of the new row, if the token belongs to one of several sequences.
    pub sequences: Option<Sequences>,
    /// The most tokens of a step. Several have a table, and do not write their rows here.
    pub tokens: u32,
}

impl GpuTokenAbsorb<'_> {
    /// The dispatch, divided as on `machine`.
    ///
    /// # Panics
    /// If the weights are none that the kernel is for ([`repeated`]).
    pub fn call(&self, machine: Machine) -> Call {
        let (q_b, k_b, dims) = (self.q_b, self.k_b, self.dims);
        let shape = Shape {
            ty: q_b.ty,
            units: q_b.cols / 32,
            dims,
            cache: self.row.is_some(),
            tokens: self.tokens,
        };
        let pieces = (&q_b.pieces[..], &k_b.pieces[..]);
        let (Some(division), ([q_piece], [k_piece])) = (shape.division(machine), pieces) else {
            panic!("{} and {} for {dims:?}", q_b.name, k_b.name);
        };
        assert!(
            q_b.total_rows() as usize == dims.heads * dims.head()
                && [k_b.groups, k_b.rows, k_b.cols].map(|n| n as usize)
                    == [dims.heads, dims.kv_lora, dims.nope],
            "{} and {} for {dims:?}",
            q_b.name,
            k_b.name
        );
        let rows = u32::from(self.row.is_some());
        let places = [division.slices + 1, dims.heads as u32 + rows].map(Extent::N);
        let weights = [q_b, k_b].map(|w| u64::from(w.total_rows()) * u64::from(w.cols));
        let call = self
            .divided(division)
            .planes(["w_q", "w_s"], q_piece)
            .planes(["k_q", "k_s"], k_piece)
            .bind("angles", &self.rope_table)
            .bind("q_lat", &self.q_lat)
            .bind("q_pe", &self.q_pe)
            .word("sub", q_piece.sub)
            .word("k_sub", k_piece.sub)
            .grid(match self.tokens {
                1 => [places[0], places[1], Extent::N(1)],
                _ => [Extent::Tokens, places[0], places[1]],
            })
            .with_bytes(q_b.bytes() + k_b.bytes())
            .with_flops(super::once(2 * weights.iter().sum::<u64>()))
            .with_shape(format!("{}+{}", q_b.shape(), k_b.shape()));
        let call = self.x.bind(call);
        match &self.row {
            Some(row) => {
                let call = Sequences::bind_pages(self.sequences.as_ref(), call);
                row.bind(call, dims, division.threads)
            }
            None => match self.table() {
                Some(table) => call.bind("table", table).flag("SEVERAL", true),
                None => call.word("pos", Word::Pos),
            },
        }
    }

    /// The table of the places of several tokens.
    fn table(&self) -> Option<&Range> {
        if self.tokens == 1 {
            return None;
        }
        assert!(self.row.is_none(), "rows of {} tokens", self.tokens);
        let table = self.sequences.as_ref().and_then(Sequences::table);
        Some(table.expect("several tokens have a table"))
    }

    /// The kernel in this division, with nothing bound yet.
    fn divided(&self, division: Division) -> Call {
        let (threads, lanes, unroll) = (division.threads, division.lanes, division.unroll);
        let k_lanes = division.k_lanes;
        let (dims, activation, units) = (self.dims, self.activation, self.q_b.cols / 32);
        let [nope, rope, kv_lora] = [dims.nope, dims.rope, dims.kv_lora].map(|n| n as u32);
        let k_rows = kv_lora.div_ceil(division.slices);
        let call = kernel("token_absorb", activation);
        let call = weight(call, ["WEIGHT", "WEIGHT_TIMES"], self.q_b.ty, activation);
        weight(call, ["K_WEIGHT", "K_TIMES"], self.k_b.ty, activation)
            .number("WG", threads)
            .number("LANES", lanes)
            .number("UNROLL", unroll)
            .number("UNITS", units)
            .number("PASSES", nope.max(rope).div_ceil(threads / lanes))
            .number("MOST_ROWS", nope.max(rope).next_multiple_of(4))
            .flag("RAGGED", !units.is_multiple_of(lanes * unroll))
            .flag("ONE_BLOCK", lanes * unroll >= units)
            .number("SQUARES", (2 * units).div_ceil(division.subgroup))
            .number("HEADS", dims.heads as u32)
            .number("NOPE", nope)
            .number("ROPE", rope)
            .number("KV_LORA", kv_lora)
            .number("HEAD_SLICES", division.slices)
            .number("K_ROWS", k_rows)
            .number("K_LANES", k_lanes)
            .number("K_PASSES", k_rows.div_ceil(threads / k_lanes))
            .number("K_UNROLL", (nope / 32).div_ceil(k_lanes))
    }
}

/// The absorbed queries (heads, kv_lora) and the rotated ones (heads, rope) of one token.
///
/// `q_b` (heads * (nope + rope), n) times `x` (n) over its root mean square, where `rms` are sums of squares of 16 values of it
/// before the norm's weight, and the norm's epsilon; `k_b` (heads, kv_lora, nope) times what `keep` makes of a head's first
/// nope values; the others rotated by `angles`, (rope / 2) of cosine and sine.
pub fn token_absorb(
    [q_b, k_b]: [&Weight; 2],
    x: &[f32],
    rms: Option<(&[f32], f32)>,
    angles: &[[f32; 2]],
    dims: MlaDims,
    keep: impl Fn(&[f32]) -> Vec<f32>,
) -> [Vec<f32>; 2] {
    let q = token_matvec(q_b, x, 0, rms, None);
    let heads = || q.chunks_exact(dims.head()).map(|q| q.split_at(dims.nope));
    let kept: Vec<f32> = heads().flat_map(|(nope, _)| keep(nope)).collect();
    let q_lat = token_matvec(k_b, &kept, dims.nope / 32, None, None);
    let mut q_pe: Vec<f32> = heads().flat_map(|(_, pe)| pe.to_vec()).collect();
    rotate_rows(&mut q_pe, 0, dims.rope, angles);
    [q_lat, q_pe]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::machine::Profile;
    use crate::gpu::testing::{some_waves, token_gpus};
    use crate::kernels::CacheType;
    use crate::kernels::cases::attention::GLM;
    use crate::kernels::cases::token_absorb::{Absorbed, cases};
    use crate::kernels::testing::{agree, agree_everywhere};

    #[test]
    fn the_kernel_agrees_with_its_twin() {
        agree(token_gpus(), |_| cases());
    }

    const OF_GLM: Absorbed = Absorbed {
        types: [GgmlType::Q4_0; 2],
        cols: 768,
        dims: GLM,
        cores: Some(132),
    };

    #[test]
    fn each_token_has_its_own_queries_in_larger_subgroups() {
        agree_everywhere(&some_waves(), |_| vec![OF_GLM.of_several()]);
    }

    #[test]
    #[ignore = "long: scripts/test --all"]
    fn the_kernel_agrees_in_larger_subgroups() {
        agree_everywhere(&some_waves(), |_| vec![OF_GLM.of_one(true)]);
    }

    #[test]
    fn work_is_repeated_where_that_costs_less_than_a_dispatch() {
        let shape = |units, [heads, nope]: [usize; 2]| Shape {
            ty: GgmlType::Q4_0,
            units,
            dims: MlaDims {
                heads,
                nope,
                rope: 64,
                kv_lora: 512,
                cache: CacheType::F16,
            },
            cache: false,
            tokens: 1,
        };
        let (glm, youtu) = (shape(24, [20, 192]), shape(48, [16, 128]));
        // Cores -> slices of a head, and whether GLM-4.7-Flash and Youtu-LLM-2B repeat.
        for (profile, cores, slices, expected) in [
            (Profile::Nvidia, 132, [5, 7], [true, true]),
            (Profile::Apple, 8, [1, 1], [true, true]),
            (Profile::Apple, 32, [1, 1], [true, true]),
            (Profile::Apple, 40, [1, 1], [true, true]),
            (Profile::Software, 8, [1, 1], [false, false]),
        ] {
            let machine = Machine::with_cores(profile, cores);
            let shapes = [glm, youtu];
            let found = shapes.map(|s| s.division(machine).expect("it suits").slices);
            assert_eq!(found, slices, "{profile:?}, {cores} cores");
            let found = shapes.map(|s| machine.repeats(s.repeated(machine).expect("it suits")));
            assert_eq!(found, expected, "{profile:?}, {cores} cores");
        }
    }
}
