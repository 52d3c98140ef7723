// Rotated queries, and the cache rows of new tokens: normed latent, then rotated key, in f16.
//
// q (tokens, HEADS, NOPE + ROPE) -> q_pe (tokens, HEADS, ROPE); kv_a (tokens, KV_LORA + ROPE) -> row pos + token of cache.
// SPLIT: kv_a is (parts, tokens, KV_LORA + ROPE), to be added up.
// Pairs (2i, 2i+1) rotate by the angle of (position, i). All buffers are seen as pairs of floats.
// Division: grid (HEADS + 1, tokens); workgroup h < HEADS rotates head h, the last one writes the cache row. Without QUERIES
// the grid is (1, tokens): the product that makes the queries has rotated them (shared/rotate_rows.wgsl).
// Bound by: latency, a few KiB per token; so everything is loaded before the one barrier.
struct Params {
  pos: u32,   // of the first token
  eps: f32,
#ifdef SPLIT
  parts: u32,
  part_stride: u32,   // pairs from one part of kv_a to the next
#endif
}
#read kv_a: array<vec2<f32>>         // (tokens, (KV_LORA + ROPE) / 2)
#read norm: array<vec2<f32>>         // (KV_LORA / 2)
#read angles: array<vec2<f32>>       // (n_ctx, ROPE / 2) of (cos, sin)
#write cache: array<u32>             // (n_ctx, (KV_LORA + ROPE) / 2) pairs of f16
#ifdef QUERIES
#read q: array<vec2<f32>>            // (tokens, HEADS, (NOPE + ROPE) / 2)
#write q_pe: array<vec2<f32>>        // (tokens, HEADS, ROPE / 2)
#endif
#import params
#import reduce

// Pair i of kv_a.
fn input(i: u32) -> vec2<f32> {
#import add_parts as kv_a
  return sum;
}

fn rotate(x: vec2<f32>, angle: vec2<f32>) -> vec2<f32> {
  return vec2(x.x * angle.x - x.y * angle.y, x.x * angle.y + x.y * angle.x);
}

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let token = wid.y;
  let table = (p.pos + token) * (ROPE / 2u);
#ifdef QUERIES
  if (wid.x < HEADS) {
    let head = token * HEADS + wid.x;
    let from_q = head * ((NOPE + ROPE) / 2u) + NOPE / 2u;
    var i = t;
    loop {
      if (i >= ROPE / 2u) { break; }
      q_pe[head * (ROPE / 2u) + i] = rotate(q[from_q + i], angles[table + i]);
      i += WG;
    }
  } else
#endif
  {
    let row = token * ((KV_LORA + ROPE) / 2u);
    let to_row = (p.pos + token) * ((KV_LORA + ROPE) / 2u);
    var squares = 0.0;
#for i PAIRS
    let at$i = min(t + $iu * WG, KV_LORA / 2u - 1u);
    let x$i = input(row + at$i);
    let g$i = norm[at$i];
    squares += select(0.0, dot(x$i, x$i), t + $iu * WG < KV_LORA / 2u);
#endfor
    var i = t;
    loop {
      if (i >= ROPE / 2u) { break; }
      let at = KV_LORA / 2u + i;
      cache[to_row + at] = pack2x16float(rotate(input(row + at), angles[table + i]));
      i += WG;
    }
    let scale = inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(KV_LORA) + p.eps);
#for i PAIRS
    if (t + $iu * WG < KV_LORA / 2u) { cache[to_row + at$i] = pack2x16float(x$i * scale * g$i); }
#endfor
  }
}
