// Computes what attention.wgsl does for tokens over short contexts, in f32, for slices of up to ROWS rows.
//
// Division: grid (slices, heads, tokens), or the list of shared/own_slice.wgsl. A slice has at most ROWS rows. SHARE neighbouring threads share
// a row and keep their columns of it in registers. They multiply them by the query, and then add them up over the rows, times the rows'
// weights: two rows in a subgroup, the others in workgroup memory.
// Bound by: latency. A workgroup requests all of its rows at once. Every head reads the same rows again from the second-level cache, so
// this is for short contexts.
#number KV_LORA ROPE ROWS SHARE  // width of a latent, rotated values of a head, rows of a workgroup, threads that share a row
#number LATENT_LOADS ROTATED_LOADS  // vectors of the latent that a thread loads, vectors of the rotated part of a thread
#number OUTS OTHERS  // pairs of columns that a thread leaves, pairs of rows but the first
#number HEADS  // query heads
#import own_slice
#word scale: f32
#read q_lat: array<vec4<f32>> @floats(TOKENS * HEADS * KV_LORA)      // (tokens, HEADS, KV_LORA / 4)
#read q_pe: array<vec4<f32>> @floats(TOKENS * HEADS * ROPE)          // (tokens, HEADS, ROPE / 4)
#ifdef CODES
#number CACHE_WORDS  // words of 16 bits in a row of the cache
#read cache: array<vec2<u32>> @cache(CACHE_ROWS * CACHE_WORDS)       // (rows, CACHE_WORDS / 4) of 2 words, see shared/cache_codes.wgsl
#else
#read cache: array<vec4<u32>> @cache(CACHE_ROWS * (KV_LORA + ROPE))  // (rows, (KV_LORA + ROPE) / 8) of 8 f16
#endif
#write slice_sums: array<vec2<f32>> @floats(SLICES * HEADS * KV_LORA)     // (tokens, HEADS, slices, KV_LORA / 2)
#write stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)           // (tokens, HEADS, slices) of (max, sum)
const WG = ROWS * SHARE;
const LATENT = KV_LORA / 8u;         // vectors of 8 values in the latent
const ROTATED = ROPE / 8u;           // vectors of 8 values in the rotated key
const PAIRS = KV_LORA / 2u;

var<workgroup> scores: array<f32, ROWS>;
var<workgroup> weights: array<f32, ROWS>;
var<workgroup> sums: array<vec2<f32>, ROWS / 2u * PAIRS>;   // (pair of rows, pair of columns)

#ifdef CODES
#import cache_eights

#endif
fn first_half(k: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(k.x), unpack2x16float(k.y));
}

fn second_half(k: vec4<u32>) -> vec4<f32> {
  return vec4<f32>(unpack2x16float(k.z), unpack2x16float(k.w));
}

#main
#fetch
  let own = own_slice(wid);
  let head = own.token * HEADS + wid.y;
  let row = t / SHARE;
  let lane = t & (SHARE - 1u);
  let count = own.end - own.begin;
  // Threads behind the last row load it again and give it no weight.
#ifdef CODES
  let at = cache_row_at(own.page, own.begin + min(row, count - 1u)) * (CACHE_WORDS / 4u);
#else
  let at = cache_row_at(own.page, own.begin + min(row, count - 1u)) * (LATENT + ROTATED);
#endif
#for i LATENT_LOADS
#ifdef CODES
  let k$i = latent_asked(at, lane + $iu * SHARE);
#else
  let k$i = cache[at + lane + $iu * SHARE];
#endif
  let qa$i = q_lat[(head * LATENT + lane + $iu * SHARE) * 2u];
  let qb$i = q_lat[(head * LATENT + lane + $iu * SHARE) * 2u + 1u];
#endfor
#for i ROTATED_LOADS
  let c$i = min(lane + $iu * SHARE, ROTATED - 1u);
#ifdef CODES
  let r$i = rotated_asked(at, c$i);
#else
  let r$i = cache[at + LATENT + c$i];
#endif
  let pa$i = q_pe[(head * ROTATED + c$i) * 2u];
  let pb$i = q_pe[(head * ROTATED + c$i) * 2u + 1u];
#endfor
  var score = 0.0;
#for i LATENT_LOADS
#ifdef CODES
  let v$i = latent_eight(k$i, lane + $iu * SHARE);
  let va$i = v$i.lo;
  let vb$i = v$i.hi;
#else
  let va$i = first_half(k$i);
  let vb$i = second_half(k$i);
#endif
  score += dot(qa$i, va$i) + dot(qb$i, vb$i);
#endfor
#for i ROTATED_LOADS
  score += select(0.0, dot(pa$i, first_half(r$i)) + dot(pb$i, second_half(r$i)), lane + $iu * SHARE < ROTATED);
#endfor
  if (SHARE > 8u) { score += subgroupShuffleXor(score, 8u); }
  if (SHARE > 4u) { score += subgroupShuffleXor(score, 4u); }
  if (SHARE > 2u) { score += subgroupShuffleXor(score, 2u); }
  score += subgroupShuffleXor(score, 1u);
  score = select(-1e30, score * p.scale, row < count);
  if (lane == 0u) { scores[row] = score; }
  workgroupBarrier();
  var most = scores[0];
#for i ROWS
  most = max(most, scores[$iu]);
#endfor
  let weight = select(0.0, exp(score - most), row < count);
  if (lane == 0u) { weights[row] = weight; }
#for i LATENT_LOADS
  {
    var a = weight * va$i;
    var b = weight * vb$i;
    a += subgroupShuffleXor(a, SHARE);
    b += subgroupShuffleXor(b, SHARE);
    if ((row & 1u) == 0u) {
      let to = (row >> 1u) * PAIRS + (lane + $iu * SHARE) * 4u;
      sums[to] = a.xy;
      sums[to + 1u] = a.zw;
      sums[to + 2u] = b.xy;
      sums[to + 3u] = b.zw;
    }
  }
#endfor
  workgroupBarrier();
  let slice = own.place + wid.y * own.count;
#for i OUTS
  {
    let pair = t + $iu * WG;
    if (pair < PAIRS) {
      var sum = sums[pair];
#for j OTHERS
      sum += sums[($ju + 1u) * PAIRS + pair];
#endfor
      slice_sums[slice * PAIRS + pair] = sum;
    }
  }
#endfor
  if (t == 0u) {
    var sum = 0.0;
#for i ROWS
    sum += weights[$iu];
#endfor
    stats[slice] = vec2(most, sum);
  }
}
