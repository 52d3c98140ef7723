//! How the kernels of a decoded token divide rows among threads, as data: defaults by shape, candidates to measure, and the
//! choices that were made for a device in place of the defaults.
//!
//! The numbers behind the defaults are in `machine/geometries.rs`. They were measured on an H200, mostly by the time of a whole token
//! (benches/notes.md).

use super::machine::Machine;
use super::machine::geometries::{
    FEW_LANES, LANES, NARROW_LANES, ROWS_AT_ONCE, SHARING, SHORT_UNITS, divide_well,
};
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, RwLock, RwLockReadGuard};

pub use super::machine::geometries::Geometry;

/// Work that the threads of a workgroup share, and that each workgroup repeats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedWork {
    /// Joining the slices of the attention.
    Slices,
    /// Adding up the partial router logits.
    RouterSums,
}

impl SharedWork {
    /// Rows of a workgroup that are worth the work.
    pub fn rows(self, machine: Machine, activation: Activation) -> u32 {
        let tuned = machine.tuned;
        match self {
            Self::Slices => tuned.merge_rows,
            Self::RouterSums if activation.is_halves() => tuned.router_sum_rows_of_halves,
            Self::RouterSums => tuned.router_sum_rows,
        }
    }
}

/// A product whose geometry is to be chosen: what names it, and what its kernel demands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Site {
    /// The kernel, and what of its variant weighs on the choice.
    pub kernel: &'static str,
    /// The types of its weights.
    pub types: Vec<GgmlType>,
    /// The shape of its weight, such as `20x256x512`.
    pub shape: String,
    /// Rows in all.
    pub rows: u32,
    /// Units of 32 weights that the threads of a row share.
    pub units: u32,
    /// The form of its input.
    pub activation: Activation,
    /// Whether rows leave prepared for another product: by 16, which share a scale or a sum of squares.
    pub prepared: bool,
    /// Rows that a workgroup owns together: pairs, quads, or 1.
    pub together: u32,
    /// A number of rows that tiles must divide.
    pub whole: Option<u32>,
    /// The fewest and the most threads of a workgroup.
    pub threads: [u32; 2],
    /// Whether a thread must hold its whole share of a row at once.
    pub one_block: bool,
    /// Most rows that the same threads can multiply at once.
    pub at_once: u32,
    /// The work that the threads of a workgroup share before they multiply, if there is some.
    pub shares_work: Option<SharedWork>,
    /// Whether a thread multiplies by two weights at once, as gate and up.
    pub pair: bool,
    /// Whether two runs of 32 lanes can share a row, as 64 lanes.
    pub two_runs: bool,
    /// Sums that a thread leaves in workgroup memory for each of its rows, where no subgroup joins them. It is 0 where one does.
    pub thread_sums: u32,
    /// The geometry to take by default where the device allows it.
    pub suggested: Option<Geometry>,
}

/// Rows that leave together where they leave prepared.
pub const PREPARED_ROWS: u32 = 16;
/// Subgroups have up to 64 lanes, and workgroups are whole subgroups.
pub const WHOLE_THREADS: u32 = 64;
/// Lanes of a run. Two runs may share a row.
pub const RUN_LANES: u32 = 32;
/// Bytes of workgroup memory that are left to a kernel for everything but [`Site::thread_sums`].
const BESIDE_SUMS: u64 = 2 << 10;
/// The most units that a thread asks for at once, in any kernel: a bound of what is allowed and tried.
const MOST_UNROLL: u32 = 8;

impl Site {
    /// The key by which [`Choices`] keep a geometry of this site.
    pub fn key(&self) -> String {
        let types: Vec<_> = self.types.iter().map(|ty| ty.name()).collect();
        let (types, activation) = (types.join("+"), self.activation.name());
        let out = if self.prepared { " prepared" } else { "" };
        format!("{} {types} {} {activation}{out}", self.kernel, self.shape)
    }

