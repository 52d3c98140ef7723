// out = left right for each head: composes two consecutive weights to one and quantises the product (--precompose).
//
// Computes for head z: out (rows, 32 * units) = left (rows, 32 * depth) right (32 * depth, 32 * units), each a range of a larger matrix
// (crates/gpu/src/kernels/compose.rs). Sums are f32. The result is written to planes of Q8_0 (shared/q8_0.wgsl), without `scales` to those of F16. With
// `kept`, rows p.kept .. p.kept + rows of the right factor's head z are only quantised again.
// Division: grid (tiles of 64 columns, tiles of 64 rows, heads). A thread computes 8 x 4 outputs. 32 terms at a time pass through workgroup
// memory, so that a weight is dequantised once per 64 outputs that need it.
// Bound by: the multiply-adds, once at load.
// A word of Q8_0's scales has those of two units, which may belong to different workgroups. So it is written by atomics, and the planes must
// be zero before.
#word rows: u32        // of a head's product
#word units: u32       // of 32 columns of it
#word right_row: u32   // from head to head in the right factor
#word right_sub: u32   // sub-plane of its scales, in words
#word out_units: u32   // per row of the result
#word out_first: u32   // first row
#word out_row: u32     // from head to head in the result: rows
#word out_unit: u32    //   and units
#word kept?: u32       // first row of a head that is kept
#ifdef kept
#read r_q: array<vec4<u32>> @codes(RIGHT, ((GRID_Z - 1) * p.right_row + p.kept + p.rows) * p.units)
#read r_s: array<r_Scales> @scales(RIGHT, ((GRID_Z - 1) * p.right_row + p.kept + p.rows) * p.units, p.right_sub)
#else
#word depth: u32       // terms of a sum, in units
#word left_units: u32  // per row of the left factor
#word left_row: u32    // from head to head in the left factor: rows
#word left_unit: u32   //   and units
#word left_sub: u32    // sub-plane of its scales, in words
#read r_q: array<vec4<u32>> @codes(RIGHT, ((GRID_Z - 1) * p.right_row + 32 * p.depth) * p.units)
#read r_s: array<r_Scales> @scales(RIGHT, ((GRID_Z - 1) * p.right_row + 32 * p.depth) * p.units, p.right_sub)
#read l_q: array<vec4<u32>> @codes(LEFT, ((GRID_Z - 1) * p.left_row + p.rows - 1) * p.left_units + (GRID_Z - 1) * p.left_unit + p.depth)
#read l_s: array<l_Scales> @scales(LEFT, ((GRID_Z - 1) * p.left_row + p.rows - 1) * p.left_units + (GRID_Z - 1) * p.left_unit + p.depth, p.left_sub)
#endif
#write quants: array<vec4<u32>> @codes(OUT, (p.out_first + (GRID_Z - 1) * p.out_row + p.rows - 1) * p.out_units + (GRID_Z - 1) * p.out_unit + p.units)
#write scales?: array<atomic<u32>> @scales(OUT, (p.out_first + (GRID_Z - 1) * p.out_row + p.rows - 1) * p.out_units + (GRID_Z - 1) * p.out_unit + p.units)
const WG = 128;
#import w32
#ifndef kept
#import LEFT as l
#endif
#import RIGHT as r

#ifndef kept
// 64 rows of 8 vec4 of the left factor and 32 rows of 16 of the right one; at the end 64 rows of 16 of the result.
var<workgroup> tile: array<vec4<f32>, 1024>;
#endif

#ifdef scales
fn codes(v: vec4<f32>, inverse: f32) -> u32 {
  // Rounds ties away from zero, as ggml-quants.c does.
  return pack4xI8(vec4<i32>(sign(v) * floor(abs(v) * inverse + 0.5)));
}
#endif

