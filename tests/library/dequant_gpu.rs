//! Protects the WGSL modules of the block formats: on whatever adapter this machine has, they give the weights of `dequantize_row`.

use glimt::gpu::Tier;
use glimt::gpu::shader::{Variant, expand};
use glimt::gpu::wait::complete;
use glimt::quant::repack::{self, Planes};
use glimt::quant::{GgmlType, dequantize_row, f16_fields, set_scales};
use wgpu::util::DeviceExt;

use crate::testing::Rng;

const ROWS: usize = 37;
const COLS: usize = 512;
const WORKGROUP: usize = 32;

fn shared(name: &str) -> String {
    let path = format!("{}/wgsl/shared/{name}.wgsl", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The function of a module that a kernel asks for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Output {
    /// The weights of `unit`.
    Unit,
    /// The weights as scale * code + offset, from `codes` and `affine`.
    Codes,
}

/// `Output::Codes` as the integer kernels see it: every byte is a signed number, and has an offset.
const FROM_CODES: &str = "
fn signed(word: u32, scale: f32, offset: f32) -> vec4<f32> {
    let bytes = vec4<i32>(vec4<u32>(word) << vec4<u32>(24u, 16u, 8u, 0u)) >> vec4<u32>(24u);
    return scale * vec4<f32>(bytes) + vec4<f32>(offset);
}
fn weights(u: u32, sub: u32) -> W32 {
    let c = w_codes(u);
    let a = w_affine(u, sub);
    return W32(
        signed(c.lo.x, a.x, a.y), signed(c.lo.y, a.x, a.y), signed(c.lo.z, a.x, a.y), signed(c.lo.w, a.x, a.y),
        signed(c.hi.x, a.z, a.w), signed(c.hi.y, a.z, a.w), signed(c.hi.z, a.z, a.w), signed(c.hi.w, a.z, a.w),
    );
}";

const FROM_UNIT: &str = "fn weights(u: u32, sub: u32) -> W32 { return w_unit(u, sub); }";

/// A kernel that writes every unit of a tensor as 32 floats.
fn kernel(ty: GgmlType, sub: usize, output: Output) -> String {
    let units = ROWS * COLS / repack::UNIT;
    let source = format!(
        "{w32}
@group(0) @binding(0) var<storage, read> w_q: array<vec4<u32>>;
@group(0) @binding(1) var<storage, read> w_s: array<w_Scales>;
@group(0) @binding(2) var<storage, read_write> y: array<W32>;
{module}
{weights}
@compute @workgroup_size({WORKGROUP}) fn main(@builtin(global_invocation_id) id: vec3<u32>) {{
    if (id.x < {units}u) {{ y[id.x] = weights(id.x, {sub}u); }}
}}",
        w32 = shared("w32"),
        module = shared(repack::shader_module(ty)).replace("$W", "w"),
        weights = match output {
            Output::Unit => FROM_UNIT,
            Output::Codes => FROM_CODES,
        },
    );
    // Both ways to a scale of two that share a word.
    let variant = Variant::default().flag("HALVES", matches!(output, Output::Codes));
    let expanded = expand("dequant", &source, &variant, Tier::Subgroup);
    expanded.expect("its directives are known").text
}

/// A tensor of random blocks. Half of the f16 scales are subnormal, as in real Q6_K files.
fn random_tensor(ty: GgmlType, mut next: impl FnMut() -> u64) -> Vec<u8> {
    let size = ROWS
        * ty.row_bytes(COLS)
            .expect("512 weights are whole blocks of every type");
    let mut bytes: Vec<u8> = (0..size).map(|_| next() as u8).collect();
    for block in bytes.chunks_exact_mut(ty.block_bytes()) {
        match ty {
            // Normal numbers: a GPU may flush subnormal f32.
            GgmlType::F32 | GgmlType::BF16 => {
                *block.last_mut().expect("not empty") = 0x3d | (next() as u8 & 0x80)
            }
            GgmlType::F16 => block[1] &= 0xbb,
            GgmlType::MXFP4 if next() & 1 == 0 => {
                // The ends of the powers. Of the largest ones GPUs and processors have the finite weights alone: values of up to 1 are.
                block[0] = [0, 1, 2, 253, 254, 255][next() as usize % 6];
                if block[0] > 2 {
                    block[1..].iter_mut().for_each(|byte| *byte &= 0x99);
                }
            }
            GgmlType::IQ1_M | GgmlType::MXFP4 => {
                let exponent = (next() % 16) as i32 - 8;
                set_scales(ty, block, || 2f32.powi(exponent));
            }
            _ => {
                let mask = if next() & 1 == 0 { 0x83 } else { 0xbb };
                // The f16 scales must be finite, any other byte may have any value.
                for &(offset, _) in f16_fields(ty) {
                    block[offset + 1] &= mask;
                }
            }
        }
    }
    bytes
}

fn run(device: &wgpu::Device, queue: &wgpu::Queue, source: String, planes: &Planes) -> Vec<f32> {
    let upload = |contents: &[u8]| {
        device.create_buffer_init(&wgpu::util::BufferInitDescriptor {
            label: None,
            contents,
            usage: wgpu::BufferUsages::STORAGE,
        })
    };
    let (quants, scales) = (upload(&planes.quants), upload(&planes.scales));
    let size = (ROWS * COLS * 4) as u64;
    let buffer = |usage| {
        device.create_buffer(&wgpu::BufferDescriptor {
            label: None,
            size,
            usage,
            mapped_at_creation: false,
        })
    };
    let output = buffer(wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC);
    let readback = buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST);
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor {
        label: None,
        source: wgpu::ShaderSource::Wgsl(source.into()),
    });
    let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    });
    let bindings = [&quants, &scales, &output];
    // The float types do not touch the scales plane, so the derived layout does not have it.
    let used = |i: &usize| *i != 1 || planes.scales.len() > 16;
    let entries: Vec<_> = (0..3)
        .filter(used)
        .map(|i| wgpu::BindGroupEntry {
            binding: i as u32,
            resource: bindings[i].as_entire_binding(),
        })
        .collect();
    let group = device.create_bind_group(&wgpu::BindGroupDescriptor {
        label: None,
        layout: &pipeline.get_bind_group_layout(0),
        entries: &entries,
    });
    let mut encoder = device.create_command_encoder(&Default::default());
    {
        let mut pass = encoder.begin_compute_pass(&Default::default());
        pass.set_pipeline(&pipeline);
        pass.set_bind_group(0, &group, &[]);
        pass.dispatch_workgroups(
            (ROWS * COLS / repack::UNIT).div_ceil(WORKGROUP) as u32,
            1,
            1,
        );
    }
    encoder.copy_buffer_to_buffer(&output, 0, &readback, 0, size);
    queue.submit([encoder.finish()]);
    let slice = readback.slice(..);
    slice.map_async(wgpu::MapMode::Read, |result| {
        result.expect("the buffer can be mapped")
    });
    device
        .poll(wgpu::PollType::wait_indefinitely())
        .expect("the work ends");
    bytemuck::pod_collect_to_vec(&slice.get_mapped_range().expect("mapped"))
}

