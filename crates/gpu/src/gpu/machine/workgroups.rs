//! Threads of the workgroups of small kernels.
//!
//! The WGSL of these kernels takes any number of threads. Each number is a multiple of 64, the lanes of the largest subgroups. None is above
//! 256, which every device runs. All are reckoned.

/// `accept_drafts`, one workgroup for each part.
pub(crate) const ACCEPT_DRAFTS: u32 = 256;
/// `batch_combine`, a workgroup for each token.
pub(crate) const BATCH_COMBINE: u32 = 256;
/// `copy_rows`, a workgroup for each row.
pub(crate) const COPY_ROWS: u32 = 64;
/// `expert_fill`, a workgroup for each part of an expert.
pub(crate) const EXPERT_FILL: u32 = 256;
/// Vectors of 16 bytes that a thread of `expert_fill` asks for at once.
pub(crate) const EXPERT_FILL_LOADS: u32 = 8;
/// `expert_part`, which stands beside other dispatches.
pub(crate) const EXPERT_PART: u32 = 256;
/// Vectors of 16 bytes that a thread of `expert_part` asks for at once.
pub(crate) const EXPERT_PART_LOADS: u32 = 8;
/// Workgroups of `expert_part` for experts in host memory. Together they ask for 512 kB at once: 8 workgroups are too few (measured on an H200).
pub(crate) const EXPERT_PART_MISSING: u32 = 16;
/// Workgroups of `expert_part` for experts that have slots.
pub(crate) const EXPERT_PART_KEEPING: u32 = 16;
/// `expert_places`, one workgroup. A thread holds an expert, of which there are at most 256.
pub(crate) const EXPERT_PLACES: u32 = 256;
/// `expert_rows`, a workgroup for each expert.
pub(crate) const EXPERT_ROWS: u32 = 256;
/// Slots of which a thread of `expert_rows` asks for the experts at once.
pub(crate) const EXPERT_SLOTS: u32 = 4;
/// `expert_sources`, one workgroup.
pub(crate) const EXPERT_SOURCES: u32 = 256;
/// `grouped_rows`, a workgroup for each head.
pub(crate) const GROUPED_ROWS: u32 = 64;
/// `keep_states`, a workgroup for each token.
pub(crate) const KEEP_STATES: u32 = 256;
/// `moe_combine`, a thread for each vector of 4 values.
pub(crate) const MOE_COMBINE: u32 = 128;
/// `nextn_input`, a workgroup for each half of a token's row.
pub(crate) const NEXTN_INPUT: u32 = 256;
/// `read`, which measures a device's memory.
pub(crate) const READ: u32 = 256;
/// `rope_cache`, a workgroup for each head and cache row.
pub(crate) const ROPE_CACHE: u32 = 128;
/// `rows_f16`, a workgroup for each row.
pub(crate) const ROWS_F16: u32 = 128;
/// `token_router`, a workgroup for each expert.
pub(crate) const TOKEN_ROUTER: u32 = 256;
