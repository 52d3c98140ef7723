//! The inner loops of the products of a decoded token, per weight.

use super::{Cost, Region, Steps, count, sum};
use glimt::gpu::buffer::Range;
use glimt::gpu::call::Call;
use glimt::gpu::geometry::{Geometry, Site};
use glimt::gpu::machine::MAX_THREADS;
use glimt::gpu::machine::{Machine, Profile};
use glimt::gpu::pipeline::Spec;
use glimt::gpu::testing::unmade_weight;
use glimt::gpu::{Target, Tier, interface, shader};
use glimt::kernels::router::GpuRouter;
use glimt::kernels::token::Divided;
use glimt::kernels::token::{TokenInput, TokenOutput};
use glimt::kernels::token_absorb::GpuTokenAbsorb;
use glimt::kernels::token_gate_up::GpuTokenGateUp;
use glimt::kernels::token_matvec::{GpuTokenMatvec, Input};
use glimt::kernels::token_moe_down::GpuTokenMoeDown;
use glimt::kernels::{CacheType, MlaDims};
use glimt::model::{Experts, Gating};
use glimt::quant::GgmlType;
use glimt::quant::activation::Activation;
use rayon::prelude::*;
use wgpu::{AdapterInfo, Backend, DeviceType, Features, Limits};

/// A Mac, as far as kernels depend on it.
pub(crate) fn mac() -> Machine {
    let mut info = AdapterInfo::new(DeviceType::IntegratedGpu, Backend::Metal);
    info.name = "Apple M1 Max".to_owned();
    let limits = Limits {
        max_compute_workgroup_storage_size: 32 << 10,
        max_compute_invocations_per_workgroup: MAX_THREADS,
        max_compute_workgroup_size_x: MAX_THREADS,
        ..Limits::default()
    };
    let machine = Machine::new(&info, &limits, Features::SHADER_F16);
    assert_eq!(machine.profile, Profile::Apple);
    machine
}

/// The device that kernels of a token are recorded for: a Mac.
pub(crate) fn target() -> Target {
    Target::new("Apple M1 Max", mac(), Tier::Subgroup)
}

/// The pipeline of a call.
pub(crate) fn spec(call: &Call) -> Spec {
    interface::spec(call).unwrap_or_else(|e| panic!("{e}"))
}

/// Any f32: only what is bound makes a pipeline, not how much.
pub(crate) fn floats() -> Range {
    Range::floats("any", 4)
}

/// An input of any length, with a norm or without.
pub(crate) fn input(norm: bool) -> TokenInput {
    TokenInput {
        values: Range::prepared("any", activation(), 32),
        rms: norm.then(|| (floats(), 1e-5)),
    }
}

/// An output of any length, with a norm or without.
pub(crate) fn output(norm: bool) -> TokenOutput {
    TokenOutput {
        values: Range::prepared("any", activation(), 32),
        norm: norm.then(|| (floats(), floats())),
    }
}

/// The form of prepared values on a Mac.
pub(crate) fn activation() -> Activation {
    Tier::Subgroup.activation(mac().packed_halves)
}

/// The experts of GLM-4.7-Flash.
fn experts() -> Experts {
    Experts {
        count: 64,
        used: 4,
        shared_count: 1,
        feed_forward_length: 1536,
        gating: Gating::Sigmoid,
        weights_norm: true,
        weights_scale: 1.0,
    }
}

/// The products that are counted, by their names in tables.
pub(crate) const PRODUCTS: [&str; 7] = [
    "head",
    "attn_output",
    "attn_k_b",
    "gate, up",
    "moe_down",
    "absorb: q_b",
    "absorb: k_b",
];

