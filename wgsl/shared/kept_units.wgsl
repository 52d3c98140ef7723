// The input of a product, if the workgroup computes it itself: KEPT values that threads store in workgroup memory, 4 at a time. They are
// stored as records with BYTES (shared/bytes.wgsl), as halves with HALVES (shared/halves.wgsl), else as floats.
#ifdef BYTES
#import bytes
#import quantize_quad
alias Kept = Record;
var<workgroup> kept_codes: array<u32, KEPT / 4u>;
var<workgroup> kept_scales: array<f32, KEPT / 16u>;
var<workgroup> kept_sums: array<f32, KEPT / 16u>;   // scale times the sum of the codes

// Stores values 4i .. 4i + 4. The 4 threads with i from a multiple of 4 on share a subgroup, and all of them must call, or none.
fn keep(i: u32, v: vec4<f32>) {
  let quad = quantize_quad(v);
  kept_codes[i] = quad.word;
  if ((i & 3u) == 0u) {
    kept_scales[i >> 2u] = quad.scale;
    kept_sums[i >> 2u] = quad.scaled_sum;
  }
}

// The 32 values of a unit, after a barrier.
fn kept_unit(u: u32) -> Record {
  let at = 2u * u;
  let i = 8u * u;
  let lo = vec4<u32>(kept_codes[i], kept_codes[i + 1u], kept_codes[i + 2u], kept_codes[i + 3u]);
  let hi = vec4<u32>(kept_codes[i + 4u], kept_codes[i + 5u], kept_codes[i + 6u], kept_codes[i + 7u]);
  return Record(lo, hi, vec4<f32>(kept_scales[at], kept_scales[at + 1u], kept_sums[at], kept_sums[at + 1u]));
}
#else
#ifdef HALVES
#import halve_quad
alias Kept = Halves;
var<workgroup> kept: array<vec4<u32>, (KEPT + 255u) / 256u * HALVES_VECTORS>;

// Stores values 4i .. 4i + 4. The 8 threads with i from a multiple of 8 on share a subgroup, and all of them must call, or none. One of two
// threads writes the vector of both, because Metal and DX12 may store a whole vector to write one component of it.
fn keep(i: u32, v: vec4<f32>) {
  let quad = halve_quad(v);
  let words = vec2<u32>(subgroupShuffleXor(quad.words.x, 1u), subgroupShuffleXor(quad.words.y, 1u));
  let scale = vec2<f32>(subgroupShuffleXor(quad.scale.x, 4u), subgroupShuffleXor(quad.scale.y, 4u));
  let unit = halves_place(i >> 3u);
  if ((i & 1u) == 0u) { kept[unit + ((i >> 1u) & 3u) * HALVES_PLANE] = vec4<u32>(quad.words, words); }
  if ((i & 7u) == 0u) { kept[unit + HALVES_SCALES] = bitcast<vec4<u32>>(vec4<f32>(quad.scale, scale)); }
}

// The 32 values of a unit, after a barrier.
fn kept_unit(u: u32) -> Halves {
  let i = halves_place(u);
  return Halves(kept[i], kept[i + HALVES_PLANE], kept[i + 2u * HALVES_PLANE], kept[i + 3u * HALVES_PLANE], bitcast<vec4<f32>>(kept[i + HALVES_SCALES]));
}
#else
alias Kept = W32;
var<workgroup> kept: array<vec4<f32>, KEPT / 4u>;

fn keep(i: u32, v: vec4<f32>) { kept[i] = v; }

fn kept_unit(u: u32) -> W32 {
  let i = 8u * u;
  return W32(kept[i], kept[i + 1u], kept[i + 2u], kept[i + 3u], kept[i + 4u], kept[i + 5u], kept[i + 6u], kept[i + 7u]);
}
#endif
#endif
