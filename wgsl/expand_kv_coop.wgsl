// What expand_kv.wgsl computes, by cooperative matrices (MAT x MAT): f16 in and out, sums in f32.
//
// Division: grid (rows, columns) in tiles of (GROUPS_M * TILES_M) x (GROUPS_N * TILES_N) matrices; a subgroup owns
// TILES_M x TILES_N of them in registers. Both sides pass through workgroup memory DEPTH deep, loaded to registers while the
// stage before is multiplied. Each subgroup scatters its sums through a place of its own.
// Bound by: the matrix units; loads from workgroup memory, TILES_M + TILES_N matrices for TILES_M * TILES_N products.
enable f16;
enable wgpu_cooperative_matrix;
#import coop_stage
#import coop_few as sums
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#read cache: array<vec4<f16>> @cache(CONTEXT * CACHE_ROW)     // (n_ctx, CACHE_ROW / 4)
#read weights: array<vec4<f16>> @halves(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<FewHalves> @halves(p.rows * WIDTH)           // (block, WIDTH / FEW)
#import MATRICES as c
#import coop_own

const ROWS = GROUPS_M * TILES_M * MAT;
const COLUMNS = GROUPS_N * TILES_N * MAT;
// Rows in workgroup memory are 8 values longer: 8 of them lie in different banks.
const PITCH = DEPTH + 8u;

var<workgroup> left: array<Stage, ROWS * PITCH / STAGE>;       // (row of the tile, depth)
var<workgroup> right: array<Stage, COLUMNS * PITCH / STAGE>;   // (column of the tile, depth)
var<workgroup> sums: array<Sum, WG / LANES * MAT * MAT / SUM>; // (subgroup, row, column)

#main
  // The device is one whose subgroups have LANES lanes.
  let group = t / LANES;
  let lane = t % LANES;
  let first_row = wid.x * ROWS;
  let first_column = wid.y * COLUMNS;
  // Rows beyond the end are never read: what lies there may not even be a number.
#for i LEFT_LOADS
  let a$i = (p.begin + min(first_row + ($iu * WG + t) / (DEPTH / 4u), p.rows - 1u)) * (CACHE_ROW / 4u) + t % (DEPTH / 4u);
  var x$i = cache[a$i];
#endfor
#for i RIGHT_LOADS
  let b$i = min(first_column + ($iu * WG + t) / (DEPTH / 4u), WIDTH - 1u) * (KV_LORA / 4u) + t % (DEPTH / 4u);
  var w$i = weights[b$i];
#endfor
#for m TILES_M
#for n TILES_N
  var sum$m_$n: cSums;
#endfor
#endfor
  let own_rows = group / GROUPS_N * (TILES_M * MAT);
  let own_columns = group % GROUPS_N * (TILES_N * MAT);

  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
    workgroupBarrier();
#for i LEFT_LOADS
    {
      let at = (($iu * WG + t) / (DEPTH / 4u) * PITCH + t % (DEPTH / 4u) * 4u) / STAGE;
#ifdef VECTORS
      left[at] = x$i;
#else
      left[at] = x$i.x;
      left[at + 1u] = x$i.y;
      left[at + 2u] = x$i.z;
      left[at + 3u] = x$i.w;
#endif
    }
#endfor
#for i RIGHT_LOADS
    {
      let at = (($iu * WG + t) / (DEPTH / 4u) * PITCH + t % (DEPTH / 4u) * 4u) / STAGE;
#ifdef VECTORS
      right[at] = w$i;
#else
      right[at] = w$i.x;
      right[at + 1u] = w$i.y;
      right[at + 2u] = w$i.z;
      right[at + 3u] = w$i.w;
#endif
    }
#endfor
    workgroupBarrier();
    k += DEPTH / 4u;
    // The stage after the last one is the last again, from the first-level cache.
    let next = min(k, (KV_LORA - DEPTH) / 4u);
#for i LEFT_LOADS
    x$i = cache[a$i + next];
#endfor
#for i RIGHT_LOADS
    w$i = weights[b$i + next];
#endfor
#for d DEPTH_STEPS
#for m TILES_M
    let l$d_$m = coopLoadT<cLeft>(&left[((own_rows + $mu * MAT) * PITCH + $du * MAT) / STAGE], PITCH / STAGE);
#endfor
#for n TILES_N
    let r$d_$n = coopLoad<cRight>(&right[((own_columns + $nu * MAT) * PITCH + $du * MAT) / STAGE], PITCH / STAGE);
#for m TILES_M
    sum$m_$n = coopMultiplyAdd(l$d_$m, r$d_$n, sum$m_$n);
#endfor
#endfor
#endfor
  }

  let own_sums = group * (MAT * MAT);
#for m TILES_M
#for n TILES_N
  {
    // Named first: naga 30 would compute what stands in the call after the store.
    let sum = sum$m_$n;
    coopStoreT(sum, &sums[own_sums / SUM], MAT / SUM);
    own_barrier();
#for i FEWS
    {
      let e = ($iu * LANES + lane) * FEW;
      let row = first_row + own_rows + $mu * MAT + e / MAT;
      let column = first_column + own_columns + $nu * MAT + e % MAT;
      if (row < p.rows && column < WIDTH) {
        kv[(row * WIDTH + column) / FEW] = FewHalves(sums_few((own_sums + e) / SUM, 0u));
      }
    }
#endfor
    own_barrier();
  }
#endfor
#endfor
}
