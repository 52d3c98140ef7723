// Computes what batch_matvec does, by cooperative matrices (MAT x MAT): inputs and weights are rounded to f16, sums are in f32.
//
// Shapes are those of batch_matvec.wgsl. A row of x is scaled to the range of f16 by the largest value that it may have.
// Division: grid (tiles of TILE rows, tiles of COLS places, groups). A workgroup has SUBGROUPS subgroups, which share the columns: each takes
// every SUBGROUPS-th unit of all rows and places of the tile, moves it to its own part of workgroup memory, and multiplies it. So they do
// not wait for each other until they add up their sums at the end.
// Bound by: with few places the bytes of W; else the loads of x, which every workgroup reads from the second-level cache.
enable f16;
enable wgpu_cooperative_matrix;
#word rows: u32          // of W in a group
#word first_row: u32     // of this piece in y
#word first_group: u32   // of this piece: head or 0
#word groups: u32        // in this piece
#word sub: u32           // sub-plane of the scales, in words
#word u_sub?: u32        // that of the second weight
#word tokens: u32
#word eps?: f32          // of the norm
#read w_q: array<vec4<u32>> @codes(WEIGHT, W_UNITS)     // (groups, rows, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, W_UNITS)     // (groups, rows, UNITS) units
#read u_q?: array<vec4<u32>> @codes(UP, W_UNITS)        // the same
#read u_s?: array<u_Scales> @scales(UP, W_UNITS)        // the same
#length INPUT_UNITS X_ROWS * X_STRIDE
#length OUT_ROWS Y_ROWS * OUT_STRIDE
#each k STEPS
#each i TOKEN_TILES
#each j W_TILES
#each l X_LOADS
#each m W_LOADS
#each n U_LOADS
#each v 4
#each g SUBGROUPS
#each q QUADS
#import w32
#import INPUT as x
#import WEIGHT as w
#import gemm_halves
#import W_FRACTION as w
#import MATRICES as c
#import coop_own
#import coop_put as xs
#import coop_put as ws
#import coop_few as out
#import GROUPS as group

// The tile of a workgroup: `count` places from `first` on, and TILE rows of W from `row` on in `group`.
struct Tile { first: u32, count: u32, group: u32, row: u32 }
#import columns_rms
#import batch_leave

const W_ROWS = TILE * WEIGHTS;
// Columns of a stage, and of a row in workgroup memory: 16 bytes more, so that 8 rows lie in different banks.
const DEPTH = 32u;
const PITCH = (DEPTH + 8u) / STAGE;
const QUAD = 4u / STAGE;
// Where a row is scaled to: far below the largest f16.
const LARGEST = 16384.0;
// A row whose largest value is not above this becomes 0: the inverse of its scale might overflow f32.
const SMALLEST = 1e-30;
const MATRIX = MAT * MAT;
var<workgroup> xs: array<Stage, SUBGROUPS * COLS * PITCH>;      // (subgroup, place, column)
var<workgroup> ws: array<Stage, SUBGROUPS * W_ROWS * PITCH>;    // (subgroup, row, column)
var<workgroup> out: array<Sum, SUBGROUPS * COLS * W_ROWS / SUM>;   // (subgroup, matrix along places, matrix along rows, place, row)
var<workgroup> largest: array<f32, COLS * SQUARE_RUNS>;         // (place, run)
alias Sums = array<cSums, TOKEN_TILES * W_TILES>;

// The largest value that the row of a place may have, as far as this thread looks: SQUARE_THREADS threads share a place.
fn largest_of(first: u32, t: u32) -> f32 {
  var most = 0.0;
  var i = t % SQUARE_THREADS;
  loop {
    if (i >= 2u * UNITS) { break; }
    most = max(most, x_largest(first + i / 2u, i & 1u));
    i += SQUARE_THREADS;
  }
  if (SQUARE_RUN > 16u) { most = max(most, subgroupShuffleXor(most, 16u)); }
  if (SQUARE_RUN > 8u) { most = max(most, subgroupShuffleXor(most, 8u)); }
  if (SQUARE_RUN > 4u) { most = max(most, subgroupShuffleXor(most, 4u)); }
  if (SQUARE_RUN > 2u) { most = max(most, subgroupShuffleXor(most, 2u)); }
  if (SQUARE_RUN > 1u) { most = max(most, subgroupShuffleXor(most, 1u)); }
  return most;
}

// The scale of a place's row, and its inverse.
fn row_scale(place: u32) -> vec2<f32> {
  var most = 0.0;
#for s SQUARE_RUNS
  most = max(most, largest[place * SQUARE_RUNS + $su]);
#endfor
  let some = most > SMALLEST;
  return vec2(select(0.0, most / LARGEST, some), select(0.0, LARGEST / max(most, SMALLEST), some));
}

fn x_put(at: u32, v: x_Half, factor: f32) {
  xs_put(at + $vu * QUAD, x_four(v, $vu, factor));
}