    /// Whether the kernel is right with this geometry on this machine.
    pub fn allows(&self, g: &Geometry, machine: Machine) -> bool {
        let powers = [g.lanes, g.at_once].iter().all(|n| n.is_power_of_two());
        let Some(lanes_rows) = g.tile.checked_div(g.at_once) else {
            return false;
        };
        let Some(threads) = g.lanes.checked_mul(lanes_rows) else {
            return false;
        };
        let least = self.threads[0].max(WHOLE_THREADS);
        let most = self.threads[1].min(machine.threads);
        // Whether workgroup memory holds the sums of all threads, of each of its rows.
        let sums_fit = || {
            let bytes = 4 * u64::from(g.tile * g.lanes) * u64::from(self.thread_sums);
            bytes == 0 || bytes + BESIDE_SUMS <= u64::from(machine.workgroup_memory)
        };
        powers
            && (2..=self.most_lanes(machine)).contains(&g.lanes)
            && g.at_once <= self.at_once
            && g.tile > 0
            && g.tile.is_multiple_of(g.at_once)
            && threads.is_multiple_of(WHOLE_THREADS)
            && (least..=most).contains(&threads)
            && (!self.prepared || g.tile.is_multiple_of(PREPARED_ROWS))
            && g.tile.is_multiple_of(self.together)
            && self.whole.is_none_or(|rows| rows.is_multiple_of(g.tile))
            && (1..=MOST_UNROLL).contains(&g.unroll)
            && (!self.one_block || g.unroll * g.lanes >= self.units)
            && sums_fit()
    }

    /// Most threads that can share a row.
    fn most_lanes(&self, machine: Machine) -> u32 {
        match self.two_runs && machine.lanes >= RUN_LANES {
            true => 2 * RUN_LANES,
            false if self.thread_sums > 0 => RUN_LANES,
            false => machine.lanes,
        }
    }

    /// Every geometry worth measuring on this machine, each of them right: all divisions in powers of two, with a thread's
    /// share of a row asked for at once or in two goes.
    pub fn candidates(&self, machine: Machine) -> Vec<Geometry> {
        let powers = |most: u32| (0..).map(|i| 1u32 << i).take_while(move |n| *n <= most);
        let mut all = vec![];
        let most = self.most_lanes(machine);
        let widest = most.min(self.units.next_power_of_two()).max(2);
        for lanes in powers(widest) {
            let share = self.units.div_ceil(lanes).min(MOST_UNROLL);
            let mut unrolls = vec![share, share.div_ceil(2)];
            unrolls.dedup();
            for (tile, at_once) in
                powers(256).flat_map(|tile| powers(self.at_once).map(move |n| (tile, n)))
            {
                all.extend(unrolls.iter().map(|&unroll| Geometry {
                    lanes,
                    tile,
                    at_once,
                    unroll,
                }));
            }
        }
        all.retain(|g| self.allows(g, machine));
        all
    }

    /// The default on this machine; `None` where no geometry is allowed.
    pub fn default_geometry(&self, machine: Machine) -> Option<Geometry> {
        if let Some(suggested) = self.suggested.filter(|g| self.allows(g, machine)) {
            return Some(suggested);
        }
        let wanted = self.wanted_lanes(machine);
        // Fewer lanes where the wanted ones make too many threads, more where nothing else is allowed.
        let fewer = (0..).map(|i| wanted >> i).take_while(|n| *n >= 2);
        let more = (1..).map(|i| wanted << i);
        let more = more.take_while(|n| *n <= machine.lanes);
        let mut lanes = fewer.chain(more);
        lanes.find_map(|lanes| self.with_lanes(lanes, machine))
    }

