// Keys and values of a block of context rows: latents times the weights of expand_kv_weights, in f32.
//
// kv (block, WIDTH): the keys of all heads (without their rotated part, which the cache has), then the values of all heads.
// Division: grid (64 rows, 64 columns); a thread owns 4 rows and 4 pairs of columns in registers, both tiles pass through workgroup
// memory 16 deep.
// Bound by: multiply-adds, 2 * WIDTH * KV_LORA flops per row.
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#read cache: array<vec2<u32>> @cache(CONTEXT * CACHE_ROW)     // (n_ctx, CACHE_ROW / 4) of 4 f16
#read weights: array<vec4<f32>> @floats(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<vec2<f32>> @floats(p.rows * WIDTH)           // (block, WIDTH / 2)
#each i 4
#each j 4
#each s 2

const TILE = 64u;
// In vec4: a tile is 4 of them deep, and rows one further apart lie in other banks.
const DEPTH = 4u;
const PITCH = DEPTH + 1u;
// From one row or pair of columns of a thread to its next one.
const FURTHER = 16u;

var<workgroup> left: array<vec4<f32>, TILE * PITCH>;
var<workgroup> right: array<vec4<f32>, TILE * PITCH>;

// A thread's sums, of a row and pairs of columns.
alias RowSums = array<vec2<f32>, 4>;
alias Sums = array<RowSums, 4>;

fn widen(x: vec2<u32>) -> vec4<f32> {
  return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}

// Adds the products of vector d of the tiles, for rows from `row` and columns from `column` on.
fn multiply(row: u32, column: u32, d: u32, sums: ptr<function, Sums>) {
  let even$j = right[(column + $ju * FURTHER) * PITCH + d];
  let odd$j = right[(column + $ju * FURTHER + 1u) * PITCH + d];
#for r 4
  let l$r = left[(row + $ru * FURTHER) * PITCH + d];
  (*sums)[$r][$j] += vec2(dot(l$r, even$j), dot(l$r, odd$j));
#endfor
}

// Writes the sums of a row, from the pair of columns at `column` on.
fn store(row: u32, column: u32, sums: RowSums) {
  if (row >= p.rows) { return; }
  let c$j = column + $ju * FURTHER;
  if (c$j < WIDTH) { kv[row * (WIDTH / 2u) + c$j / 2u] = sums[$j]; }
}

#main
  let first_row = wid.x * TILE;
  let first_column = wid.y * TILE;
  // What this thread loads: rows beyond the end are never read, what lies there may not even be a number.
  let at$s = ($su * WG + t) / DEPTH * PITCH + t % DEPTH;
  let a$s = (p.begin + min(first_row + ($su * WG + t) / DEPTH, p.rows - 1u)) * (CACHE_ROW / 4u) + t % DEPTH;
  let b$s = min(first_column + ($su * WG + t) / DEPTH, WIDTH - 1u) * (KV_LORA / 4u) + t % DEPTH;
  let row = t / 8u;
  let column = t % 8u * 2u;
  var sums: Sums;
  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
    let x$s = widen(cache[a$s + k]);
    let w$s = weights[b$s + k];
    workgroupBarrier();
    left[at$s] = x$s;
    right[at$s] = w$s;
    workgroupBarrier();
    multiply(row, column, $iu, &sums);
    k += DEPTH;
  }
  store(first_row + row + $iu * FURTHER, first_column + column, sums[$i]);
}