// The first matrix of the subgroup's sums of place and row, and the sum over the subgroups of four rows.
fn four_sums(place: u32, row: u32) -> vec4<f32> {
  let at = (place / MAT * W_TILES + row / MAT) * MATRIX + place % MAT * MAT + row % MAT;
  var sum = vec4(0.0);
  sum += vec4(out_two(at + $gu * (COLS * W_ROWS)), out_two(at + $gu * (COLS * W_ROWS) + 2u));
  return sum;
}

#ifdef VECTORS
fn out_two(at: u32) -> vec2<f32> { return select(out[at / 4u].xy, out[at / 4u].zw, vec2((at & 2u) == 2u)); }
#else
fn out_two(at: u32) -> vec2<f32> { return vec2(out[at], out[at + 1u]); }
#endif

// Four finished rows of a place. exp(-gate) is kept finite, because Metal's fast math may assume that it is.
fn finished(place: u32, row: u32, scale: f32) -> vec4<f32> {
  let first = four_sums(place, row) * scale;
  if (WEIGHTS == 1u) { return first; }
  return first / (1.0 + exp(min(-first, vec4(80.0)))) * (four_sums(place, TILE + row) * scale);
}

#ifdef u_q
#import UP as u
#import U_FRACTION as u
fn second_fraction(unit: u32, half: u32) -> Fraction { return u_fraction(unit, p.u_sub, half); }
#else
fn second_fraction(unit: u32, half: u32) -> Fraction { return Fraction(); }
#endif

#main
  let at = Tile(wid.y * COLS, min(COLS, p.tokens - wid.y * COLS), wid.z, wid.x * TILE);
  // This kernel runs on devices whose subgroups all have LANES lanes.
  let own = t / LANES;
  let lane = t % LANES;
  let four$q = four_rows(at, $qu * WG + t);
  let before$q = residual_at(four$q.to / 4u);
  let weight$q = norm_weight_at(four$q.to % OUT_STRIDE / 4u);
  let squares = squares_ask(at, t);
  let group_units = (p.first_group + at.group) * X_GROUP;
  let looked = group_input(at, min(t / SQUARE_THREADS, at.count - 1u)) * X_STRIDE + group_units;
  let most = largest_of(looked, t);
  if (t % SQUARE_RUN == 0u) { largest[t / SQUARE_RUN] = most; }
  squares_put(squares, t);
  workgroupBarrier();
  // What a lane moves: halves of units of some places, and of some rows of each weight.
  let place$l = ($lu * LANES + lane) / 2u;
  let from$l = group_input(at, min(place$l, at.count - 1u)) * X_STRIDE + group_units;
  let factor$l = select(0.0, row_scale(min(place$l, COLS - 1u)).y, place$l < at.count);
  let row$m = ($mu * LANES + lane) / 2u;
  let unit$m = (at.group * p.rows + min(at.row + row$m, p.rows - 1u)) * UNITS;
  let half = lane & 1u;
  let own_x = own * (COLS * PITCH);
  let own_w = own * (W_ROWS * PITCH);
  var sums: Sums;
  var step = 0u;
  loop {
    if (step >= TURNS) { break; }
    // Behind the last unit the values of x are 0.
    let u = step * SUBGROUPS + own;
    let here = min(u, UNITS - 1u);
    let valid = select(0.0, 1.0, u < UNITS);
    let x$l = x_half(from$l + here, half);
    let w$m = w_fraction(unit$m + here, p.sub, half);
    let u$n = second_fraction(unit$n + here, half);
    own_barrier();
    if (place$l < COLS) { x_put(own_x + place$l * PITCH + half * (16u / STAGE), x$l, factor$l * valid); }
    if (row$m < TILE) { put_fraction(own * W_ROWS + row$m, half * 4u, w$m); }
    if (row$n < TILE) { put_fraction(own * W_ROWS + TILE + row$n, half * 4u, u$n); }
    own_barrier();
    let a$k_$i = coopLoadT<cLeft>(&xs[own_x + $iu * (MAT * PITCH) + $ku * (MAT / STAGE)], PITCH);
#for o W_TILES
    let b$k_$o = coopLoad<cRight>(&ws[own_w + $ou * (MAT * PITCH) + $ku * (MAT / STAGE)], PITCH);
    sums[$i * W_TILES + $o] = coopMultiplyAdd(a$k_$i, b$k_$o, sums[$i * W_TILES + $o]);
#endfor
    step += 1u;
  }
  coopStoreT(sums[$i * W_TILES + $j], &out[((own * TOKEN_TILES + $iu) * W_TILES + $ju) * MATRIX / SUM], MAT / SUM);
  workgroupBarrier();
  if (four$q.some) { leave(four$q, $qu * WG + t, finished(four$q.place, four$q.row, column_scale(four$q.place) * row_scale(four$q.place).x) + before$q, weight$q); }
}
