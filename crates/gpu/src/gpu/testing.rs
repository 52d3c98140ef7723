//! Tools of the kernel tests: one device per tier, and running dispatches to the end.

use super::call::{Call, State};
use super::memory::{GpuWeight, Loader, Piece};
use super::record::Recording;
use super::{Gpu, GpuError, GpuOptions, Tier};
use crate::gpu::buffer::{Buffer, Content, Range, Role};
use crate::gpu::call::Word;
use crate::gpu::wait::Wait;
use crate::gpu::{Most, Step};
use crate::model::Weight;
use crate::quant::GgmlType;
use crate::quant::activation::Activation;
use crate::quant::repack::{plane_bytes, sub_plane_words};
use crate::testing::{self, some};
use std::sync::OnceLock;

pub mod laboratory;
pub mod metal;
pub mod mutants;
pub mod waves;

/// The variable that has the kernel tests run in emulated subgroups of its number of threads, in place of the adapter's.
const WAVES: &str = "GLIMT_TEST_WAVES";

/// Opens a device with these options. It emulates what the environment asks the tests of kernels to emulate.
pub fn open(options: &GpuOptions) -> Result<Gpu, GpuError> {
    let gpu = Gpu::open(options).wait()?;
    if let Some(math) = metal::wanted() {
        return Ok(metal::pretending(gpu, math));
    }
    Ok(match std::env::var(WAVES) {
        Ok(size) => waves::emulating(gpu, size.parse().expect(WAVES)),
        Err(_) => gpu,
    })
}

/// Threads of an emulated subgroup.
pub const WAVE_SIZES: [u32; 3] = [16, 32, 64];

/// [`waves()`] in two tiers. The size of their subgroups is drawn for each tier.
pub fn some_waves() -> Vec<Gpu> {
    let each = [Tier::Subgroup, Tier::Int8].map(|tier| waves(tier, &some(&WAVE_SIZES, 1)));
    each.into_iter().flatten().collect()
}

/// The first adapter in a tier in emulated subgroups of each of these sizes, where it is software.
pub fn waves(tier: Tier, sizes: &[u32]) -> Vec<Gpu> {
    let options = GpuOptions {
        tier: Some(tier),
        ..Default::default()
    };
    let emulating = |size| match Gpu::open(&options).wait() {
        Ok(gpu) if gpu.info.device_type == wgpu::DeviceType::Cpu => {
            Some(waves::emulating(gpu, size))
        }
        Ok(_) | Err(GpuError::TierUnsupported { .. }) => {
            eprintln!("skipped: subgroups are emulated on software that has some");
            None
        }
        Err(e) => panic!("the kernel tests need a GPU adapter: {e}"),
    };
    if metal::wanted().is_some() || !laboratory::is_there("emulated subgroups") {
        return vec![];
    }
    sizes.iter().copied().filter_map(emulating).collect()
}

/// The first adapter in the `int8` tier, where it can run it.
pub fn int8_gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let opened = || {
        let options = GpuOptions {
            tier: Some(Tier::Int8),
            ..Default::default()
        };
        match open(&options) {
            Ok(gpu) => Some(gpu),
            Err(GpuError::TierUnsupported { .. }) => {
                eprintln!("skipped: tier int8 (this adapter cannot run it)");
                None
            }
            Err(e) => panic!("the kernel tests need a GPU adapter: {e}"),
        }
    };
    GPU.get_or_init(opened).as_ref()
}

/// The first adapter in the `subgroup` tier with halves multiplied in pairs, where it has f16 in shaders.
pub fn packed_gpu() -> Option<&'static Gpu> {
    static GPU: OnceLock<Option<Gpu>> = OnceLock::new();
    let opened = || {
        let options = GpuOptions {
            tier: Some(Tier::Subgroup),
            packed_halves: Some(true),
            ..Default::default()
        };
        let gpu = open(&options).ok();
        let gpu = gpu.filter(|gpu| gpu.activation() == Activation::Halves { packed: true });
        if gpu.is_none() {
            eprintln!("skipped: halves in pairs (this adapter has no f16 in shaders)");
        }
        gpu
    };
    GPU.get_or_init(opened).as_ref()
}

