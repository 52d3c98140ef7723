//! The results of tuning.

use serde::Serialize;

use crate::gpu::geometry::{Geometry, Made};

/// The result for a product.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Found {
    /// The product.
    pub site: String,
    /// Dispatches of it per token.
    pub calls: u32,
    /// Candidates that were measured.
    pub candidates: usize,
    /// The geometry that is used if nothing else is chosen.
    pub default: Geometry,
    /// The best one; the default where nothing was clearly faster.
    pub chosen: Geometry,
    /// Microseconds of a whole token with the default.
    pub default_us: f64,
    /// Microseconds of a whole token with the chosen one.
    pub chosen_us: f64,
}

/// A token whose workgroups repeat small work, and one with dispatches that do it once
/// ([`Target::repeats_work`](crate::gpu::Target::repeats_work)).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Repeating {
    /// Microseconds of the former.
    pub repeated_us: f64,
    /// Microseconds of the latter.
    pub once_us: f64,
    /// Microseconds of what is used if nothing else is chosen: each kind of work repeated where that is computed to cost less.
    pub default_us: f64,
    /// The faster, where one is clearly faster than the default.
    pub chosen: Option<bool>,
}

/// The two ways of joining the attention's slices at a depth.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Joining {
    /// Cache rows.
    pub depth: usize,
    /// Slices that they are cut into.
    pub slices: u32,
    /// Microseconds of a whole token where `attn_v_b` joins them.
    pub inside_us: f64,
    /// Microseconds of a whole token where a dispatch before it does.
    pub apart_us: f64,
}

/// The result for a number of [`Tunables`](crate::gpu::machine::Tunables).
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct FoundNumber {
    /// The name of the number.
    pub name: String,
    /// The value that the device starts with.
    pub default: u32,
    /// The best one; the default where nothing was clearly faster.
    pub chosen: u32,
    /// Microseconds of a whole token with the default.
    pub default_us: f64,
    /// Microseconds of a whole token with the chosen one.
    pub chosen_us: f64,
}

/// The results for a model on a device.
#[derive(Debug, Clone, Serialize)]
pub struct Tuned {
    /// The adapter's name.
    pub gpu_info: String,
    /// The model.
    pub model: String,
    /// The type of the cache.
    pub cache_type: &'static str,
    /// Tier of the kernels.
    pub tier: &'static str,
    /// The clock that told the times: `gpu`, or `host` where the GPU's timestamps are missing or wrong.
    pub clock: &'static str,
    /// Microseconds of a token on the GPU with the defaults, measured at the end.
    pub before_us: f64,
    /// Microseconds of a token on the GPU with the choices, measured in turn with the defaults.
    pub after_us: f64,
    /// The results by product, in the order of measuring.
    pub found: Vec<Found>,
    /// Products whose turn did not come.
    pub left: Vec<String>,
    /// Whether workgroups repeat small work.
    pub repeating: Repeating,
    /// Numbers of the device by which a token's step changes, in the order of measuring.
    pub numbers: Vec<FoundNumber>,
    /// Slices up to which `attn_v_b` joins them itself, where that was measured.
    pub merge_up_to: Option<u32>,
    /// The ways of joining the attention's slices, by depth; none where time ran out.
    pub joining: Vec<Joining>,
    /// Whether all choices together beat the defaults; if not, nothing is worth keeping.
    pub faster: bool,
    /// The choices: those that differ from the defaults.
    #[serde(skip)]
    pub made: Made,
    /// The device.
    #[serde(skip)]
    pub adapter: wgpu::AdapterInfo,
}
