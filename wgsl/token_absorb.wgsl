// The queries of one token, or with SEVERAL of each of several (shared/own_token.wgsl): q = W x / rms(x). For each head the first NOPE values are absorbed, q_lat = K q_nope, and the last ROPE
// values are rotated to q_pe. x comes prepared (shared/token_store.wgsl).
//
// W (HEADS * (NOPE + ROPE), 32 * UNITS), K (HEADS, KV_LORA, NOPE), q_lat (tokens, HEADS, KV_LORA), q_pe (tokens, HEADS,
// ROPE).
// Division: grid (HEAD_SLICES + 1, HEADS). Each of the first HEAD_SLICES workgroups of a head computes all of q_nope, keeps it, and
// multiplies K_ROWS rows of K by it. Reading W so often from the second-level cache costs less than a second dispatch. The last workgroup of
// a head computes and rotates q_pe. LANES threads share PASSES rows of W, K_LANES threads K_PASSES rows of K. With `cache_eps` the grid has
// one more row, whose first workgroup writes the new row of the KV cache (shared/cache_row.wgsl).
// Bound by: latency; the bytes of W and K, once from memory.
#number HEADS KV_LORA NOPE ROPE  // query heads, width of a latent, values of a head that are not rotated, rotated values of a head
#number WG LANES UNITS HEAD_SLICES  // threads of a workgroup, threads that share rows, units of a row, workgroups of a head that absorb
#number K_ROWS PASSES K_LANES  // rows of K of a workgroup, rows of W of a thread, threads that share rows of K
#number K_PASSES UNROLL K_UNROLL  // rows of K of a thread, units that a thread requests at once, units of a row of K of a thread
#number MOST_ROWS  // rows of the longer part of a head
#word sub: u32         // sub-planes of the scales, in words
#word k_sub: u32
#import sequences
#word cache_eps?: f32  // of the norm of the cache row
#read w_q: array<vec4<u32>> @codes(WEIGHT, HEADS * (NOPE + ROPE) * UNITS)     // (HEADS, NOPE + ROPE, UNITS) units
#read w_s: array<w_Scales> @scales(WEIGHT, HEADS * (NOPE + ROPE) * UNITS)     // (HEADS, NOPE + ROPE, UNITS) units
#read k_q: array<vec4<u32>> @codes(K_WEIGHT, HEADS * KV_LORA * (NOPE / 32))   // (HEADS, KV_LORA, NOPE / 32) units
#read k_s: array<k_Scales> @scales(K_WEIGHT, HEADS * KV_LORA * (NOPE / 32))   // (HEADS, KV_LORA, NOPE / 32) units
#read angles: array<vec2<f32>> @floats(CONTEXT * ROPE)       // (n_ctx, ROPE / 2) of (cos, sin)
#write q_lat: array<f32> @floats(TOKENS * HEADS * KV_LORA)   // (tokens, HEADS, KV_LORA)
#write q_pe: array<f32> @floats(TOKENS * HEADS * ROPE)       // (tokens, HEADS, ROPE)
#length INPUT_UNITS TOKENS * UNITS
#flag ONE_BLOCK
#each r PASSES
#each j K_PASSES
#each k UNROLL
#each i K_UNROLL
const STRIDE = WG / LANES;           // rows of W at once
const K_STRIDE = WG / K_LANES;       // rows of K at once
const K_UNITS = NOPE / 32u;
const KEPT = NOPE;
#import w32
#import lanes
#import units
#import kept_units
#import own_token
#import INPUT as x
#import WEIGHT as w
#import WEIGHT_TIMES as w
#import K_WEIGHT as k
#import K_TIMES as k
#import rms_by_subgroup
#ifdef cache_eps
#import cache_row
#endif

var<workgroup> rows: array<f32, MOST_ROWS>;   // q_nope or q_pe of the head, still to be multiplied by rms_scale

alias Rows = array<u32, PASSES>;
alias Sums = array<f32, PASSES>;
alias Loaded = array<w_Loaded, PASSES>;

// The weights of unit u of a thread's rows of W, which begin at `units`.
fn load(u: u32, units: Rows) -> Loaded {
  return Loaded(
    w_load(units[$r] + u, p.sub),
  );
}

