// What gemm.wgsl computes, by cooperative matrices: inputs and weights rounded to f16, sums in f32.
//
// x (tokens, x_stride) are halves and x_scales (tokens) what they are multiplied by (see rows_f16); the rest as in gemm.wgsl.
// Division: a workgroup owns BM tokens and BN rows; in stages of STAGE_UNITS units of 32 columns it moves a tile of x and one of
// W, dequantised, to workgroup memory (shared/gemm_stages.wgsl). It has SM x SN subgroups, each of which multiplies FM x FN matrices of
// MAT x MAT, in a pair as many of the second weight beside them: W_FN along rows. The sums stay in registers. They pass through
// workgroup memory in the end, where lanes scale and write them, few at a time: workgroup memory bounds how many workgroups share
// a multiprocessor.
// Bound by: loads and barriers of a stage; with few tokens by the bytes of W, read once per BM tokens.
enable f16;
enable wgpu_cooperative_matrix;
#input x: array<vec4<f16>> @halves(X_LENGTH)
#input x_scales: array<f32> @floats(X_ROWS)
#each c 4
#each j FN
#each r TURNS
#each v LANE_VECTORS
alias Value = vec4<f32>;
#import gemm_place
#import gemm_halves
#import W_FRACTION as w
#import MATRICES as c
#import coop_own
#import coop_put as xs
#import coop_put as ws

const WG = SM * SN * LANES;
const WEIGHTS = W_ROWS / BN;
const DEPTH = STAGE_UNITS * 32u;
// Of vectors of 4 in a row of a stage.
const COLUMNS = DEPTH / 4u;
// In elements: a vector of 4, a matrix, and a row in workgroup memory. It is 16 bytes longer: 8 rows lie in different banks.
const QUAD = 4u / STAGE;
const STEP = MAT / STAGE;
const PITCH = (DEPTH + 8u) / STAGE;
var<workgroup> xs: array<Stage, BM * PITCH>;
var<workgroup> ws: array<Stage, W_ROWS * PITCH>;

// Those of weight w for matrices i along tokens and j along rows: number i * W_FN + j * WEIGHTS + w. Matrix i of a subgroup's tokens is
// that of rows i * SM + (its place along tokens).
alias Sums = array<cSums, FM * W_FN>;

// A lane reads sums back in vectors of 4, LANE_ROWS rows of a matrix at once.
const ROW_VECTORS = MAT / 4u;
const LANE_ROWS = LANES / ROW_VECTORS;
// (place, token, row), a place for each subgroup whose turn it is.
#ifdef VECTORS
const OUT_PITCH = ROW_VECTORS;
var<workgroup> out: array<vec4<f32>, OUTS * MAT * OUT_PITCH>;
fn sums_at(own: u32, row: u32, column: u32) -> vec4<f32> { return out[own + row * OUT_PITCH + column]; }
#else
const OUT_PITCH = MAT;
var<workgroup> out: array<f32, OUTS * MAT * OUT_PITCH>;
fn sums_at(own: u32, row: u32, column: u32) -> vec4<f32> {
  let at = own + row * OUT_PITCH + column * 4u;
  return vec4(out[at], out[at + 1u], out[at + 2u], out[at + 3u]);
}
#endif

// Fractions of a unit of a row of W and, in a pair, of the same one of the second weight.
#ifdef u_q
#import UP as u
#import U_FRACTION as u
struct Brought { w: Fraction, u: Fraction }
fn brought(unit: u32, fraction: u32) -> Brought { return Brought(w_fraction(unit, p.sub, fraction), u_fraction(unit, p.u_sub, fraction)); }
fn put_w(row: u32, column: u32, v: Brought) { put_fraction(row, column, v.w); put_fraction(BN + row, column, v.u); }
#else
alias Brought = Fraction;
fn brought(unit: u32, fraction: u32) -> Brought { return w_fraction(unit, p.sub, fraction); }
fn put_w(row: u32, column: u32, v: Brought) { put_fraction(row, column, v); }
#endif