fn store(unit: u32, w: W32) {
#ifndef scales
  let at = unit * 4u;
  quants[at] = vec4(pack2x16float(w.v0.xy), pack2x16float(w.v0.zw), pack2x16float(w.v1.xy), pack2x16float(w.v1.zw));
  quants[at + 1u] = vec4(pack2x16float(w.v2.xy), pack2x16float(w.v2.zw), pack2x16float(w.v3.xy), pack2x16float(w.v3.zw));
  quants[at + 2u] = vec4(pack2x16float(w.v4.xy), pack2x16float(w.v4.zw), pack2x16float(w.v5.xy), pack2x16float(w.v5.zw));
  quants[at + 3u] = vec4(pack2x16float(w.v6.xy), pack2x16float(w.v6.zw), pack2x16float(w.v7.xy), pack2x16float(w.v7.zw));
#else
  let m = max(max(max(abs(w.v0), abs(w.v1)), max(abs(w.v2), abs(w.v3))), max(max(abs(w.v4), abs(w.v5)), max(abs(w.v6), abs(w.v7))));
  let largest = max(max(m.x, m.y), max(m.z, m.w));
  // Below 1e-30 the inverse might not be a normal f32, and the f16 scale would be 0 anyway.
  let inverse = select(0.0, 127.0 / max(largest, 1e-30), largest > 1e-30);
  quants[unit * 2u] = vec4(codes(w.v0, inverse), codes(w.v1, inverse), codes(w.v2, inverse), codes(w.v3, inverse));
  quants[unit * 2u + 1u] = vec4(codes(w.v4, inverse), codes(w.v5, inverse), codes(w.v6, inverse), codes(w.v7, inverse));
  let scale = pack2x16float(vec2(min(largest / 127.0, 65504.0), 0.0));
  atomicOr(&scales[unit >> 1u], (scale & 0xffffu) << (16u * (unit & 1u)));
#endif
}

#main
  let head = wid.z;
  let row = wid.y * 64u + (t >> 1u);
  let unit = wid.x * 2u + (t & 1u);
  let to = (p.out_first + head * p.out_row + row) * p.out_units + head * p.out_unit + unit;
#ifdef kept
  if (row < p.rows && unit < p.units) {
    store(to, r_unit((head * p.right_row + p.kept + row) * p.units + unit, p.right_sub));
  }
#else
  let rows = (t >> 4u) * 8u;
  let column = t & 15u;
#for i 8
  var sum$i = vec4(0.0);
#endfor
  var d = 0u;
  loop {
    if (d >= p.depth) { break; }
    // Threads 0 to 63 load a row of the left tile each, the others half a row of the right tile.
    let from_left = (head * p.left_row + min(wid.y * 64u + (t & 63u), p.rows - 1u)) * p.left_units + head * p.left_unit + d;
    let half = t & 1u;
    let k_row = (t & 63u) >> 1u;
    let from_right = (head * p.right_row + d * 32u + k_row) * p.units + min(wid.x * 2u + half, p.units - 1u);
    var w: W32;
    var at = t * 8u;
    if (t < 64u) {
      w = l_unit(from_left, p.left_sub);
    } else {
      w = r_unit(from_right, p.right_sub);
      at = 512u + k_row * 16u + half * 8u;
    }
#for i 8
    tile[at + $iu] = w.v$i;
#endfor
    workgroupBarrier();
    var k = 0u;
    loop {
      if (k >= 8u) { break; }
      let right = 512u + k * 64u + column;
      let b0 = tile[right];
      let b1 = tile[right + 16u];
      let b2 = tile[right + 32u];
      let b3 = tile[right + 48u];
#for i 8
      let a$i = tile[(rows + $iu) * 8u + k];
      sum$i += a$i.x * b0 + a$i.y * b1 + (a$i.z * b2 + a$i.w * b3);
#endfor
      k += 1u;
    }
    workgroupBarrier();
    d += 1u;
  }
#for i 8
  tile[(rows + $iu) * 16u + column] = sum$i;
#endfor
  workgroupBarrier();
  if (row < p.rows && unit < p.units) {
    let first = t * 8u;
    store(to, W32(tile[first], tile[first + 1u], tile[first + 2u], tile[first + 3u], tile[first + 4u], tile[first + 5u], tile[first + 6u], tile[first + 7u]));
  }
#endif
}
