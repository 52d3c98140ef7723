// h = silu(G x) * (U x) of one token, for the experts it chooses and the shared expert in one grid; a dense block is the
// shared expert alone. x comes prepared (shared/token_store.wgsl) with its partial sums of squares, h leaves prepared.
//
// G, U (experts * ROWS, 32 * UNITS), of the shared expert (rows, 32 * UNITS); h (USED * ROWS + rows) values: the chosen
// experts' one after another, then the shared one's. logits (EXPERTS), or (PARTS, EXPERTS) to be added up with LOGITS_IN_PARTS; with RAW_LOGITS still to be divided by the
// root mean square of x -> the expert of each slot; with CHOICE_OUT one
// workgroup leaves all of them with their weights for token_moe_down.
// Division: LANES threads share a row of G and the same row of U; a workgroup owns TILE = WG / LANES rows of one expert. Every
// workgroup makes the choice of its slot, by one subgroup where lanes hold few experts each: that costs less than a dispatch.
// Bound by: the bytes of the chosen rows.
struct Params {
#ifdef ROUTED
  first_expert: u32,  // of this part
  experts: u32,       // in this part
  g_sub: u32,         // sub-planes of the scales, in words
  u_sub: u32,
#endif
#ifdef CHOICE_OUT
  weights_scale: f32,
#endif
#ifdef SHARED
  shared_first: u32,  // row of h of the first row of this part
  shared_rows: u32,   // in this part
  shared_g_sub: u32,
  shared_u_sub: u32,
#endif
  eps: f32,
}
#ifdef ROUTED
#read eg_q: array<vec4<u32>>
#read eg_s: array<eg_Scales>
#read eu_q: array<vec4<u32>>
#read eu_s: array<eu_Scales>
#ifdef LOGITS_IN_PARTS
#import logits_in_parts
#else
#read logits: array<f32>             // (EXPERTS)
fn logit_of(expert: u32) -> f32 { return logits[expert]; }
#endif
#ifdef BIAS
#read bias: array<f32>               // (EXPERTS)
#endif
#ifdef CHOICE_OUT
#write ids: array<u32>               // (USED)
#write weights: array<f32>           // (USED)
#endif
#endif
#ifdef SHARED
#read sg_q: array<vec4<u32>>
#read sg_s: array<sg_Scales>
#read su_q: array<vec4<u32>>
#read su_s: array<su_Scales>
#endif
#import INPUT as x
#read squares: array<f32>            // (2 * UNITS)
#import token_store
#ifdef STAGED
#import STAGE as stage
#endif
const TILE = WG / LANES;
#import params
#import rms_in_runs
#import w32
#import lanes
#ifdef ROUTED
const SLOT_TILES = (ROWS + TILE - 1u) / TILE;
const ROUTED_TILES = USED * SLOT_TILES;
var<workgroup> slot_expert: u32;
#ifdef CHOICE_OUT
// The workgroup that leaves the choice: of the shared expert, where there is one, since it need not wait for it.
#ifdef SHARED
const CHOOSER = ROUTED_TILES;
#else
const CHOOSER = 0u;
#endif
#endif
#ifdef CHOICE_BY_LANES
#ifdef BIAS
var<workgroup> bias_of: array<f32, EXPERTS>;
#endif
#import router_lanes
#else
#import router_choice
#endif
#import GATE as eg
#import GATE_TIMES as eg
#import UP as eu
#import UP_TIMES as eu
#import gate_up_walk as e
#else
const ROUTED_TILES = 0u;
#endif
#ifdef SHARED
#import SHARED_GATE as sg
#import SHARED_GATE_TIMES as sg
#import SHARED_UP as su
#import SHARED_UP_TIMES as su
#import gate_up_walk as s
#endif

