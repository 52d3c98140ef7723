// The input of a product that the workgroup makes itself, KEPT values left in workgroup memory by 4: with BYTES in halves of a
// record (shared/bytes.wgsl), else as floats.
#ifdef BYTES
#import bytes
#import quantize_quad
var<workgroup> kept_codes: array<u32, KEPT / 4u>;
var<workgroup> kept_scales: array<f32, KEPT / 16u>;
var<workgroup> kept_sums: array<f32, KEPT / 16u>;   // scale times the sum of the codes

// Values 4i .. 4i + 4. Threads of neighbouring i, from a multiple of 4 on, share a subgroup and call together, or none does.
fn keep(i: u32, v: vec4<f32>) {
  let quad = quantize_quad(v);
  kept_codes[i] = quad.word;
  if ((i & 3u) == 0u) {
    kept_scales[i >> 2u] = quad.scale;
    kept_sums[i >> 2u] = quad.scaled_sum;
  }
}

// 32 values, behind a barrier.
fn kept_unit(u: u32) -> Record {
  let at = 2u * u;
  let i = 8u * u;
  let lo = vec4<u32>(kept_codes[i], kept_codes[i + 1u], kept_codes[i + 2u], kept_codes[i + 3u]);
  let hi = vec4<u32>(kept_codes[i + 4u], kept_codes[i + 5u], kept_codes[i + 6u], kept_codes[i + 7u]);
  return Record(lo, hi, vec4<f32>(kept_scales[at], kept_scales[at + 1u], kept_sums[at], kept_sums[at + 1u]));
}
#else
var<workgroup> kept: array<vec4<f32>, KEPT / 4u>;

fn keep(i: u32, v: vec4<f32>) { kept[i] = v; }

fn kept_unit(u: u32) -> W32 {
  let i = 8u * u;
  return W32(kept[i], kept[i + 1u], kept[i + 2u], kept[i + 3u], kept[i + 4u], kept[i + 5u], kept[i + 6u], kept[i + 7u]);
}
#endif
