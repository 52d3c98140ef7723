// Computes what gemm.wgsl does, by cooperative matrices: inputs and weights are rounded to f16, sums are in f32.
//
// x (tokens, x_stride) in f16, and x_scales (tokens), by which the rows of x are multiplied (see rows_f16). The rest is as in gemm.wgsl.
// Division: the grid is that of gemm.wgsl. In stages of STAGE_UNITS units a workgroup moves a tile of x and a dequantised tile of W to
// workgroup memory (shared/gemm_stages.wgsl). Each of its SM x SN subgroups multiplies FM x FN matrices of MAT x MAT, in a pair as many
// of each weight, W_FN along rows. Sums stay in registers until the end. Then they pass through workgroup memory, where lanes scale and
// write them. Only OUTS subgroups do so at once, because workgroup memory limits how many workgroups share a core.
// Bound by: the loads and barriers of a stage; with few tokens the bytes of W, which are read once per BM tokens.
enable f16;
enable wgpu_cooperative_matrix;
#number LANES STAGE_UNITS SM SN  // threads of a subgroup, units of a stage, subgroups along tokens, subgroups along rows of W
#number FM FN MAT  // matrices of a subgroup along tokens, matrices along rows of W, rows of a matrix
#number W_FN OUTS BM  // matrices along the rows of both weights, areas for sums on their way out, tokens of a tile
#number TURNS LANE_VECTORS W_ROWS  // subgroups that share an area, vectors of a matrix that a lane owns, rows of a stage
#number BN  // rows of W in a tile
#input x: array<vec4<f16>> @halves(X_LENGTH)       // (X_ROWS, x_stride)
#input x_scales: array<f32> @floats(X_ROWS)        // (X_ROWS)
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
// Vectors of 4 values in a row of a stage.
const COLUMNS = DEPTH / 4u;
// Sizes in elements of workgroup memory (shared/coop_stage.wgsl): 4 values, the columns of a matrix, and a row. A row is padded by 16
// bytes, so that 8 rows lie in different banks.
const QUAD = 4u / STAGE;
const STEP = MAT / STAGE;
const PITCH = (DEPTH + 8u) / STAGE;
var<workgroup> xs: array<Stage, BM * PITCH>;       // (BM, column)
var<workgroup> ws: array<Stage, W_ROWS * PITCH>;   // (W_ROWS, column)

// The sums of a subgroup, one matrix for each of its matrices i along tokens, matrices j along rows, and weights w, at i * W_FN +
// j * WEIGHTS + w. Its matrix i along tokens is matrix i * SM + group / SN of the tile.
alias Sums = array<cSums, FM * W_FN>;

// A lane reads sums back in vectors of 4; the lanes of a subgroup take LANE_ROWS rows of a matrix at once.
const ROW_VECTORS = MAT / 4u;
const LANE_ROWS = LANES / ROW_VECTORS;
// Sums on their way out: (area, token, row of W). TURNS subgroups share an area and take turns.
#ifdef VECTORS
const OUT_PITCH = ROW_VECTORS;
var<workgroup> out: array<vec4<f32>, OUTS * MAT * OUT_PITCH>;
fn sums_at(area: u32, row: u32, column: u32) -> vec4<f32> { return out[area + row * OUT_PITCH + column]; }
#else
const OUT_PITCH = MAT;
var<workgroup> out: array<f32, OUTS * MAT * OUT_PITCH>;
fn sums_at(area: u32, row: u32, column: u32) -> vec4<f32> {
  let at = area + row * OUT_PITCH + column * 4u;
  return vec4(out[at], out[at + 1u], out[at + 2u], out[at + 3u]);
}
#endif