/// The cost of a weight in each product: the head (154880 x 2048), `attn_output` (2048 x 5120), `attn_k_b` in a dispatch of its own
/// (heads of 512 x 256), gate and up (1536 x 2048), down (2048 x 1536 for 4 experts) of GLM-4.7-Flash. The passes of a loop count
/// and nothing before and after it, so a geometry is taken in which threads pass through it at least twice. `token_absorb` has no loop
/// with the sizes of any model: what counts is what more columns of either of its weights cost. Inputs of 48 units and more pass through
/// workgroup memory, as with the 32 KiB that Macs have.
pub(crate) fn per_weight(ty: GgmlType) -> [Steps; 7] {
    let (target, activation) = (target(), activation());
    let weight = |groups, rows, cols| unmade_weight(ty, groups, rows, cols);
    let first = |calls: Result<Vec<Call>, _>| match calls {
        Ok(calls) => spec(&calls[0]),
        Err(e) => panic!("{e}"),
    };
    let matvec = |product: &GpuTokenMatvec<'_>| {
        let geometry = looped(&product.site(), product.weight.cols / 32);
        in_loop(&first(product.calls_with(&target, &geometry)), 1, ty)
    };
    let (head, output_weight, k_b) = (
        weight(1, 154_880, 2048),
        weight(1, 2048, 5120),
        weight(20, 512, 256),
    );
    let head = GpuTokenMatvec::new(&head, activation, Input::Prepared(input(true), 0));
    let attn_output =
        GpuTokenMatvec::new(&output_weight, activation, Input::Prepared(input(false), 0))
            .bind("residual", &floats())
            .bind("y", &floats())
            .prepared(output(true));
    let k_b = GpuTokenMatvec::new(&k_b, activation, Input::Prepared(input(false), 8));
    let experts = experts();
    let words = Range::words("any", 4);
    let (routed, shared) = (weight(64, 1536, 2048), weight(1, 1536, 2048));
    let router = GpuRouter {
        logits: floats(),
        partial_sums: 1,
        bias: Some(floats()),
        experts: &experts,
        max_tokens: 1,
        ids: words.clone(),
        weights: floats(),
    };
    let gate_up = GpuTokenGateUp {
        tokens: 1,
        experts: Some(([&routed, &routed], router)),
        given: false,
        raw_logits: false,
        shared: Some([&shared, &shared]),
        activation,
        x: input(true),
        h: output(false).values,
    };
    let (routed, shared) = (weight(64, 2048, 1536), weight(1, 2048, 1536));
    let down = GpuTokenMoeDown {
        share: None,
        tokens: 1,
        down: &routed,
        shared: Some(&shared),
        activation,
        h: output(false).values,
        ids: words,
        weights: floats(),
        used: 4,
        residual: floats(),
        y: floats(),
        prepared: output(true),
    };
    let gate_up_geometry = looped(&gate_up.site(), 64);
    let down_geometry = looped(&down.site(), 4 * 48);
    [
        matvec(&head.bind("y", &floats())),
        matvec(&attn_output),
        matvec(&k_b.bind("y", &floats())),
        in_loop(
            &first(gate_up.calls_with(&target, &gate_up_geometry)),
            2,
            ty,
        ),
        in_loop(&first(down.calls_with(&target, &down_geometry)), 1, ty),
        of_more_columns(ty),
        of_more_columns_of_k_b(ty),
    ]
}

/// The default geometry of a product, but with so few units at once that threads pass through its loop twice or more, and always
/// with all of them.
fn looped(site: &Site, units: u32) -> Geometry {
    let given = site.default_geometry(mac()).expect("a geometry for a Mac");
    let lanes = (1..=given.lanes.ilog2())
        .rev()
        .map(|i| 1 << i)
        .find(|lanes| 2 * lanes <= units && units.is_multiple_of(*lanes))
        .unwrap_or_else(|| panic!("{units} units in two passes"));
    let good = |unroll: &u32| units / lanes > *unroll && (units / lanes).is_multiple_of(*unroll);
    let geometry = Geometry {
        lanes,
        tile: given.tile * given.lanes / lanes,
        unroll: (1..=given.unroll).rev().find(good).expect("one unit"),
        ..given
    };
    assert!(
        site.allows(&geometry, mac()),
        "{geometry:?} of {}",
        site.key()
    );
    geometry
}

pub(crate) fn counted(spec: &Spec) -> super::Counted {
    let text = shader::expand(spec.kernel, spec.source, &spec.variant, Tier::Subgroup);
    let text = text.unwrap_or_else(|e| panic!("{e}")).text;
    let module = naga::front::wgsl::parse_str(&text);
    let module = module.unwrap_or_else(|e| panic!("{}", e.emit_to_string(&text)));
    count(&module).unwrap_or_else(|e| panic!("{} {:?}: {e}", spec.kernel, spec.variant))
}

pub(crate) fn number(spec: &Spec, name: &str) -> u32 {
    spec.variant.consts.get(name).copied().unwrap_or(1)
}

/// Words that a unit of the quants plane is read in: whole vec4, of which two-bit codes and indices of grids use half, or one word.
fn words(ty: GgmlType) -> u32 {
    match ty {
        GgmlType::F32 => 32,
        GgmlType::F16 | GgmlType::BF16 => 16,
        GgmlType::Q8_0 => 8,
        GgmlType::IQ1_S | GgmlType::IQ1_M => 1,
        _ => 4,
    }
}

fn words_of_quants(region: &Region) -> u32 {
    let quants = region.loads.iter().filter(|(name, _)| name.ends_with("_q"));
    quants.map(|(_, words)| words).sum()
}

