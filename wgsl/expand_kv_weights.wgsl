// Writes attn_v_b (heads, v, KV_LORA) as the last rows of the matrix of expand_kv, which has (HEADS * NOPE + HEADS * v, KV_LORA) values: f16
// with HALVES, else f32. Row HEADS * NOPE + h * v + i makes value i of head h out of a latent. expand_kv_turned writes the rows before
// them.
//
// Division: a thread per unit.
// Bound by: the bytes written.
#number WG  // threads of a workgroup
#word rows: u32       // of this piece
#word first_row: u32  // of this piece among all rows
#word units: u32      // of 32 weights, per row
#word sub: u32        // sub-plane of the scales, in words
#word out_row: u32    // where the tensor's rows begin in the output
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)   // (rows, units) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units)   // (rows, units) units
#length OUT (p.out_row + p.first_row + p.rows) * p.units * 32
#each i 8
#import w32
#import WEIGHT as w

// Writes the 32 values of a unit.
#ifdef HALVES
#write weights: array<vec4<u32>> @halves(OUT)    // (rows, KV_LORA / 8)
fn put(unit: u32, w: W32) {
  weights[unit * 4u] = vec4(halves_of(w.v0), halves_of(w.v1));
  weights[unit * 4u + 1u] = vec4(halves_of(w.v2), halves_of(w.v3));
  weights[unit * 4u + 2u] = vec4(halves_of(w.v4), halves_of(w.v5));
  weights[unit * 4u + 3u] = vec4(halves_of(w.v6), halves_of(w.v7));
}

fn halves_of(v: vec4<f32>) -> vec2<u32> { return vec2(pack2x16float(v.xy), pack2x16float(v.zw)); }
#else
#write weights: array<vec4<f32>> @floats(OUT)    // (rows, KV_LORA / 4)
fn put(unit: u32, w: W32) {
  weights[unit * 8u + $iu] = w.v$i;
}
#endif

#main
  let unit = wid.x * WG + t;
  if (unit < p.rows * p.units) { put((p.out_row + p.first_row) * p.units + unit, w_unit(unit, p.sub)); }
}