#import gemm_stages as all
// Tiles of experts are as high as the largest; most matrices of a low one would hold no token.
#ifdef HALF
#import gemm_stages as half
#endif
#ifdef QUARTER
#import gemm_stages as quarter
#endif

// Writes four sums of a token, of W's rows from `row` on; `to` is where row 0 writes.
#ifdef WHOLE_VECTORS
alias Out = vec4<f32>;
fn write(to: u32, row: u32, sums: vec4<f32>) {
  let i = (to + row) / 4u;
  y[i] = with_residual(i, sums);
}
#else
alias Out = f32;
fn write(to: u32, row: u32, sums: vec4<f32>) {
  if (row + $cu < p.rows) { y[to + row + $cu] = with_residual(to + row + $cu, sums[$c]); }
}
#endif

// A token whose sums a lane writes: whether there is one, what its sums are multiplied by, where row 0 of W writes.
struct Owned { some: bool, scale: f32, to: u32 }
alias OwnedRows = array<Owned, LANE_VECTORS>;

fn owned(at: Place, row: u32, m: u32) -> Owned {
  let m_here = min(m, at.count - 1u);
  return Owned(m < at.count && row < MAT, x_scales[group_input_row(at.first + m_here)], group_output(at, m_here));
}

// The tokens of matrix i of a subgroup.
fn owned_rows(at: Place, t: u32, i: u32) -> OwnedRows {
  let row = t % LANES / ROW_VECTORS;
  let first = (i * SM + t / LANES / SN) * MAT + row;
  return OwnedRows(
    owned(at, row, first + $vu * LANE_ROWS),
  );
}

// Scales and writes the sums of a matrix of a subgroup, for rows of W from `first_row` on, in turn `r` of those that share a place in
// workgroup memory. A pair has those of the second weight, too.
fn leave(own: OwnedRows, t: u32, r: u32, first_row: u32, sums: cSums, second: cSums) {
  let group = t / LANES;
  let place = group / TURNS * (MAT * OUT_PITCH);
  let turn = group % TURNS == r;
  let lane_row$v = t % LANES / ROW_VECTORS + $vu * LANE_ROWS;
  let column = t % ROW_VECTORS;
  let row = first_row + group % SN * (FN * MAT) + column * 4u;
  if (turn) { coopStoreT(sums, &out[place], OUT_PITCH); }
  own_barrier();
  var gate$v = vec4(0.0);
  if (PAIR) {
    gate$v = sums_at(place, lane_row$v % MAT, column) * own[$v].scale;
    own_barrier();
    if (turn) { coopStoreT(second, &out[place], OUT_PITCH); }
    own_barrier();
  }
  if (own[$v].some && row < p.rows && turn) { write(own[$v].to, row, finished(gate$v, sums_at(place, lane_row$v, column) * own[$v].scale)); }
  own_barrier();
}

#main
#ifdef tiles
  let tile = tiles[wid.y];
  let expert = tile.x - p.first_group;
  // Nothing left; an expert of another piece: one before this piece wraps around. Only so does naga see that all threads return together.
  if (tile.z == 0u) { return; }
  if (expert >= p.groups) { return; }
  let at = Place(tile.y, tile.z, expert, wid.x * BN);
#else
  let at = Place(wid.y * BM, min(BM, p.tokens - wid.y * BM), wid.z, wid.x * BN);
#endif
  var sums: Sums;
#ifdef QUARTER
  if (at.count <= quarter_FM * (SM * MAT)) { quarter_stages(at, t, &sums); } else
#endif
#ifdef HALF
  if (at.count <= half_FM * (SM * MAT)) { half_stages(at, t, &sums); } else
#endif
  { all_stages(at, t, &sums); }
  // Repeated by text, since constants must number the sums.
#for i FM
  if ($iu * (SM * MAT) < at.count) {
    let own = owned_rows(at, t, $iu);
    leave(own, t, $ru, at.row + $ju * MAT, sums[$i * W_FN + $j * WEIGHTS], sums[$i * W_FN + $j * WEIGHTS + WEIGHTS - 1u]);
  }
#endfor
}
