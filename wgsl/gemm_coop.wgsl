// What gemm.wgsl computes, by cooperative matrices: inputs and weights rounded to f16, sums in f32.
//
// x (tokens, x_stride) are halves and x_scales (tokens) what they are multiplied by (see rows_f16); the rest as in gemm.wgsl.
// Division: a workgroup owns BM tokens and BN rows; in stages of STAGE_UNITS units of 32 columns it moves a tile of x and one of
// W, dequantised, to workgroup memory (gemm_stages). It has SM x SN subgroups, each of which multiplies FM x FN matrices of
// MAT x MAT, sums in registers. The sums pass through workgroup memory, where lanes scale
// and write them, few at a time: workgroup memory bounds how many workgroups share a multiprocessor.
// Bound by: loads and barriers of a stage; with few tokens by the bytes of W, read once per BM tokens.
enable f16;
enable wgpu_cooperative_matrix;
#ifdef SCATTER
#input x: array<vec4<f16>> @halves(4 * ((TOKENS * USED - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units))
#input x_scales: array<f32> @floats(TOKENS * USED)
#else
#input x: array<vec4<f16>> @halves(4 * ((TOKENS - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units))
#input x_scales: array<f32> @floats(TOKENS)
#endif
#import gemm_place
// What a thread finishes at once.
alias Sums = vec4<f32>;
#import gemm_halves
#import W_PART as w
#ifdef u_q
#import U_PART as u
#endif
#import MATRICES as c
#import coop_own

// Four sums of a token, of W's rows from `row` on; `to` is where row 0 writes.
fn write(to: u32, row: u32, sums: vec4<f32>) {
#ifdef WHOLE_VECTORS
  let i = (to + row) / 4u;
#ifdef residual
  y[i] = sums + residual[i];
#else
  y[i] = sums;
#endif
#else
#for c 4
  if (row + $cu < p.rows) {
#ifdef residual
    y[to + row + $cu] = sums[$c] + residual[to + row + $cu];
#else
    y[to + row + $cu] = sums[$c];
#endif
  }
#endfor
#endif
}

const WG = SM * SN * LANES;
const DEPTH = STAGE_UNITS * 32u;
const COLUMNS = DEPTH / 4u;
// A row in workgroup memory is 16 bytes longer: 8 rows lie in different banks. WIDE counts vectors of 4: Metal loads matrices
// from numbers only.
#ifdef WIDE
const PITCH = DEPTH / 4u + 2u;
const STEP = MAT / 4u;
var<workgroup> xs: array<vec4<f16>, BM * PITCH>;
var<workgroup> ws: array<vec4<f16>, W_ROWS * PITCH>;
fn put_x(row: u32, c: u32, v: vec4<f16>) { xs[row * PITCH + c] = v; }
fn put_w(row: u32, c: u32, v: vec4<f16>) { ws[row * PITCH + c] = v; }
#else
const PITCH = DEPTH + 8u;
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
fn put_w(row: u32, c: u32, v: vec4<f16>) {
  let to = row * PITCH + c * 4u;
  ws[to] = v.x;
  ws[to + 1u] = v.y;
  ws[to + 2u] = v.z;
  ws[to + 3u] = v.w;
}
#endif
// A lane reads the sums back in vectors of 4, LANE_ROWS rows of a matrix at once.
const ROW_VECTORS = MAT / 4u;
const LANE_ROWS = LANES / ROW_VECTORS;
// (place, token, row), a place for each subgroup whose turn it is.
#ifdef WIDE
const OUT_PITCH = ROW_VECTORS;
var<workgroup> out: array<vec4<f32>, OUTS * MAT * OUT_PITCH>;
fn sums_at(own: u32, row: u32, column: u32) -> vec4<f32> { return out[own + row * OUT_PITCH + column / 4u]; }
#else
const OUT_PITCH = MAT;
var<workgroup> out: array<f32, OUTS * MAT * OUT_PITCH>;
fn sums_at(own: u32, row: u32, column: u32) -> vec4<f32> {
  let at = own + row * OUT_PITCH + column;
  return vec4(out[at], out[at + 1u], out[at + 2u], out[at + 3u]);
}
#endif

#main
#import gemm_begin
  let column = t % COLUMNS;
  // Threads that share a row lie side by side, each with a part of a unit.
  let part = t % PARTS;
  let w_column = (t / PARTS) % STAGE_UNITS * 8u + part * PART_VECTORS;
#for i W_LOADS
  let row$i = ($iu * WG + t) / (PARTS * STAGE_UNITS);
  let unit$i = first_unit(at, min(at.row + row$i, p.rows - 1u)) + (t / PARTS) % STAGE_UNITS;
  var w$i = w_part(unit$i, p.sub, part);
#ifdef u_q
  var u$i = u_part(unit$i, p.u_sub, part);
#endif
#endfor
#for i FM
#for j FN
  var sum$i_$j: cSums;
#ifdef u_q
  var up$i_$j: cSums;
#endif
#endfor
#endfor
  // The device is one whose subgroups have so many lanes. Matrix i of a subgroup's tokens is that of rows i * SM + group_m.
  let group = t / LANES;
  let lane = t % LANES;
  let group_m = group / SN;
  let group_n = group % SN;
  let own_x = group_m * (MAT * PITCH);
  let own_w = group_n * (FN * MAT * PITCH);
#ifdef FEW_TOKENS
  // Tiles of experts are as high as the largest; most matrices of a low one would hold no token.
  if (at.count <= half_FM * (SM * MAT)) {
#ifdef QUARTER
    if (at.count <= quarter_FM * (SM * MAT)) {
#import gemm_stages as quarter
    } else {
#import gemm_stages as half
    }
#else
#import gemm_stages as half
#endif
  } else {
#import gemm_stages as all
  }
#else
#import gemm_stages as all
#endif

  let own = group / TURNS * (MAT * OUT_PITCH);
  let turn = group % TURNS;
  let lane_row = lane / ROW_VECTORS;
  let lane_column = lane % ROW_VECTORS * 4u;
  let own_row = at.row + group_n * (FN * MAT) + lane_column;
#for i FM
  if ($iu * (SM * MAT) < at.count) {
#for v LANE_VECTORS
    let m$v = ($iu * SM + group_m) * MAT + lane_row + $vu * LANE_ROWS;
    let some$v = m$v < at.count && lane_row < MAT;
    let place$v = min(m$v, at.count - 1u);
    let scale$v = x_scales[input_row(at.first + place$v)];
    let to$v = output_index(at, place$v);
#endfor
#for j FN
#for r TURNS
  {
    if (turn == $ru) {
      // Named first: naga 30 would compute what stands in the call after the store.
      let value = sum$i_$j;
      coopStoreT(value, &out[own], OUT_PITCH);
    }
    own_barrier();
#ifdef u_q
#for v LANE_VECTORS
    let gate$v = sums_at(own, (lane_row + $vu * LANE_ROWS) % MAT, lane_column) * scale$v;
#endfor
    own_barrier();
    if (turn == $ru) {
      let second = up$i_$j;
      coopStoreT(second, &out[own], OUT_PITCH);
    }
    own_barrier();
#endif
    let row = own_row + $ju * MAT;
#for v LANE_VECTORS
    if (some$v && row < p.rows && turn == $ru) {
      let value = sums_at(own, lane_row + $vu * LANE_ROWS, lane_column) * scale$v;
#ifdef u_q
      write(to$v, row, swiglu(gate$v, value));
#else
      write(to$v, row, value);
#endif
    }
#endfor
    own_barrier();
  }
#endfor
#endfor
  }
#endfor
}
