// Keys and values of a block of context rows: latents times the weights that expand_kv_turned and expand_kv_weights write, in f32.
//
// kv (block, WIDTH) has the keys of all heads, then the values of all heads. The rotated part of the keys is in the KV cache.
// Division: grid (tiles of 64 rows, tiles of 64 columns). A thread keeps the sums of 4 rows and 4 pairs of columns in registers. Latents and
// weights pass through workgroup memory, 16 columns of the latent at a time.
// Bound by: the multiply-adds, 2 * WIDTH * KV_LORA flops per row.
#number KV_LORA CACHE_ROW WIDTH  // width of a latent, words of 16 bits in a row of the cache, values that a row of the context expands to
#number WG  // threads of a workgroup
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#ifdef CODES
#read cache: array<u32> @cache(CACHE_ROWS * CACHE_ROW)        // (rows, CACHE_ROW / 2) words, see shared/cache_codes.wgsl
#import cache_codes
#else
#read cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_ROW)  // (rows, CACHE_ROW / 4) of 4 f16
#endif
#read weights: array<vec4<f32>> @floats(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<vec2<f32>> @floats(p.rows * WIDTH)           // (block, WIDTH / 2)
#import own_pages
#each i 4
#each j 4
#each s 2

const TILE = 64u;
// In vec4: a stage has 4 of each row. Rows are padded by one, so that they lie in different banks.
const DEPTH = 4u;
const PITCH = DEPTH + 1u;
// The distance between two rows, or two pairs of columns, of a thread.
const FURTHER = 16u;

var<workgroup> left: array<vec4<f32>, TILE * PITCH>;    // (row, depth)
var<workgroup> right: array<vec4<f32>, TILE * PITCH>;   // (column, depth)

// A thread's sums: of one row and its pairs of columns, and of all its rows.
alias RowSums = array<vec2<f32>, 4>;
alias Sums = array<RowSums, 4>;

#ifdef CODES
// Vector `c` of 4 values of the latent of a row, which begins at word `row`.
fn latent_four(row: u32, c: u32) -> vec4<f32> {
  return four_codes(cache[row + c]) * scale_in(cache[row + SCALES_AT + c / 16u], c / 8u);
}
#else
fn widen(x: vec2<u32>) -> vec4<f32> {
  return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}
#endif

// Adds the products of vector d of a stage. The thread's rows begin at `row`, its columns at `column`.
fn multiply(row: u32, column: u32, d: u32, sums: ptr<function, Sums>) {
  let even$j = right[(column + $ju * FURTHER) * PITCH + d];
  let odd$j = right[(column + $ju * FURTHER + 1u) * PITCH + d];
#for r 4
  let l$r = left[(row + $ru * FURTHER) * PITCH + d];
  (*sums)[$r][$j] += vec2(dot(l$r, even$j), dot(l$r, odd$j));
#endfor
}

// Writes the sums of a row. The thread's columns begin at `column`.
fn store(row: u32, column: u32, sums: RowSums) {
  if (row >= p.rows) { return; }
  let c$j = column + $ju * FURTHER;
  if (c$j < WIDTH) { kv[row * (WIDTH / 2u) + c$j / 2u] = sums[$j]; }
}

#main
  let first_row = wid.x * TILE;
  let first_column = wid.y * TILE;
  // Places that this thread loads from. Rows behind the end are never read, because they may hold anything, even NaN.
  let at$s = ($su * WG + t) / DEPTH * PITCH + t % DEPTH;
  let position$s = p.begin + min(first_row + ($su * WG + t) / DEPTH, p.rows - 1u);
#ifdef CODES
  let a$s = (position$s + moved(position$s)) * (CACHE_ROW / 2u);
#else
  let a$s = (position$s + moved(position$s)) * (CACHE_ROW / 4u) + t % DEPTH;
#endif
  let b$s = min(first_column + ($su * WG + t) / DEPTH, WIDTH - 1u) * (KV_LORA / 4u) + t % DEPTH;
  let row = t / 8u;
  let column = t % 8u * 2u;
  var sums: Sums;
  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
#ifdef CODES
    let x$s = latent_four(a$s, k + t % DEPTH);
#else
    let x$s = widen(cache[a$s + k]);
#endif
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