/// The devices whose tiers prepare the outputs of a decoded token's products: in `subgroup` as halves, multiplied one by one and
/// in pairs, in `int8` as bytes.
pub fn token_gpus() -> Vec<&'static Gpu> {
    let prepares = |gpu: &&Gpu| gpu.tier.has_subgroups();
    let halves = gpus().iter().filter(prepares).chain(packed_gpu());
    halves.chain(int8_gpu()).collect()
}

/// The devices of [`token_gpus`] and the one in tier `plain`: the devices of the products of few tokens.
pub fn all_gpus() -> Vec<&'static Gpu> {
    let plain = gpus().iter().filter(|gpu| !gpu.tier.has_subgroups());
    plain.chain(token_gpus()).collect()
}

/// Devices of the tiers `subgroup` and `int8`, opened anew, with bindings of up to `max_binding` bytes.
pub fn token_gpus_with_binding(max_binding: u64) -> Vec<Gpu> {
    let opened = |tier| {
        open(&GpuOptions {
            tier: Some(tier),
            max_binding: Some(max_binding),
            ..Default::default()
        })
    };
    let tiers = [Tier::Subgroup, Tier::Int8];
    tiers
        .into_iter()
        .filter_map(|tier| opened(tier).ok())
        .collect()
}

/// The first adapter opened in every tier of the float kernels that it can run (`int8` shares those of `subgroup`). A machine without an adapter fails the tests: they would prove nothing.
pub fn gpus() -> &'static [Gpu] {
    static GPUS: OnceLock<Vec<Gpu>> = OnceLock::new();
    GPUS.get_or_init(|| {
        let opened = |tier| {
            open(&GpuOptions {
                tier: Some(tier),
                packed_halves: Some(false),
                ..Default::default()
            })
        };
        let gpus: Vec<_> = [Tier::Plain, Tier::Subgroup]
            .into_iter()
            .filter_map(|tier| match opened(tier) {
                Ok(gpu) => Some(gpu),
                Err(GpuError::TierUnsupported { .. }) => {
                    eprintln!("skipped: tier {} (this adapter cannot run it)", tier.name());
                    None
                }
                Err(e) => panic!("the kernel tests need a GPU adapter: {e}"),
            })
            .collect();
        assert!(!gpus.is_empty(), "no tier runs on this adapter");
        gpus
    })
}

/// Has a failure of this test tell of `calls`: kernel, types and shape of each, the tokens of `state`, and the tier.
pub fn tell(gpu: &Gpu, calls: &[Call], state: &State) {
    let mut text = String::new();
    for call in calls {
        text += &format!("kernel: {}", call.about().label);
        for (name, word) in &call.words {
            match word {
                Word::U(value) => text += &format!(", {name} {value}"),
                Word::F(value) => text += &format!(", {name} {value}"),
                _ => {}
            }
        }
        text.push('\n');
    }
    if state.tokens > 0 {
        text += &format!("tokens: {} at {}\n", state.tokens, state.pos);
    }
    let activation = gpu.activation().name();
    testing::dispatched(format!("{text}tier: {} ({activation})\n", gpu.tier.name()));
}

/// Runs `calls` once for `state` and waits.
#[track_caller]
pub fn run(gpu: &Gpu, calls: &[Call], state: &State) {
    run_of(gpu, calls, Most::of(state), state);
}

/// Runs `calls` once for `state`, recorded for replays of up to `most`, and waits.
#[track_caller]
pub fn run_of(gpu: &Gpu, calls: &[Call], most: Most, state: &State) {
    let recorded = Recorded::new(gpu, calls, most, state);
    recorded.submit(gpu, state);
    gpu.done()
        .wait()
        .unwrap_or_else(|e| panic!("{}: {e}", gpu.tier.name()));
}

