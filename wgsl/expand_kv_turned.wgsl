// Writes attn_k_b (heads, KV_LORA, NOPE), transposed for each head, as the first rows of the matrix of expand_kv, which has
// (HEADS * NOPE + HEADS * v, KV_LORA) values: f16 with HALVES, else f32. Row h * NOPE + i makes value i of the key of head h out of a
// latent. expand_kv_weights writes the rows after them.
//
// Division: grid (tiles of WG rows, units of a row). A workgroup transposes its tile in workgroup memory.
// Bound by: the bytes written.
#number KV_LORA NOPE WG  // width of a latent, values of a head that are not rotated, threads of a workgroup
#word rows: u32       // of this piece
#word first_row: u32  // of this piece among all rows
#word units: u32      // of 32 weights, per row
#word sub: u32        // sub-plane of the scales, in words
#word out_row: u32    // where the tensor's rows begin in the output
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)   // (rows, units) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units)   // (rows, units) units
#length OUT (p.out_row + ceil(p.first_row + p.rows, KV_LORA) * NOPE) * KV_LORA
#each i 8
#each s 16
#import w32
#import WEIGHT as w

// Writes a pair of neighbouring values.
#ifdef HALVES
#write weights: array<u32> @halves(OUT)          // (rows, KV_LORA / 2)
fn put(i: u32, pair: vec2<f32>) { weights[i] = pack2x16float(pair); }
#else
#write weights: array<vec2<f32>> @floats(OUT)    // (rows, KV_LORA / 2)
fn put(i: u32, pair: vec2<f32>) { weights[i] = pair; }
#endif

const PITCH = WG + 1u;
var<workgroup> turned: array<f32, 32u * PITCH>;   // (column, row), padded by one for different banks

// Stores columns `first` .. `first` + 4 of a row.
fn turn(first: u32, row: u32, v: vec4<f32>) {
  turned[first * PITCH + row] = v.x;
  turned[(first + 1u) * PITCH + row] = v.y;
  turned[(first + 2u) * PITCH + row] = v.z;
  turned[(first + 3u) * PITCH + row] = v.w;
}

// Writes pair i of the workgroup's. Its rows of the output begin at pair `out`.
fn write(out: u32, i: u32) {
  let column = i / (WG / 2u);
  let pair = i % (WG / 2u);
  let at = column * PITCH + pair * 2u;
  put(out + column * (KV_LORA / 2u) + pair, vec2(turned[at], turned[at + 1u]));
}

#main
  let w = w_unit((wid.x * WG + t) * p.units + wid.y, p.sub);
  turn($iu * 4u, t, w.v$i);
  workgroupBarrier();
  let row = p.first_row + wid.x * WG;
  let out = (p.out_row + row / KV_LORA * NOPE + wid.y * 32u) * (KV_LORA / 2u) + row % KV_LORA / 2u;
  write(out, $su * WG + t);
}