    /// Lanes that leave few threads without work: a thread per unit of a short row (attn_k_b has 6), all lanes where the
    /// units divide well among them, else fewer: 8 for the 24 units of K = 768, 16 for 48. Tall matrices take fewer, and so do workgroups
    /// that share work before. The long rows of all chosen experts take twice 32, where a workgroup may be so large.
    fn wanted_lanes(&self, machine: Machine) -> u32 {
        if self.two_runs
            && self.activation.rounds()
            && self.units >= machine.tuned.two_run_units
            && machine.threads >= PREPARED_ROWS * self.most_lanes(machine)
        {
            return self.most_lanes(machine);
        }
        // With halves two products at once leave too few registers for workgroups of 512 threads.
        let narrow = self.activation.is_halves() && self.pair;
        let tall = self.rows >= machine.tuned.tall_rows;
        let wide = !tall && self.shares_work.is_none() && !narrow;
        let most = if wide { LANES } else { NARROW_LANES }.min(machine.lanes);
        if self.units <= SHORT_UNITS {
            let lanes = self.units.next_power_of_two().clamp(2, most);
            // Half as many for halves, where workgroups do more than multiply: so that each thread has a row, not two at once.
            let halves = self.activation.is_halves() && self.shares_work.is_some();
            return if halves { (lanes / 2).max(2) } else { lanes };
        }
        [LANES, NARROW_LANES]
            .into_iter()
            .find(|lanes| *lanes <= most && divide_well(self.units, *lanes))
            .unwrap_or(FEW_LANES)
            .min(most)
    }

    /// The default for these lanes.
    fn with_lanes(&self, lanes: u32, machine: Machine) -> Option<Geometry> {
        let bytes = self.activation.rounds();
        let halves = self.activation.is_halves();
        let tuned = machine.tuned;
        let tall = self.rows >= tuned.tall_rows;
        let most_unroll = match machine.lanes {
            _ if self.one_block => MOST_UNROLL,
            32.. if halves && tall => tuned.units_after_shared_work,
            32.. if bytes && self.shares_work.is_some() => tuned.units_after_shared_work,
            32.. if bytes => tuned.units_of_bytes,
            32.. => tuned.units_of_floats,
            _ => tuned.units_of_small_subgroups,
        };
        // Two rows at once load the input of a tall matrix half as often; others are bound by latency and want threads.
        let worth = |work: SharedWork| work.rows(machine, self.activation);
        let shared_rows = self.shares_work.map(worth);
        let at_once = match shared_rows {
            _ if tall && bytes && !halves => ROWS_AT_ONCE,
            Some(rows) if rows * lanes > SHARING * tuned.product_threads => ROWS_AT_ONCE,
            _ => 1,
        };
        let at_once = at_once.min(self.at_once);
        // In equal goes.
        let share = self.units.div_ceil(lanes);
        let unroll = share.div_ceil(share.div_ceil(most_unroll.clamp(1, MOST_UNROLL)));
        let tiles = (0..=8).map(|i| Geometry {
            lanes,
            tile: 1 << i,
            at_once,
            unroll,
        });
        let tiles: Vec<_> = tiles.filter(|g| self.allows(g, machine)).collect();
        // Takes the most rows that leave enough workgroups to spread over the device and do not ask for too many threads.
        let (threads, spread) = match self.shares_work {
            Some(_) => (SHARING * tuned.product_threads, machine.spread() / SHARING),
            None => (tuned.product_threads, machine.spread()),
        };
        let good = |g: &&Geometry| {
            g.threads() <= threads
                && self.rows / g.tile >= spread
                && shared_rows.is_none_or(|rows| g.tile <= rows)
        };
        tiles.iter().rev().find(good).or(tiles.first()).copied()
    }
}

/// The geometries that measuring chose for a device in place of the defaults.
#[derive(Debug, Default)]
pub struct Choices {
    made: RwLock<Made>,
    /// Keys of those that were named in the log because they are not allowed.
    named: Mutex<BTreeSet<String>>,
}

/// Choices as data.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Geometries by [`Site::key`].
    pub geometries: BTreeMap<String, Geometry>,
    /// The most slices of the attention that `attn_v_b` joins itself, by [`Activation::name`]: 0 for never;
    /// [`Tunables::merged_slices`](super::machine::Tunables::merged_slices) where nothing is said.
    pub merge_up_to: BTreeMap<String, u32>,
    /// Whether workgroups repeat small work, by [`Activation::name`]: [`Target::repeats_work`](super::Target::repeats_work). Files of
    /// earlier versions have none.
    #[serde(default)]
    pub repeats_work: BTreeMap<String, bool>,
    /// Numbers by name, of [`Tunables`](super::machine::Tunables) in place of the device's. Files of earlier versions have none.
    #[serde(default)]
    pub numbers: BTreeMap<String, u32>,
}