pub(crate) fn steps(region: &Region, spec: &Spec) -> Steps {
    let steps = region.known().cloned();
    steps.unwrap_or_else(|e| panic!("{} {:?}: {e}", spec.kernel, spec.variant))
}

fn scaled(steps: Steps, units: u32) -> Steps {
    let weights = f64::from(32 * units);
    let each = steps.into_iter();
    each.map(|(what, cost)| (what, cost / weights)).collect()
}

/// The loop of a kernel that reads most of the weights, per weight. It multiplies `products` weights for each input.
fn in_loop(spec: &Spec, products: u32, ty: GgmlType) -> Steps {
    let counted = counted(spec);
    // Takes the dearer of loops that read equally many: the loop of the shared expert's rest does less than that of the chosen ones.
    let all = counted.loops.iter();
    let hot = all.max_by(|a, b| {
        let cycles = |l: &Region| sum(&l.steps).cycles();
        let words = words_of_quants(a).cmp(&words_of_quants(b));
        words.then(cycles(a).total_cmp(&cycles(b)))
    });
    let hot = hot.unwrap_or_else(|| panic!("{} {:?}: no loop", spec.kernel, spec.variant));
    let units = number(spec, "UNROLL") * number(spec, "AT_ONCE") * products;
    assert_eq!(
        words_of_quants(hot),
        units * words(ty),
        "{} {:?}: words of {units} units",
        spec.kernel,
        spec.variant
    );
    scaled(steps(hot, spec), units)
}

/// `token_absorb` of `units` units of a row of `attn_q_b`, without a norm.
fn absorb(ty: GgmlType, units: u32, nope: usize, kv_lora: usize) -> Spec {
    let dims = MlaDims {
        heads: 16,
        nope,
        rope: 64,
        kv_lora,
        cache: CacheType::F16,
    };
    let call = GpuTokenAbsorb {
        tokens: 1,
        q_b: &unmade_weight(ty, 1, (dims.heads * dims.head()) as u32, units * 32),
        // The cost of its rows does not count where they are too short for the type.
        k_b: &unmade_weight(
            if nope.is_multiple_of(ty.block_len()) {
                ty
            } else {
                GgmlType::Q8_0
            },
            16,
            kv_lora as u32,
            nope as u32,
        ),
        activation: activation(),
        x: input(false),
        rope_table: floats(),
        dims,
        q_lat: floats(),
        q_pe: floats(),
        row: None,
        sequences: None,
    };
    spec(&call.call(target().machine))
}

/// The cost in `token_absorb` of each weight that a thread has more in a row of `attn_q_b`.
fn of_more_columns(ty: GgmlType) -> Steps {
    let [few, many] = [48, 64].map(|units| {
        let spec = absorb(ty, units, 128, 512);
        let counted = counted(&spec);
        let units = number(&spec, "UNROLL") * number(&spec, "PASSES");
        assert_eq!(counted.loops.len(), 0, "a loop of {units} units");
        let words = words_of_quants(&counted.outside);
        (units, words, steps(&counted.outside, &spec))
    });
    let units = many.0 - few.0;
    assert_eq!(many.1 - few.1, units * words(ty), "words of {units} units");
    scaled(more(few.2, many.2), units)
}

/// The cost in `token_absorb` of each weight that a thread has more in a row of `attn_k_b`: what more rows cost where each thread
/// has two units of a row, less what they cost where it has one, so that neither the input nor what each row costs counts.
fn of_more_columns_of_k_b(ty: GgmlType) -> Steps {
    let [one, two] = [256, 512].map(|nope| {
        let [few, many] = [512, 1024].map(|kv_lora| {
            let spec = absorb(ty, 24, nope, kv_lora);
            let counted = counted(&spec);
            assert_eq!(counted.loops.len(), 0, "loops of {nope} columns");
            let units = number(&spec, "K_UNROLL") * number(&spec, "K_PASSES");
            let read = counted.outside.loads.get("k_q").copied();
            assert_eq!(read, Some(units * words(ty)), "words of {units} units");
            (units, steps(&counted.outside, &spec))
        });
        (many.0 - few.0, more(few.1, many.1))
    });
    scaled(more(one.1, two.1), two.0 - one.0)
}

/// The cost of `many` beyond that of `few`.
pub(crate) fn more(few: Steps, mut many: Steps) -> Steps {
    for (what, cost) in few {
        *many.entry(what).or_default() += Cost::new(-cost.slow, -cost.fast);
    }
    many
}

/// Every type with what its weights cost in each product.
pub(crate) fn table() -> Vec<(GgmlType, [Steps; 7])> {
    let types = GgmlType::ALL.par_iter();
    types.map(|&ty| (ty, per_weight(ty))).collect()
}
