// attn_k_b and attn_v_b in f16 (HALVES) or f32, as the rows of one matrix (HEADS * NOPE + HEADS * v, KV_LORA) for expand_kv: row
// h * NOPE + i makes value i of the key of head h out of a latent, the rows after those of all keys make the values.
//
// TRANSPOSED: attn_k_b (heads, KV_LORA, NOPE), whose columns become rows. Otherwise attn_v_b (heads, v, KV_LORA).
// Division: attn_k_b: grid (64 rows, unit of 32 columns), turned in workgroup memory; attn_v_b: a thread per unit of 32.
// Bound by: the bytes written.
#word rows: u32       // of this part
#word first_row: u32  // of this part among all rows
#word units: u32      // of 32 weights, per row
#word sub: u32        // sub-plane of the scales, in words
#word out_row: u32    // where the tensor's rows begin in the output
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units)
// (rows, KV_LORA): vectors of f32, or pairs of f16 or 8 of them.
#ifdef TRANSPOSED
#ifdef HALVES
#write weights: array<u32> @halves((p.out_row + ceil(p.first_row + p.rows, KV_LORA) * NOPE) * KV_LORA)
#else
#write weights: array<vec2<f32>> @floats((p.out_row + ceil(p.first_row + p.rows, KV_LORA) * NOPE) * KV_LORA)
#endif
#else
#ifdef HALVES
#write weights: array<vec4<u32>> @halves((p.out_row + p.first_row + p.rows) * p.units * 32)
#else
#write weights: array<vec4<f32>> @floats((p.out_row + p.first_row + p.rows) * p.units * 32)
#endif
#endif
#import w32
#import WEIGHT as w

#ifdef TRANSPOSED
const PITCH = WG + 1u;
var<workgroup> turned: array<f32, 32u * PITCH>;   // (column, row)
#endif

#main
#ifdef TRANSPOSED
  let w = w_unit((wid.x * WG + t) * p.units + wid.y, p.sub);
#for i 8
  turned[$iu * 4u * PITCH + t] = w.v$i.x;
  turned[($iu * 4u + 1u) * PITCH + t] = w.v$i.y;
  turned[($iu * 4u + 2u) * PITCH + t] = w.v$i.z;
  turned[($iu * 4u + 3u) * PITCH + t] = w.v$i.w;
#endfor
  workgroupBarrier();
  let row = p.first_row + wid.x * WG;
  let out = (p.out_row + row / KV_LORA * NOPE + wid.y * 32u) * (KV_LORA / 2u) + row % KV_LORA / 2u;
#for i 16
  {
    let e = $iu * WG + t;
    let source = e / (WG / 2u) * PITCH + e % (WG / 2u) * 2u;
    let pair = vec2(turned[source], turned[source + 1u]);
#ifdef HALVES
    weights[out + e / (WG / 2u) * (KV_LORA / 2u) + e % (WG / 2u)] = pack2x16float(pair);
#else
    weights[out + e / (WG / 2u) * (KV_LORA / 2u) + e % (WG / 2u)] = pair;
#endif
  }
#endfor
#else
  let unit = wid.x * WG + t;
  if (unit < p.rows * p.units) {
    let w = w_unit(unit, p.sub);
#ifdef HALVES
    let out = ((p.out_row + p.first_row) * p.units + unit) * 4u;
    weights[out] = vec4(pack2x16float(w.v0.xy), pack2x16float(w.v0.zw), pack2x16float(w.v1.xy), pack2x16float(w.v1.zw));
    weights[out + 1u] = vec4(pack2x16float(w.v2.xy), pack2x16float(w.v2.zw), pack2x16float(w.v3.xy), pack2x16float(w.v3.zw));
    weights[out + 2u] = vec4(pack2x16float(w.v4.xy), pack2x16float(w.v4.zw), pack2x16float(w.v5.xy), pack2x16float(w.v5.zw));
    weights[out + 3u] = vec4(pack2x16float(w.v6.xy), pack2x16float(w.v6.zw), pack2x16float(w.v7.xy), pack2x16float(w.v7.zw));
#else
    let out = ((p.out_row + p.first_row) * p.units + unit) * 8u;
#for i 8
    weights[out + $iu] = w.v$i;
#endfor
#endif
  }
#endif
}