impl Choices {
    /// All choices as data, to keep.
    pub fn made(&self) -> Made {
        self.read().clone()
    }

    /// Replaces all of them. Steps recorded before keep what they were recorded with.
    pub fn replace(&self, made: Made) {
        *self.made.write().unwrap_or_else(|e| e.into_inner()) = made;
    }

    /// Chooses the geometry of one product, for steps recorded from now on.
    pub fn set(&self, site: &Site, geometry: Geometry) {
        let mut made = self.made.write().unwrap_or_else(|e| e.into_inner());
        made.geometries.insert(site.key(), geometry);
    }

    /// Slices of the attention up to which `attn_v_b` joins them itself, where that was chosen.
    pub fn merge_up_to(&self, activation: Activation) -> Option<u32> {
        self.read().merge_up_to.get(activation.name()).copied()
    }

    /// Whether workgroups repeat small work, where that was chosen.
    pub fn repeats_work(&self, activation: Activation) -> Option<bool> {
        self.read().repeats_work.get(activation.name()).copied()
    }

    /// The geometry that was chosen for `site`, if `machine` allows it. A choice that it does not allow is named in the log, once.
    pub(super) fn allowed(&self, site: &Site, machine: Machine, adapter: &str) -> Option<Geometry> {
        let key = site.key();
        let chosen = *self.read().geometries.get(&key)?;
        if site.allows(&chosen, machine) {
            return Some(chosen);
        }
        // Every layer asks for the same choice, so the warning is given once.
        let mut named = self.named.lock().unwrap_or_else(|e| e.into_inner());
        if named.insert(key.clone()) {
            log::warn!("{key}: {chosen:?} is not allowed on {adapter}");
        }
        None
    }

    fn read(&self) -> RwLockReadGuard<'_, Made> {
        self.made.read().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::machine::MAX_THREADS;

    const H200: Machine = Machine::H200;

    fn site(rows: u32, units: u32, prepared: bool) -> Site {
        Site {
            kernel: "token_matvec",
            types: vec![GgmlType::Q4_0],
            shape: format!("{rows}x{}", units * 32),
            rows,
            units,
            activation: Activation::Bytes,
            prepared,
            together: 1,
            suggested: None,
            whole: None,
            threads: [1, MAX_THREADS],
            one_block: false,
            at_once: 2,
            shares_work: None,
            pair: false,
            two_runs: false,
            thread_sums: 0,
        }
    }

    #[test]
    fn the_defaults_of_the_products_of_glm() {
        // Rows, units, prepared -> lanes, tile, rows at once: q_a, kv_a, q_b, k_b, output, router, head of GLM-4.7-Flash.
        for (rows, units, prepared, expected) in [
            (768, 64, true, (32, 16, 1)),
            (576, 64, false, (32, 4, 1)),
            (5120, 24, true, (8, 32, 1)),
            (10240, 6, false, (8, 32, 1)),
            (2048, 160, true, (32, 16, 1)),
            (64, 64, false, (32, 2, 1)),
            (154_880, 64, false, (16, 32, 2)),
        ] {
            let g = site(rows, units, prepared).default_geometry(H200);
            let g = g.expect("a machine allows it");
            assert_eq!((g.lanes, g.tile, g.at_once), expected, "{rows} x {units}");
        }
        let mut v_b = site(5120, 16, true);
        (v_b.whole, v_b.one_block, v_b.shares_work) = (Some(256), true, Some(SharedWork::Slices));
        v_b.threads = [128, 512];
        let g = v_b.default_geometry(H200).expect("it is allowed");
        assert_eq!((g.lanes, g.tile, g.at_once, g.unroll), (16, 64, 2, 1));
        let mut experts = site(7680, 64, true);
        (experts.shares_work, experts.at_once) = (Some(SharedWork::RouterSums), 1);
        let g = experts.default_geometry(H200).expect("it is allowed");
        assert_eq!((g.lanes, g.tile, g.at_once, g.unroll), (16, 32, 1, 2));
        let mut down = site(2048, 192, true);
        (down.two_runs, down.at_once) = (true, 1);
        for (threads, lanes) in [(1024, 64), (512, 32)] {
            let machine = Machine { threads, ..H200 };
            let g = down.default_geometry(machine).expect("it is allowed");
            assert_eq!((g.lanes, g.tile, g.unroll), (lanes, 16, 192 / lanes));
        }
    }