// A thread's load: a fraction of a unit of a row of W, and in a pair the same fraction of the second weight.
#ifdef u_q
#import UP as u
#import U_FRACTION as u
struct Loaded { w: Fraction, u: Fraction }
fn load_w(unit: u32, fraction: u32) -> Loaded { return Loaded(w_fraction(unit, p.sub, fraction), u_fraction(unit, p.u_sub, fraction)); }
fn put_w(row: u32, column: u32, v: Loaded) { put_fraction(row, column, v.w); put_fraction(BN + row, column, v.u); }
#else
alias Loaded = Fraction;
fn load_w(unit: u32, fraction: u32) -> Loaded { return w_fraction(unit, p.sub, fraction); }
fn put_w(row: u32, column: u32, v: Loaded) { put_fraction(row, column, v); }
#endif

#import gemm_stages as all
// A tile of an expert may have few tokens. It then takes a half or a quarter of the matrices, since the others would hold no token.
#ifdef HALF
#number half_FM  // matrices of a subgroup along tokens then
#import gemm_stages as half
#endif
#ifdef QUARTER
#number quarter_FM  // the same
#import gemm_stages as quarter
#endif

// Writes four sums of a token, of W's rows from `row` on. `to` is where row 0 writes.
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

// A token whose sums a lane writes: whether there is one, the scale of its row of x, and where row 0 of W writes.
struct Owned { some: bool, scale: f32, to: u32 }
alias OwnedRows = array<Owned, LANE_VECTORS>;

fn owned(at: Tile, row: u32, m: u32) -> Owned {
  let m_here = min(m, at.count - 1u);
  return Owned(m < at.count && row < MAT, x_scales[group_input_row(at.first + m_here)], group_output(at, m_here));
}

// The tokens whose sums a lane writes, of the subgroup's matrix i along tokens.
fn owned_rows(at: Tile, t: u32, i: u32) -> OwnedRows {
  let row = t % LANES / ROW_VECTORS;
  let first = (i * SM + t / LANES / SN) * MAT + row;
  return OwnedRows(
    owned(at, row, first + $vu * LANE_ROWS),
  );
}

// Scales and writes a matrix of sums, for rows of W from `first_row` on. It does so for the subgroups whose turn r is. In a pair `second` has
// the sums of the second weight.
fn leave(own: OwnedRows, t: u32, r: u32, first_row: u32, sums: cSums, second: cSums) {
  let group = t / LANES;
  let area = group / TURNS * (MAT * OUT_PITCH);
  let turn = group % TURNS == r;
  let lane_row$v = t % LANES / ROW_VECTORS + $vu * LANE_ROWS;
  let column = t % ROW_VECTORS;
  let row = first_row + group % SN * (FN * MAT) + column * 4u;
  if (turn) { coopStoreT(sums, &out[area], OUT_PITCH); }
  own_barrier();
  var gate$v = vec4(0.0);
  if (PAIR) {
    gate$v = sums_at(area, lane_row$v % MAT, column) * own[$v].scale;
    own_barrier();
    if (turn) { coopStoreT(second, &out[area], OUT_PITCH); }
    own_barrier();
  }
  if (own[$v].some && row < p.rows && turn) { write(own[$v].to, row, finished(gate$v, sums_at(area, lane_row$v, column) * own[$v].scale)); }
  own_barrier();
}

#main
#import gemm_tile
  var sums: Sums;
#ifdef QUARTER
  if (at.count <= quarter_FM * (SM * MAT)) { quarter_stages(at, t, &sums); } else
#endif
#ifdef HALF
  if (at.count <= half_FM * (SM * MAT)) { half_stages(at, t, &sums); } else
#endif
  { all_stages(at, t, &sums); }
  // Lines are repeated instead of looped over, because only constants may index the sums.
#for i FM
  if ($iu * (SM * MAT) < at.count) {
    let own = owned_rows(at, t, $iu);
    leave(own, t, $ru, at.row + $ju * MAT, sums[$i * W_FN + $j * WEIGHTS], sums[$i * W_FN + $j * WEIGHTS + WEIGHTS - 1u]);
  }
#endfor
}