/// Calls ready to be replayed, on the device or as Metal's source on the CPU.
pub enum Recorded {
    /// A recording on the device.
    Device(Recording),
    /// A step on the CPU.
    Metal(Step, metal::Math),
}

impl Recorded {
    /// The recording of `calls`, for replays of up to `most`; a failure tells of them and of `state`.
    #[track_caller]
    pub fn new(gpu: &Gpu, calls: &[Call], most: Most, state: &State) -> Self {
        tell(gpu, calls, state);
        let step = Step::of(most, calls.iter().cloned());
        match gpu.metal {
            Some(math) => Self::Metal(step, math),
            None => Self::Device(
                Recording::new(gpu, &step)
                    .wait()
                    .unwrap_or_else(|e| panic!("{}: {e}", gpu.tier.name())),
            ),
        }
    }

    /// Replays them once.
    #[track_caller]
    pub fn submit(&self, gpu: &Gpu, state: &State) {
        match self {
            Self::Device(recording) => drop(recording.submit(gpu, state)),
            Self::Metal(step, math) => metal::replay(gpu, *math, step, state),
        }
    }
}

/// A storage buffer with `data`.
#[track_caller]
pub fn upload<T: Content>(gpu: &Gpu, data: &[T]) -> Buffer {
    gpu.storage_with("test", data)
        .wait()
        .unwrap_or_else(|e| panic!("{e}"))
}

/// An output buffer of `n` floats full of NaN, so that a value never written cannot pass.
#[track_caller]
pub fn output(gpu: &Gpu, n: usize) -> Buffer {
    upload(gpu, &vec![f32::NAN; n])
}

/// The first `n` values of a buffer.
#[track_caller]
pub fn download<T: bytemuck::Pod>(gpu: &Gpu, buffer: &Buffer, n: usize) -> Vec<T> {
    gpu.read(buffer, 0, (n * size_of::<T>()) as u64)
        .wait()
        .unwrap_or_else(|e| panic!("{e}"))
}

/// Weights on the device, cut alike.
#[track_caller]
pub fn gpu_weights(gpu: &Gpu, weights: &[&Weight]) -> Vec<GpuWeight> {
    let mut loader = Loader::new(gpu);
    loader.add_alike(weights).unwrap_or_else(|e| panic!("{e}"));
    loader
        .load(gpu, &mut |_| {})
        .wait()
        .unwrap_or_else(|e| panic!("{e}"))
}

/// A weight that no device has.
pub fn unmade_weight(ty: GgmlType, groups: u32, rows: u32, cols: u32) -> GpuWeight {
    let (all, width) = ((groups * rows) as usize, cols as usize);
    let (codes, scales) = plane_bytes(ty, all, width);
    let plane = |bytes, role| Range::whole(&Buffer::new("plane", bytes as u64, role));
    GpuWeight {
        name: "weight".to_owned(),
        ty,
        groups,
        rows,
        cols,
        pieces: vec![Piece {
            first_row: 0,
            rows: groups * rows,
            quants: plane(codes, Role::Codes(ty)),
            scales: plane(scales, Role::Scales(ty)),
            sub: sub_plane_words(ty, all, width) as u32,
        }],
    }
}

/// Fails unless the calls fit replays of `tokens` tokens but for what is bound to `binding` of `kernel`.
#[track_caller]
pub fn assert_refused(calls: &[Call], tokens: u32, kernel: &str, binding: &str) {
    let most = Most {
        tokens,
        context: tokens,
    };
    match Step::of(most, calls.iter().cloned()).resolve() {
        Err(GpuError::Interface {
            kernel: found,
            what,
        }) => {
            assert_eq!(found, kernel, "{what}");
            let begin = format!("binding {binding} @");
            assert!(what.starts_with(&begin), "{kernel}: {what}");
        }
        other => panic!("{kernel}: {:?}", other.map(|_| "nothing is refused")),
    }
}

/// A weight on the device.
#[track_caller]
pub fn gpu_weight(gpu: &Gpu, weight: &Weight) -> GpuWeight {
    gpu_weights(gpu, &[weight]).remove(0)
}