    #[test]
    fn sums_of_threads_fit_workgroup_memory() {
        let machine = Machine {
            workgroup_memory: 16 << 10,
            ..H200
        };
        let mut by_threads = site(2048, 64, true);
        by_threads.thread_sums = 16;
        let bytes = |g: &Geometry| g.tile * g.lanes * 16 * 4 + BESIDE_SUMS as u32;
        let all = by_threads.candidates(machine);
        assert!(all.iter().all(|g| bytes(g) <= 16 << 10));
        assert!(all.iter().any(|g| 2 * bytes(g) > 16 << 10), "much is used");
        let in_subgroups = site(2048, 64, true).candidates(machine);
        assert!(in_subgroups.iter().any(|g| bytes(g) > 16 << 10));
    }

    #[test]
    fn every_shape_has_a_default_among_what_is_allowed() {
        for machine in [(8, 256), (8, 1024), (16, 512), (32, 256), (32, 1024)] {
            let (lanes, threads) = machine;
            let machine = Machine {
                lanes,
                threads,
                ..H200
            };
            for rows in [16, 64, 576, 2048, 5120, 40_000] {
                for units in [1, 4, 6, 16, 24, 44, 48, 64, 342] {
                    for (prepared, activation) in [
                        (false, Activation::Bytes),
                        (true, Activation::Bytes),
                        (true, Activation::Floats),
                    ] {
                        let site = Site {
                            activation,
                            ..site(rows, units, prepared)
                        };
                        let g = site.default_geometry(machine);
                        let g = g.unwrap_or_else(|| panic!("{site:?} on {machine:?}"));
                        assert!(site.allows(&g, machine), "{g:?}");
                        let all = site.candidates(machine);
                        assert!(all.iter().any(|c| (c.lanes, c.tile) == (g.lanes, g.tile)));
                    }
                }
            }
        }
    }

    #[test]
    fn what_a_kernel_cannot_do_is_not_allowed() {
        let good = Geometry {
            lanes: 8,
            tile: 32,
            at_once: 1,
            unroll: 1,
        };
        let site = site(512, 8, true);
        assert!(site.allows(&good, H200));
        for bad in [
            Geometry { lanes: 64, ..good },
            Geometry { lanes: 6, ..good },
            Geometry { lanes: 0, ..good },
            Geometry { tile: 8, ..good },
            Geometry { tile: 0, ..good },
            Geometry { tile: 4096, ..good },
            Geometry { at_once: 4, ..good },
            Geometry { at_once: 0, ..good },
            Geometry { unroll: 0, ..good },
        ] {
            assert!(!site.allows(&bad, H200), "{bad:?}");
        }
    }

    #[test]
    fn choices_are_found_again() {
        let choices = Choices::default();
        assert_eq!(choices.merge_up_to(Activation::Bytes), None);
        let site = site(512, 8, true);
        let chosen = site.candidates(H200)[0];
        choices.set(&site, chosen);
        let mut made = choices.made();
        let key = "token_matvec Q4_0 512x256 bytes prepared";
        assert_eq!(made.geometries[key], chosen);
        let floats = Site {
            activation: Activation::Floats,
            ..site
        };
        assert_ne!(floats.key(), key);
        made.merge_up_to.insert("bytes".to_owned(), 7);
        made.repeats_work.insert("floats".to_owned(), true);
        let other = Choices::default();
        other.replace(made.clone());
        assert_eq!(other.made(), made);
        assert_eq!(other.merge_up_to(Activation::Bytes), Some(7));
        assert_eq!(other.merge_up_to(Activation::Floats), None);
        assert_eq!(other.repeats_work(Activation::Bytes), None);
        assert_eq!(other.repeats_work(Activation::Floats), Some(true));
    }
}
