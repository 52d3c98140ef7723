// h = silu(G x) * (U x) of one token, for its chosen experts and the shared expert in one grid. A dense block is the shared expert alone. With
// SEVERAL it is for several tokens (shared/columns.wgsl), and the shared expert may have a grid of its own.
// x comes prepared (shared/token_store.wgsl) with its sums of squares. h is left prepared.
//
// G and U (experts * ROWS, 32 * UNITS), those of the shared expert (shared_rows, 32 * UNITS). h (tokens, USED * ROWS + shared_rows): the values
// of the slots in order, then those of the shared expert. The module LOGITS gives the logits of the experts, and CHOICE the expert of each
// slot. With RAW_LOGITS the logits are still to be divided by the root mean square of x.
// Division: LANES threads share a row of G and the same row of U. A workgroup owns TILE = WG / LANES rows of one expert. It chooses the
// expert of its slot itself, which costs less than a dispatch. One workgroup also writes all chosen experts (`ids`) and their weights for
// token_moe_down. Of the shared expert it reads its rows once for COLS tokens.
// Bound by: the bytes of the chosen rows.
#number WG LANES UNITS  // threads of a workgroup, threads that share rows, units of a row
#number COLS  // tokens of a workgroup
#word experts?: u32        // in this piece
#word first_expert?: u32   // of this piece
#word g_sub?: u32          // sub-planes of the scales, in words
#word u_sub?: u32
#word scale?: f32          // by which the experts' weights are multiplied
#word shared_rows?: u32    // in this piece
#word shared_first?: u32   // row of h of the first row of this piece
#word shared_g_sub?: u32
#word shared_u_sub?: u32
#flag RAW_LOGITS
#length INPUT_UNITS TOKENS * UNITS
#ifdef SEVERAL
#number TOKEN_ROWS  // values of a token of h
#else
const TOKEN_ROWS = 0u;
#endif
const TILE = WG / LANES;
#each c COLS
#import columns
#import rms_in_runs
#import w32
#import lanes
#import units
#import INPUT as x
#import token_store
#ifdef experts
#number EXPERTS USED ROWS  // experts of a layer, experts of a token, rows of an expert
#read eg_q: array<vec4<u32>> @codes(GATE, p.experts * ROWS * UNITS)    // (experts, ROWS, UNITS) units
#read eg_s: array<eg_Scales> @scales(GATE, p.experts * ROWS * UNITS)   // (experts, ROWS, UNITS) units
#read eu_q: array<vec4<u32>> @codes(UP, p.experts * ROWS * UNITS)      // (experts, ROWS, UNITS) units
#read eu_s: array<eu_Scales> @scales(UP, p.experts * ROWS * UNITS)     // (experts, ROWS, UNITS) units
#read bias?: array<f32> @floats(EXPERTS)    // (EXPERTS)
#write ids?: array<u32> @words(TOKENS * USED)        // (tokens, USED)
#write weights?: array<f32> @floats(TOKENS * USED)   // (tokens, USED)
const SLOT_TILES = (ROWS + TILE - 1u) / TILE;
const ROUTED_TILES = USED * SLOT_TILES;
var<workgroup> slot_expert: u32;
#import LOGITS as logits
#import CHOICE as choice
#import GATE as eg
#import GATE_TIMES as eg
#import UP as eu
#import UP_TIMES as eu
#import gate_up_walk as e

fn logit_scale() -> f32 {
  if (RAW_LOGITS) { return rms_scale(0u); }
  return 1.0;
}
#else
const ROUTED_TILES = 0u;
#endif
#ifdef shared_rows
#read sg_q: array<vec4<u32>> @codes(SHARED_GATE, p.shared_rows * UNITS)    // (shared_rows, UNITS) units
#read sg_s: array<sg_Scales> @scales(SHARED_GATE, p.shared_rows * UNITS)   // (shared_rows, UNITS) units
#read su_q: array<vec4<u32>> @codes(SHARED_UP, p.shared_rows * UNITS)      // (shared_rows, UNITS) units
#read su_s: array<su_Scales> @scales(SHARED_UP, p.shared_rows * UNITS)     // (shared_rows, UNITS) units
#import SHARED_GATE as sg
#import SHARED_GATE_TIMES as sg
#import SHARED_UP as su
#import SHARED_UP_TIMES as su
#import gate_up_walk as s
// The workgroup that writes the choice. It is one of the shared expert if there is one, since its product need not wait for the choice.
const CHOOSER = ROUTED_TILES;
#else
const CHOOSER = 0u;
#endif
#ifdef SEVERAL
#length OUT_ROWS TOKENS * TOKEN_ROWS
#else
#ifdef shared_rows
#length OUT_ROWS p.shared_first + p.shared_rows
#else
#length OUT_ROWS USED * ROWS
#endif
#endif
#ifdef ids
fn weights_scale() -> f32 { return p.scale; }
const LEAVES_CHOICE = true;
#else
fn weights_scale() -> f32 { return 1.0; }
const LEAVES_CHOICE = false;
#endif