fn multiply(sums: Sums, w: Loaded, u: u32) -> Sums {
  let v = x_unit(x_row(UNITS) + u);
  return Sums(
    w_add(sums[$r], w[$r], v),
  );
}

alias KRow = array<k_Loaded, K_UNROLL>;

// Requests a thread's units of row `row` of K.
fn k_ask(head: u32, row: u32, k_lane: u32) -> KRow {
  return KRow(
    k_load((head * KV_LORA + row) * K_UNITS + min(k_lane + $iu * K_LANES, K_UNITS - 1u), p.k_sub),
  );
}

alias KRows = array<KRow, K_PASSES>;
alias KSums = array<f32, K_PASSES>;

// The products of a thread's rows of K and q_nope, added up over K_LANES threads.
fn k_sums(w: KRows, k_lane: u32) -> KSums {
  var sum$j = 0.0;
#for i K_UNROLL
  if (k_lane + $iu * K_LANES < K_UNITS) {
    let v = kept_unit(k_lane + $iu * K_LANES);
    sum$j = k_add(sum$j, w[$j][$i], v);
  }
#endfor
  if (K_LANES > 4u) { sum$j += subgroupShuffleXor(sum$j, 4u); }
  if (K_LANES > 2u) { sum$j += subgroupShuffleXor(sum$j, 2u); }
  if (K_LANES > 1u) { sum$j += subgroupShuffleXor(sum$j, 1u); }
  return KSums(
    sum$j,
  );
}

#main
#fetch
  let place = own_place(wid);
  let slice = place.x;
  let head = place.y;
#ifdef cache_eps
  if (head == HEADS) {
    if (slice == 0u) { cache_row(own_token, position(own_token), cache_row_at(first_page(own_token), position(own_token)), p.cache_eps, t, subgroup, subgroups, lane_id); }
    return;
  }
#endif
  let absorbs = slice < HEAD_SLICES;
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let first = head * (NOPE + ROPE) + select(NOPE, 0u, absorbs);
  let count = select(ROPE, NOPE, absorbs);
  // Threads behind the last row repeat it and write nothing.
  let row$r = min(in_tile + $ru * STRIDE, count - 1u);
  let units = Rows(
    (first + row$r) * UNITS,
  );
  var sums = Sums();
  rms_put(subgroup, subgroup_size, lane_id);
  let k_lane = t & (K_LANES - 1u);
  let k_row$j = min(slice * K_ROWS + t / K_LANES + $ju * K_STRIDE, KV_LORA - 1u);
  let k_rows = KRows(
    k_ask(head, k_row$j, k_lane),
  );
  if (ONE_BLOCK) {
    let w$k = load(unit_at(lane, $ku), units);
    if (in_row(lane, $ku)) { sums = multiply(sums, w$k, unit_at(lane, $ku)); }
  } else {
    var b = lane;
    loop {
      if (b >= UNITS) { break; }
      let w$k = load(unit_at(b, $ku), units);
      if (in_row(b, $ku)) { sums = multiply(sums, w$k, unit_at(b, $ku)); }
      b += UNROLL * LANES;
    }
  }
  let sum$r = row_sum(sums[$r]); if (lane == 0u && in_tile + $ru * STRIDE < count) { rows[row$r] = sum$r; }
  workgroupBarrier();
  let scale = rms_scale();
  if (absorbs) {
    if (t < NOPE / 4u) {
      keep(t, vec4<f32>(rows[4u * t], rows[4u * t + 1u], rows[4u * t + 2u], rows[4u * t + 3u]) * scale);
    }
    workgroupBarrier();
    let own = k_sums(k_rows, k_lane);
    let in_slice$j = t / K_LANES + $ju * K_STRIDE;
    if (k_lane == 0u && in_slice$j < K_ROWS && slice * K_ROWS + in_slice$j < KV_LORA) { q_lat[(own_token * HEADS + head) * KV_LORA + k_row$j] = own[$j]; }
  } else if (t < ROPE) {
    // Pairs (2i, 2i+1).
    let angle = angles[position(own_token) * (ROPE / 2u) + (t >> 1u)];
    let other = select(-rows[t ^ 1u], rows[t ^ 1u], (t & 1u) == 1u);
    q_pe[(own_token * HEADS + head) * ROPE + t] = scale * fma(rows[t], angle.x, other * angle.y);
  }
}
