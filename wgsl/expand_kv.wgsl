// Keys and values of a block of context rows: latents times the weights of expand_kv_weights, in f32.
//
// kv (block, WIDTH): the keys of all heads (without their rotated part, which the cache has), then the values of all heads.
// Division: grid (64 rows, 64 columns); a thread owns 4 rows and 8 columns in registers, both tiles pass through workgroup
// memory 16 deep.
// Bound by: multiply-adds, 2 * WIDTH * KV_LORA flops per row.
#word begin: u32   // first row of the block
#word rows: u32    // of the block
#read cache: array<vec2<u32>> @cache(CONTEXT * CACHE_ROW)     // (n_ctx, CACHE_ROW / 4) of 4 f16
#read weights: array<vec4<f32>> @floats(WIDTH * KV_LORA)      // (WIDTH, KV_LORA / 4)
#write kv: array<vec2<f32>> @floats(p.rows * WIDTH)           // (block, WIDTH / 2)

const TILE = 64u;
// In vec4: a tile is 4 of them deep, and rows one further apart lie in other banks.
const DEPTH = 4u;
const PITCH = DEPTH + 1u;

var<workgroup> left: array<vec4<f32>, TILE * PITCH>;
var<workgroup> right: array<vec4<f32>, TILE * PITCH>;

fn widen(x: vec2<u32>) -> vec4<f32> {
  return vec4(unpack2x16float(x.x), unpack2x16float(x.y));
}

#main
  let first_row = wid.x * TILE;
  let first_column = wid.y * TILE;
  // What this thread loads: rows beyond the end are never read, what lies there may not even be a number.
#for i 2
  let at$i = ($iu * WG + t) / DEPTH * PITCH + t % DEPTH;
  let a$i = (p.begin + min(first_row + ($iu * WG + t) / DEPTH, p.rows - 1u)) * (CACHE_ROW / 4u) + t % DEPTH;
  let b$i = min(first_column + ($iu * WG + t) / DEPTH, WIDTH - 1u) * (KV_LORA / 4u) + t % DEPTH;
#endfor
  let row = t / 8u;
  let column = t % 8u * 2u;
#for i 4
#for j 4
  var even_sum$i_$j = 0.0;
  var odd_sum$i_$j = 0.0;
#endfor
#endfor
  var k = 0u;
  loop {
    if (k >= KV_LORA / 4u) { break; }
#for i 2
    let x$i = widen(cache[a$i + k]);
    let w$i = weights[b$i + k];
#endfor
    workgroupBarrier();
#for i 2
    left[at$i] = x$i;
    right[at$i] = w$i;
#endfor
    workgroupBarrier();
#for d 4
    {
#for j 4
      let even$j = right[(column + $ju * 16u) * PITCH + $du];
      let odd$j = right[(column + $ju * 16u + 1u) * PITCH + $du];
#endfor
#for i 4
      let l$i = left[(row + $iu * 16u) * PITCH + $du];
#for j 4
      even_sum$i_$j += dot(l$i, even$j);
      odd_sum$i_$j += dot(l$i, odd$j);
#endfor
#endfor
    }
#endfor
    k += DEPTH;
  }
#for i 4
  if (first_row + row + $iu * 16u < p.rows) {
    let out = (first_row + row + $iu * 16u) * (WIDTH / 2u);
#for j 4
    {
      let c = first_column + column + $ju * 16u;
      if (c < WIDTH) { kv[out + c / 2u] = vec2(even_sum$i_$j, odd_sum$i_$j); }
    }
#endfor
  }
#endfor
}