@compute @workgroup_size(WG)
fn main(
#import builtins
) {
#import thread_index
#fetch
  let lane = t & (LANES - 1u);
  let in_tile = t / LANES;
#ifdef ROUTED
  let slot = wid.x / SLOT_TILES;
#ifdef CHOICE_OUT
  let chooses = wid.x < ROUTED_TILES || wid.x == CHOOSER;
#else
  let chooses = wid.x < ROUTED_TILES;
#endif
#endif
  // All that a workgroup needs before it knows its expert is asked for at once, before anything is waited for.
#ifdef LOGITS_IN_PARTS
#import logits_load
#endif
#ifdef CHOICE_BY_LANES
#ifdef BIAS
  let own_bias = bias[min(t, EXPERTS - 1u)];
#endif
#endif
#import squares_load
#import stage_load as x
#ifdef LOGITS_IN_PARTS
#import logits_put
#endif
#ifdef CHOICE_BY_LANES
#ifdef BIAS
  if (t < EXPERTS) { bias_of[t] = own_bias; }
#endif
#endif
#import squares_put
#import stage_put
  workgroupBarrier();
  if (t == 0u) { token_scale = rms_scale(); }
#ifdef ROUTED
  if (chooses) {
#ifdef CHOICE_BY_LANES
    if (subgroup == 0u) {
#ifdef RAW_LOGITS
      let logit_scale = rms_scale();
#else
      let logit_scale = 1.0;
#endif
#ifdef CHOICE_OUT
      // One workgroup leaves all of them.
      let all = wid.x == CHOOSER;
      let own = router_lanes(select(slot, USED - 1u, all), lane_id, subgroup_size, logit_scale);
      if (all && lane_id < USED) {
        ids[lane_id] = own.expert;
        weights[lane_id] = own.weight * p.weights_scale;
      }
      if (lane_id == 0u) { slot_expert = select(own.asked, own.expert, all); }
#else
      let own = router_lanes(slot, lane_id, subgroup_size, logit_scale);
      if (lane_id == 0u) { slot_expert = own.asked; }
#endif
    }
#else
#ifdef RAW_LOGITS
    let logit_scale = rms_scale();
#else
    let logit_scale = 1.0;
#endif
    var logit = -1e30;
    if (t < EXPERTS) { logit = logit_of(t) * logit_scale; }
    let own = router_place(logit, t, subgroup, subgroups, lane_id);
    if (own.place == slot) { slot_expert = t; }
#ifdef CHOICE_OUT
    if (wid.x == CHOOSER) {
      let weight = router_weight(own);
      if (own.place < USED) {
        ids[own.place] = t;
        weights[own.place] = weight * p.weights_scale;
      }
    }
#endif
#endif
    workgroupBarrier();
  }
#endif
  var sums = vec2<f32>(0.0);
  // Rows of h that the workgroup writes: none where another part holds the slot's expert.
  var first = 0u;
  var end = 0u;
#ifdef ROUTED
  if (wid.x < ROUTED_TILES) {
    let tile = (wid.x - slot * SLOT_TILES) * TILE;
    // An expert before this part wraps around.
    let expert = slot_expert - p.first_expert;
    if (expert < p.experts) {
      first = slot * ROWS + tile;
      end = slot * ROWS + ROWS;
      let row = expert * ROWS + min(tile + in_tile, ROWS - 1u);
      sums = e_walk(row * UNITS, lane, p.g_sub, p.u_sub);
    }
  }
#endif
#ifdef SHARED
  if (wid.x >= ROUTED_TILES) {
    let tile = (wid.x - ROUTED_TILES) * TILE;
    first = p.shared_first + tile;
    end = p.shared_first + p.shared_rows;
    sums = s_walk(min(tile + in_tile, p.shared_rows - 1u) * UNITS, lane, p.shared_g_sub, p.shared_u_sub);
  }
#endif
  // Two sums for the price of one: from here on the upper lanes of the row add up the second one.
  let upper = lane >= LANES / 2u;
  let sum = half_sum(select(sums.x, sums.y, upper) + subgroupShuffleXor(select(sums.y, sums.x, upper), LANES / 2u));
  if ((lane & (LANES / 2u - 1u)) == 0u) { token_pairs[2u * in_tile + select(0u, 1u, upper)] = sum; }
  workgroupBarrier();
  token_store(first, end, t);
}
