// What expand_kv.wgsl computes, by cooperative matrices (MAT x MAT): f16 in and out, sums in f32.
//
// Division: grid (rows, columns) in tiles of (GROUPS_M * TILES_M) x (GROUPS_N * TILES_N) matrices; a subgroup owns
// TILES_M x TILES_N of them in registers. Both sides pass through workgroup memory DEPTH deep, loaded to registers while the
// stage before is multiplied. Each subgroup scatters its sums through a place of its own.
// Bound by: the matrix units; loads from workgroup memory, TILES_M + TILES_N matrices for TILES_M * TILES_N products.
enable f16;
enable wgpu_cooperative_matrix;
#import coop_put as left
#import coop_put as right
#import coop_few as sums
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#read cache: array<vec4<f16>> @cache(CONTEXT * CACHE_ROW)     // (n_ctx, CACHE_ROW / 4)
#read weights: array<vec4<f16>> @halves(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<FewHalves> @halves(p.rows * WIDTH)           // (block, WIDTH / FEW)
#import MATRICES as c
#import coop_own
#each i LEFT_LOADS
#each j RIGHT_LOADS
#each d DEPTH_STEPS
#each m TILES_M
#each n TILES_N
#each e FEWS

const ROWS = GROUPS_M * TILES_M * MAT;
const COLUMNS = GROUPS_N * TILES_N * MAT;
// Vectors of a row at once.
const QUADS = DEPTH / 4u;
// Rows in workgroup memory are 8 values longer: 8 of them lie in different banks.
const PITCH = DEPTH + 8u;

var<workgroup> left: array<Stage, ROWS * PITCH / STAGE>;       // (row of the tile, depth)
var<workgroup> right: array<Stage, COLUMNS * PITCH / STAGE>;   // (column of the tile, depth)
var<workgroup> sums: array<Sum, WG / LANES * MAT * MAT / SUM>; // (subgroup, row, column)

// A subgroup's sums, row of matrices by row.
alias Sums = array<cSums, TILES_M * TILES_N>;

// Where vector i of those that the workgroup moves lies in workgroup memory.
fn place(i: u32) -> u32 { return (i / QUADS * PITCH + i % QUADS * 4u) / STAGE; }

// Multiplies the columns of a stage that begin at `depth`. It loads the matrices on the right one by one, so that few registers are held.
fn multiply(t: u32, own_rows: u32, own_columns: u32, depth: u32, own: ptr<function, Sums>) {
  let l$m = coopLoadT<cLeft>(&left[((own_rows + $mu * MAT) * PITCH + depth) / STAGE], PITCH / STAGE);
#for o TILES_N
  let r$o = coopLoad<cRight>(&right[((own_columns + $ou * MAT) * PITCH + depth) / STAGE], PITCH / STAGE);
  (*own)[$m * TILES_N + $o] = coopMultiplyAdd(l$m, r$o, (*own)[$m * TILES_N + $o]);
#endfor
}

// Writes a matrix of sums, whose first row and column are given, through the subgroup's own place.
fn write(t: u32, first_row: u32, first_column: u32, own: cSums) {
  let place = t / LANES * (MAT * MAT);
  coopStoreT(own, &sums[place / SUM], MAT / SUM);
  own_barrier();
  let at$e = ($eu * LANES + t % LANES) * FEW; write_few(first_row + at$e / MAT, first_column + at$e % MAT, place + at$e);
  own_barrier();
}

fn write_few(row: u32, column: u32, at: u32) {
  if (row >= p.rows || column >= WIDTH) { return; }
  kv[(row * WIDTH + column) / FEW] = FewHalves(sums_few(at / SUM, 0u));
}

#main
  // The device is one whose subgroups have LANES lanes.
  let group = t / LANES;
  let first_row = wid.x * ROWS;
  let first_column = wid.y * COLUMNS;
  // Rows beyond the end are never read: what lies there may not even be a number.
  let a$i = (p.begin + min(first_row + ($iu * WG + t) / QUADS, p.rows - 1u)) * (CACHE_ROW / 4u) + t % QUADS;
  let b$j = min(first_column + ($ju * WG + t) / QUADS, WIDTH - 1u) * (KV_LORA / 4u) + t % QUADS;
  var x$i = cache[a$i];
  var w$j = weights[b$j];
  var own: Sums;
  let own_rows = group / GROUPS_N * (TILES_M * MAT);
  let own_columns = group % GROUPS_N * (TILES_N * MAT);
  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
    workgroupBarrier();
    left_put(place($iu * WG + t), x$i);
    right_put(place($ju * WG + t), w$j);
    workgroupBarrier();
    k += QUADS;
    // The stage after the last one is the last again, from the first-level cache.
    let next = min(k, (KV_LORA - DEPTH) / 4u);
    x$i = cache[a$i + next];
    w$j = weights[b$j + next];
    multiply(t, own_rows, own_columns, $du * MAT, &own);
  }
  write(t, first_row + own_rows + $mu * MAT, first_column + own_columns + $nu * MAT, own[$m * TILES_N + $n]);
}
