// What gemm.wgsl computes, by cooperative matrices: inputs and weights rounded to f16, sums in f32.
//
// x (tokens, x_stride) are halves and x_scales (tokens) what they are multiplied by (see rows_f16); the rest as in gemm.wgsl.
// Division: a workgroup owns BM tokens and BN rows; in steps of 32 columns it moves a tile of x and one of W, dequantised, to
// workgroup memory. It has SM x SN subgroups, each of which multiplies FM x FN matrices of MAT x MAT, sums in registers. The next
// tiles are loaded while these are multiplied. The sums pass through workgroup memory, where lanes scale and write them.
// Bound by: the matrix units; with few tokens by the bytes of W, read once per BM tokens.
enable f16;
enable wgpu_cooperative_matrix;
#import gemm_place
#import MATRICES as c

const WG = SM * SN * LANES;
// A row in workgroup memory is 16 bytes longer than 32 columns: 8 rows lie in different banks. WIDE counts vectors of 4: Metal
// loads matrices from numbers only.
#ifdef WIDE
const PITCH = 10u;
const STEP = MAT / 4u;
var<workgroup> xs: array<vec4<f16>, BM * PITCH>;
var<workgroup> ws: array<vec4<f16>, W_ROWS * PITCH>;
fn put_x(row: u32, c: u32, v: vec4<f16>) { xs[row * PITCH + c] = v; }
fn put_w(row: u32, c: u32, v: vec4<f32>) { ws[row * PITCH + c] = vec4<f16>(v); }
#else
const PITCH = 40u;
const STEP = MAT;
var<workgroup> xs: array<f16, BM * PITCH>;
var<workgroup> ws: array<f16, W_ROWS * PITCH>;
fn put_x(row: u32, c: u32, v: vec4<f16>) {
  let to = row * PITCH + c * 4u;
  xs[to] = v.x;
  xs[to + 1u] = v.y;
  xs[to + 2u] = v.z;
  xs[to + 3u] = v.w;
}
fn put_w(row: u32, c: u32, v: vec4<f32>) {
  let to = row * PITCH + c * 4u;
  ws[to] = f16(v.x);
  ws[to + 1u] = f16(v.y);
  ws[to + 2u] = f16(v.z);
  ws[to + 3u] = f16(v.w);
}
#endif
#ifdef PAIR
const OUT = 2u * MAT * MAT;
#else
const OUT = MAT * MAT;
#endif
var<workgroup> out: array<f32, SM * SN * OUT>;   // (subgroup, token, row); with PAIR gate, then up

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#import gemm_begin
  let column = t & 7u;
#for i X_LOADS
  let from$i = input_row(at.first + min(($iu * WG + t) >> 3u, at.count - 1u)) * p.x_stride + (p.first_group + at.group) * p.x_group_stride + column;
  var x$i = x[from$i];
#endfor
#for i W_LOADS
  let unit$i = (at.group * p.rows + min(at.row + ($iu * WG + t) % BN, p.rows - 1u)) * p.units;
  var w$i = dequantised($iu * WG + t, unit$i);
#endfor
#for i FM
#for j FN
  var sum$i_$j: cSums;
#ifdef PAIR
  var up$i_$j: cSums;
#endif
#endfor
#endfor
  // The device is one whose subgroups have so many lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let group_m = group / SN;
  let group_n = group % SN;
  let own_x = group_m * (FM * MAT * PITCH);
  let own_w = group_n * (FN * MAT * PITCH);
  var unit = 1u;
  loop {
    workgroupBarrier();
#for i X_LOADS
    put_x(($iu * WG + t) >> 3u, column, x$i);
#endfor
#for i W_LOADS
    {
      let row = $iu * WG + t;
      if (row < W_ROWS) {
        put_w(row, 0u, w$i.v0);
        put_w(row, 1u, w$i.v1);
        put_w(row, 2u, w$i.v2);
        put_w(row, 3u, w$i.v3);
        put_w(row, 4u, w$i.v4);
        put_w(row, 5u, w$i.v5);
        put_w(row, 6u, w$i.v6);
        put_w(row, 7u, w$i.v7);
      }
    }
#endfor
    workgroupBarrier();
    if (unit < p.units) {
#for i X_LOADS
      x$i = x[from$i + unit * 8u];
#endfor
#for i W_LOADS
      w$i = dequantised($iu * WG + t, unit$i + unit);
#endfor
    }
#for k STEPS
    {
#for i FM
      let a$i = coopLoadT<cLeft>(&xs[own_x + $iu * MAT * PITCH + $ku * STEP], PITCH);
#endfor
#for j FN
      let b$j = coopLoad<cRight>(&ws[own_w + $ju * MAT * PITCH + $ku * STEP], PITCH);
#for i FM
      sum$i_$j = coopMultiplyAdd(a$i, b$j, sum$i_$j);
#endfor
#ifdef PAIR
      let u$j = coopLoad<cRight>(&ws[BN * PITCH + own_w + $ju * MAT * PITCH + $ku * STEP], PITCH);
#for i FM
      up$i_$j = coopMultiplyAdd(a$i, u$j, up$i_$j);
#endfor
#endif
#endfor
    }
#endfor
    if (unit >= p.units) { break; }
    unit += 1u;
  }

  let own = group * OUT;
  let own_up = own + MAT * MAT;
#for i FM
#for j FN
  {
    // Named first: naga 30 would compute what stands in the call after the store.
    let value = sum$i_$j;
    coopStoreT(value, &out[own], MAT);
#ifdef PAIR
    let second = up$i_$j;
    coopStoreT(second, &out[own_up], MAT);
#endif
    workgroupBarrier();
    let row = at.row + (group_n * FN + $ju) * MAT + (lane & (MAT - 1u));
    var e = lane;
    loop {
      if (e >= MAT * MAT) { break; }
      let m = (group_m * FM + $iu) * MAT + e / MAT;
      if (m < at.count && row < p.rows) {
        let scale = x_scales[input_row(at.first + m)];
        let to = output_index(at, m) + row;
#ifdef PAIR
        y[to] = swiglu(out[own + e] * scale, out[own_up + e] * scale);
#else
#ifdef RESIDUAL
        y[to] = out[own + e] * scale + residual[to];
#else
        y[to] = out[own + e] * scale;
#endif
#endif
      }
      e += LANES;
    }
    workgroupBarrier();
  }
#endfor
#endfor
}

// A unit of the tile of W, of the second weight behind the first.
fn dequantised(row: u32, unit: u32) -> W32 {
#ifdef PAIR
  if (row >= BN) { return u_unit(unit, p.u_sub); }
#endif
  return w_unit(unit, p.sub);
}
