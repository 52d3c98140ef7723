//! Costs of other kernels of a decoded token: the router's products in f32, and the attention by subgroups.

use super::kernels::{
    activation, counted, floats, input, mac, more, number, output, spec, steps, target,
};
use super::{Cost, Region, Steps};
use glimt::gpu::buffer::{Range, Role};
use glimt::gpu::machine::attention::HeadsShape;
use glimt::gpu::pipeline::Spec;
use glimt::gpu::testing::unmade_weight;
use glimt::kernels::attention::{Form, GpuAttention};
use glimt::kernels::token::Divided;
use glimt::kernels::token_matvec::{self, GpuTokenMatvec, Input, PartialLogits};
use glimt::kernels::token_router::GpuTokenRouter;
use glimt::kernels::{CacheType, MlaDims, attention_merge};
use glimt::quant::GgmlType;

/// A loop, or what there is more of it with more work.
pub(crate) struct Other {
    pub name: &'static str,
    /// The unit of work that the cost is for.
    pub of: &'static str,
    pub steps: Steps,
}

const GLM: MlaDims = MlaDims {
    heads: 20,
    nope: 192,
    rope: 64,
    kv_lora: 512,
    cache: CacheType::F16,
};

/// The cost of a shader outside of loops.
fn outside(spec: &Spec) -> Steps {
    let counted = counted(spec);
    steps(&counted.outside, spec)
}

fn divided(steps: Steps, by: u32) -> Steps {
    let each = steps.into_iter();
    each.map(|(what, cost)| (what, cost / f64::from(by)))
        .collect()
}

fn added(to: &mut Steps, steps: Steps, times: u32) {
    for (what, cost) in steps {
        let times = f64::from(times);
        *to.entry(what).or_default() += Cost::new(times * cost.slow, times * cost.fast);
    }
}

/// A weight of `token_router`: what 4096 columns cost more than 2048.
fn router() -> Steps {
    let [few, many] = [2048, 4096].map(|cols| {
        let router = GpuTokenRouter {
            weight: &unmade_weight(GgmlType::F32, 1, 64, cols),
            x: floats(),
            norm: None,
            squares: floats(),
            eps: 1e-5,
            y: floats(),
            stride: 64,
            tokens: 1,
        };
        let spec = spec(&router.calls()[0]);
        (number(&spec, "LOADS"), outside_of_router(&spec))
    });
    divided(more(few.1, many.1), 4 * (many.0 - few.0))
}

/// The cost outside of loops of a kernel whose only loop runs over the workgroup's subgroups.
fn outside_of_router(spec: &Spec) -> Steps {
    assert_eq!(counted(spec).loops.len(), 1, "that over subgroups");
    outside(spec)
}

/// A weight of the router in the product that ends an attention block: what experts cost more that give each thread four vectors
/// to move to workgroup memory and one expert to add up 16 rows for.
fn router_in_product() -> Steps {
    let (target, activation) = (target(), activation());
    let weight = unmade_weight(GgmlType::F32, 1, 2048, 5120);
    let product = GpuTokenMatvec::new(&weight, activation, Input::Prepared(input(false), 0))
        .bind("residual", &floats())
        .bind("y", &floats())
        .prepared(output(true));
    let geometry = product.site().default_geometry(mac());
    let geometry = geometry.expect("a geometry for a Mac");
    let of = |experts: u32| {
        let router = unmade_weight(GgmlType::F32, 1, experts, 2048);
        let mut product = product.clone();
        product.router = Some(PartialLogits {
            weight: &router,
            logits: floats(),
        });
        let calls = product.calls_with(&target, &geometry);
        let spec = spec(&calls.unwrap_or_else(|e| panic!("{e}"))[0]);
        let loads = number(&spec, "ROUTER_LOADS");
        let rows = number(&spec, "ROUTER_STORES") * token_matvec::ROUTER_ROWS;
        assert_eq!(4 * loads, rows, "weights loaded and multiplied");
        (rows, outside(&spec))
    };
    // Takes the fewest experts that leave no thread idle.
    let experts = geometry.threads() * token_matvec::ROUTER_ROWS / geometry.tile;
    let (few, many) = (of(experts), of(2 * experts));
    divided(more(few.1, many.1), many.0 - few.0)
}

/// A value of the cache for a head in `attention_heads`: a tile of rows, from memory to the sums.
fn attention() -> Steps {
    let memory = mac().workgroup_memory;
    let shape = HeadsShape::of(GLM, memory).expect("it suits a Mac");
    let attention = GpuAttention {
        form: Form::Heads(shape),
        q_lat: floats(),
        q_pe: floats(),
        cache: floats().holding(Role::Cache),
        dims: GLM,
        scale: 1.0,
        partials: [floats(), floats()],
        sequences: None,
    };
    let spec = spec(&attention.calls()[0]);
    let counted = counted(&spec);
    let depths: Vec<_> = counted.loops.iter().map(|l| l.depth).collect();
    assert_eq!(depths, [1, 2, 2], "tiles, scores of 8 rows, values of 4");
    let rows = number(&spec, "ROWS");
    let mut tile = Steps::new();
    for (region, times) in counted.loops.iter().zip([1, rows / 8, rows / 4]) {
        added(&mut tile, steps(region, &spec), times);
    }
    // Counts the threads that share a row.
    let columns = GLM.kv_lora as u32 / 8;
    let values = rows * GLM.cache_row() as u32 / columns;
    divided(tile, values * number(&spec, "HEADS_OF"))
}

/// A value that a slice leaves of a head, in the loop of a kernel that joins slices.
fn joining(spec: &Spec) -> Steps {
    let counted = counted(spec);
    let values = |region: &Region| region.loads.get("slice_sums").copied().unwrap_or_default();
    let hot = counted.loops.iter().max_by_key(|region| values(region));
    let hot = hot.expect("a loop over slices");
    let n = values(hot);
    assert!(n > 0, "a loop that reads slices");
    divided(steps(hot, spec), n)
}

fn joining_alone() -> Steps {
    let latents = Range::prepared("any", activation(), 32);
    let call = attention_merge::call(
        (None, false),
        &[floats(), floats()],
        [GLM.heads, GLM.kv_lora],
        &latents,
        activation(),
    );
    joining(&spec(&call))
}

/// In `attn_v_b`.
fn joining_in_product() -> Steps {
    let weight = unmade_weight(GgmlType::Q4_0, 20, 256, 512);
    let slices = Input::Slices([floats(), floats()], GLM);
    let product = GpuTokenMatvec::new(&weight, activation(), slices).prepared(output(false));
    let geometry = product.site().default_geometry(mac());
    let calls = product.calls_with(&target(), &geometry.expect("a geometry for a Mac"));
    joining(&spec(&calls.unwrap_or_else(|e| panic!("{e}"))[0]))
}

/// The costs of all other kernels, in the sizes of GLM-4.7-Flash.
pub(crate) fn others() -> [Other; 5] {
    let other = |name, of, steps| Other { name, of, steps };
    let (weight, value) = ("weight, f32", "cached value x head");
    let left = "value x head x slice";
    [
        other("token_router", weight, router()),
        other("attn_output: router", weight, router_in_product()),
        other("attention_heads", value, attention()),
        other("attention_merge", left, joining_alone()),
        other("attn_v_b: merge", left, joining_in_product()),
    ]
}