#[test]
fn every_module_gives_the_weights_of_dequantize_row() {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let Ok(adapter) = complete(instance.request_adapter(&Default::default())) else {
        eprintln!("skipped: no GPU adapter on this machine");
        return;
    };
    let (device, queue) = complete(adapter.request_device(&Default::default()))
        .expect("every adapter gives the default limits");
    let mut rng = Rng::fresh();
    for &ty in GgmlType::ALL {
        let src = random_tensor(ty, || rng.bits());
        let mut expected = vec![0.0; ROWS * COLS];
        dequantize_row(ty, &src, &mut expected);
        assert!(expected.iter().all(|w| w.is_finite()), "{ty}");

        let planes = Planes::new(ty, ROWS, COLS, &src);
        let sub = repack::sub_plane_words(ty, ROWS, COLS);
        compare(
            &format!("unit of {ty}"),
            &run(&device, &queue, kernel(ty, sub, Output::Unit), &planes),
            &expected,
        );
        if repack::has_codes(ty) {
            compare(
                &format!("codes of {ty}"),
                &run(&device, &queue, kernel(ty, sub, Output::Codes), &planes),
                &expected,
            );
        }
    }
}

/// Asserts that two tensors agree unit by unit, except for roundings.
/// A GPU may take weights for 0 that are below the normal floats: of MXFP4 those of 12 times the largest such power.
const NOTHING: f32 = 12.0 * f32::MIN_POSITIVE / 2.0;

fn compare(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    for (u, (got, expected)) in got.chunks(32).zip(expected.chunks(32)).enumerate() {
        // A fused multiply-add rounds once where the CPU rounds twice: relative to the terms, not to their sum.
        let largest = expected.iter().fold(0.0f32, |m, w| m.max(w.abs()));
        for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
            let error = (got - expected).abs();
            assert!(
                error <= 1e-6 * largest + NOTHING,
                "{what} {u}, weight {i}: {got} instead of {expected}"
            );
        }
    }
}
