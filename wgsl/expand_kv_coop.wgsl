// Computes what expand_kv.wgsl does, by cooperative matrices (MAT x MAT): in f16, with sums in f32.
//
// Division: grid (tiles of ROWS rows, tiles of COLUMNS columns). A workgroup has GROUPS_M x GROUPS_N subgroups, each of which keeps
// TILES_M x TILES_N matrices of sums in registers. Latents and weights pass through workgroup memory in stages of DEPTH columns of the
// latent. A stage is loaded to registers while the one before is multiplied. Each subgroup writes its sums through its own area of memory.
// Bound by: the matrix units; loads from workgroup memory, TILES_M + TILES_N matrices for TILES_M * TILES_N products.
enable f16;
enable wgpu_cooperative_matrix;
#number KV_LORA CACHE_ROW WIDTH  // width of a latent, words of 16 bits in a row of the cache, values that a row of the context expands to
#number WG LANES MAT GROUPS_M  // threads of a workgroup, threads of a subgroup, rows of a matrix, subgroups along rows
#number GROUPS_N TILES_M TILES_N  // subgroups along outputs, matrices of a subgroup along rows, matrices of a subgroup along outputs
#number DEPTH LEFT_LOADS RIGHT_LOADS  // columns of a stage, vectors of the left tile of a thread, vectors of the right tile of a thread
#number DEPTH_STEPS FEWS  // matrices along them, shares of a matrix that a lane writes
#import coop_put as left
#import coop_put as right
#import coop_few as sums
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#ifdef CODES
#read cache: array<u32> @cache(CACHE_ROWS * CACHE_ROW)        // (rows, CACHE_ROW / 2) words, see shared/cache_codes.wgsl
#import cache_halves
#else
#read cache: array<vec4<f16>> @cache(CACHE_ROWS * CACHE_ROW)  // (rows, CACHE_ROW / 4)
#endif
#read weights: array<vec4<f16>> @halves(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<FewHalves> @halves(p.rows * WIDTH)           // (block, WIDTH / FEW)
#import MATRICES as c
#import own_pages
#import coop_own
#each i LEFT_LOADS
#each j RIGHT_LOADS
#each d DEPTH_STEPS
#each m TILES_M
#each n TILES_N
#each e FEWS

const ROWS = GROUPS_M * TILES_M * MAT;
const COLUMNS = GROUPS_N * TILES_N * MAT;
// Vectors of a row in a stage.
const QUADS = DEPTH / 4u;
// Rows in workgroup memory are padded by 8 values, so that 8 of them lie in different banks.
const PITCH = DEPTH + 8u;

var<workgroup> left: array<Stage, ROWS * PITCH / STAGE>;       // (row of the tile, depth)
var<workgroup> right: array<Stage, COLUMNS * PITCH / STAGE>;   // (column of the tile, depth)
var<workgroup> sums: array<Sum, WG / LANES * MAT * MAT / SUM>; // (subgroup, row, column)

// A subgroup's sums: (matrix along rows, matrix along columns).
alias Sums = array<cSums, TILES_M * TILES_N>;

// The element of workgroup memory at which vector i of a stage lies.
fn place(i: u32) -> u32 { return (i / QUADS * PITCH + i % QUADS * 4u) / STAGE; }

// Multiplies the MAT columns of a stage from `depth` on. Matrices of the right side are loaded one by one to save registers.
fn multiply(t: u32, own_rows: u32, own_columns: u32, depth: u32, own: ptr<function, Sums>) {
  let l$m = coopLoadT<cLeft>(&left[((own_rows + $mu * MAT) * PITCH + depth) / STAGE], PITCH / STAGE);
#for o TILES_N
  let r$o = coopLoad<cRight>(&right[((own_columns + $ou * MAT) * PITCH + depth) / STAGE], PITCH / STAGE);
  (*own)[$m * TILES_N + $o] = coopMultiplyAdd(l$m, r$o, (*own)[$m * TILES_N + $o]);
#endfor
}

// Writes a matrix of sums through the subgroup's area. Its first row and column are given.
fn write(t: u32, first_row: u32, first_column: u32, own: cSums) {
  let area = t / LANES * (MAT * MAT);
  coopStoreT(own, &sums[area / SUM], MAT / SUM);
  own_barrier();
  let at$e = ($eu * LANES + t % LANES) * FEW; write_few(first_row + at$e / MAT, first_column + at$e % MAT, area + at$e);
  own_barrier();
}

#ifdef CODES
// The codes of vector `c` of 4 values of the latent of a row, which begins at word `row`, and the word with their scale.
fn latent_asked(row: u32, c: u32) -> vec2<u32> { return vec2(cache[row + c], cache[row + SCALES_AT + c / 16u]); }

#endif
fn write_few(row: u32, column: u32, at: u32) {
  if (row >= p.rows || column >= WIDTH) { return; }
  kv[(row * WIDTH + column) / FEW] = FewHalves(sums_few(at / SUM, 0u));
}

#main
  // This kernel runs on devices whose subgroups all have LANES lanes.
  let group = t / LANES;
  let first_row = wid.x * ROWS;
  let first_column = wid.y * COLUMNS;
  // Rows behind the end are never read, because they may hold anything, even NaN.
  let position$i = p.begin + min(first_row + ($iu * WG + t) / QUADS, p.rows - 1u);
#ifdef CODES
  let a$i = (position$i + moved(position$i)) * (CACHE_ROW / 2u);
#else
  let a$i = (position$i + moved(position$i)) * (CACHE_ROW / 4u) + t % QUADS;
#endif
  let b$j = min(first_column + ($ju * WG + t) / QUADS, WIDTH - 1u) * (KV_LORA / 4u) + t % QUADS;
#ifdef CODES
  var x$i = latent_asked(a$i, t % QUADS);
#else
  var x$i = cache[a$i];
#endif
  var w$j = weights[b$j];
  var own: Sums;
  let own_rows = group / GROUPS_N * (TILES_M * MAT);
  let own_columns = group % GROUPS_N * (TILES_N * MAT);
  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
    workgroupBarrier();
#ifdef CODES
    left_put(place($iu * WG + t), four_halves(x$i.x, f16(scale_in(x$i.y, (k + t % QUADS) / 8u))));
#else
    left_put(place($iu * WG + t), x$i);
#endif
    right_put(place($ju * WG + t), w$j);
    workgroupBarrier();
    k += QUADS;
    // Behind the last stage it is loaded again, from the first-level cache.
    let next = min(k, (KV_LORA - DEPTH) / 4u);
#ifdef CODES
    x$i = latent_asked(a$i, next + t % QUADS);
#else
    x$i = cache[a$i + next];
#endif
    w$j = weights[b$j + next];
    multiply(t, own_rows, own_columns, $du * MAT, &own);
  }
  write(t, first_row + own_rows + $mu * MAT, first_column + own_columns + $nu * MAT, own[$m * TILES_N + $n]);
}