// (row, gate or up), still to be multiplied by token_scale.
var<workgroup> token_pairs: array<f32, 2u * TILE>;
var<workgroup> token_scale: array<f32, COLS>;
alias Columns = array<vec2<f32>, COLS>;   // of a thread, (token, gate or up)

fn token_rows_at(first: u32) -> vec4<f32> {
  let i = 2u * first;
  let gate = vec4<f32>(token_pairs[i], token_pairs[i + 2u], token_pairs[i + 4u], token_pairs[i + 6u]) * token_scale[column];
  let up = vec4<f32>(token_pairs[i + 1u], token_pairs[i + 3u], token_pairs[i + 5u], token_pairs[i + 7u]) * token_scale[column];
  // silu(gate) * up. exp(-gate) is kept finite, because Metal's fast math may assume that it is.
  return gate / (1.0 + exp(min(-gate, vec4<f32>(80.0)))) * up;
}

// Completes the token's rows first .. end of h, and leaves them. Every thread of the workgroup must call.
fn finish(t: u32, first: u32, end: u32, sums: vec2<f32>) {
  let lane = t & (LANES - 1u);
  // One exchange for both sums: after it the upper lanes of the row add up those of U, the others those of G.
  let upper = lane >= LANES / 2u;
  let sum = half_sum(select(sums.x, sums.y, upper) + subgroupShuffleXor(select(sums.y, sums.x, upper), LANES / 2u));
  if ((lane & (LANES / 2u - 1u)) == 0u) { token_pairs[2u * (t / LANES) + select(0u, 1u, upper)] = sum; }
  token_store(own_token * TOKEN_ROWS + first, own_token * TOKEN_ROWS + end, t);
}

#main
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
  let tile_no = own_place(wid).x;
  // A workgroup requests all that it needs before it knows its expert, and only then waits.
#ifdef experts
  let slot = tile_no / SLOT_TILES;
  let all = LEAVES_CHOICE && tile_no == CHOOSER;
  let chooses = tile_no < ROUTED_TILES || all;
  let logits = logits_ask(t, chooses);
  let own_bias = bias_ask(t);
#endif
  turn_to(wid, $cu); let squares$c = squares_ask(t); let asked$c = x_ask(t, 0u);
#ifdef experts
  logits_put(logits, t);
  bias_put(own_bias, t);
#endif
  squares_put(squares$c, t, $cu);
  turn_to(wid, $cu); x_put(t, asked$c);
  workgroupBarrier();
  if (t == 0u) { token_scale[$c] = rms_scale($cu); }
#ifdef experts
  if (chooses) {
    choose(slot, all, t, subgroup, subgroups, lane_id, subgroup_size);
    workgroupBarrier();
  }
#endif
  var sums = Columns();
  // The rows of h that the workgroup writes, of each token. There are none if another piece holds the slot's expert.
  var first = 0u;
  var end = 0u;
#ifdef experts
  if (tile_no < ROUTED_TILES) {
    let tile = (tile_no - slot * SLOT_TILES) * TILE;
    // An expert that precedes this piece wraps around to a large number.
    let expert = slot_expert - p.first_expert;
    if (expert < p.experts) {
      first = slot * ROWS + tile;
      end = slot * ROWS + ROWS;
      let row = expert * ROWS + min(tile + in_tile, ROWS - 1u);
      sums = e_walk(wid, row * UNITS, lane, p.g_sub, p.u_sub);
    }
  }
#endif
#ifdef shared_rows
  if (tile_no >= ROUTED_TILES) {
    let tile = (tile_no - ROUTED_TILES) * TILE;
    first = p.shared_first + tile;
    end = p.shared_first + p.shared_rows;
    sums = s_walk(wid, min(tile + in_tile, p.shared_rows - 1u) * UNITS, lane, p.shared_g_sub, p.shared_u_sub);
  }
#endif
  // Memory of the workgroup is used again for the next token.
  if ($cu > 0u) { workgroupBarrier(); } turn_to(wid, $cu); if (is_there(wid, $cu)) { finish(t, first, end, sums[$c]); }
}
