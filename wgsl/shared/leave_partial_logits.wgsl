// Partial logits of the experts, from the product that ends an attention block, if `router` is bound: W_router (norm x) in f32, one sum for
// each run of 16 rows of x. shared/add_partial_logits.wgsl adds them up, and the logits are still to be divided by the root mean square of x.
// So no dispatch has to read all of x before experts are chosen. The kernel has EXPERTS and TILE. token_weighted_at is that of
// shared/token_store.wgsl.
#ifndef router
alias Router = u32;
fn router_ask(first: u32, t: u32) -> Router { return 0u; }
fn router_put(asked: Router, t: u32) { }
fn router_store(first: u32, end: u32, t: u32) { }
fn router_store_columns(wid: vec3<u32>, tile: u32, t: u32) { }
#else
#number EXPERTS ROUTER_COLUMNS ROUTER_LOADS  // experts of a layer, vectors of a row of the router, vectors of it that a thread loads
#number ROUTER_STORES  // experts that a thread leaves
#read router?: array<vec4<f32>> @floats(EXPERTS * ROUTER_COLUMNS * 4)   // (EXPERTS, ROUTER_COLUMNS)
#write partial_logits?: array<f32> @floats(OUT_ROWS / 16 * EXPERTS)       // (rows / 16, EXPERTS)
#each i ROUTER_LOADS
#each n ROUTER_STORES
#each q 4

const ROUTER_QUADS = TILE / 4u;
const ROUTER_LOADED = EXPERTS * ROUTER_QUADS;
var<workgroup> router_rows: array<vec4<f32>, ROUTER_LOADED>;   // (quad of rows, expert)

// Vector i of the workgroup's weights. Its rows begin at `first`.
fn router_load(first: u32, i: u32) -> vec4<f32> {
  let at = min(i, ROUTER_LOADED - 1u);
  let expert = at / ROUTER_QUADS;
  // Behind the last row the value is not used.
  let column = min((first >> 2u) + at - expert * ROUTER_QUADS, ROUTER_COLUMNS - 1u);
  return router[expert * ROUTER_COLUMNS + column];
}

fn router_put_one(i: u32, v: vec4<f32>) {
  let expert = i / ROUTER_QUADS;
  if (i < ROUTER_LOADED) { router_rows[(i - expert * ROUTER_QUADS) * EXPERTS + expert] = v; }
}

alias Router = array<vec4<f32>, ROUTER_LOADS>;

// The thread's share of the weights. The workgroup's rows begin at `first`.
fn router_ask(first: u32, t: u32) -> Router {
  return Router(
    router_load(first, $iu * WG + t),
  );
}

// A barrier must follow.
fn router_put(asked: Router, t: u32) {
  router_put_one($iu * WG + t, asked[$i]);
}

// Writes the partial logits of rows first .. first + TILE, without those from `end` on. Call after token_store.
fn router_store(first: u32, end: u32, t: u32) {
  router_write(first, end, $nu * WG + t, 0u);
}

// The partial logits of a token of the workgroup.
const ROUTER_LEFT = EXPERTS * (TILE / 16u);

#ifdef ALL_COLUMNS
#number COLS  // tokens of a workgroup
#import columns
// Leaves the partial logits of the tokens of all columns, whose rows of y begin at own_rows().
fn router_store_columns(wid: vec3<u32>, tile: u32, t: u32) {
  router_of_column(wid, tile, $nu * WG + t);
}

fn router_of_column(wid: vec3<u32>, tile: u32, at: u32) {
  let c = at / ROUTER_LEFT;
  if (c >= COLS || !is_there(wid, c)) { return; }
  turn_to(wid, c);
  router_write(own_rows() + tile, own_rows() + p.rows, at - c * ROUTER_LEFT, c * TILE);
}
#endif

// Writes partial logit `at` of a token whose rows begin with row `place` of those of the workgroup.
fn router_write(first: u32, end: u32, at: u32, place: u32) {
  let run = at / EXPERTS;
  let expert = at - run * EXPERTS;
  if (run < TILE / 16u && first + 16u * run < end) {
    var sum = 0.0;
    sum += dot(router_rows[(4u * run + $qu) * EXPERTS + expert], token_weighted_at(place + 16u * run + 4u * $qu));
    partial_logits[((first >> 4u) + run) * EXPERTS + expert] = sum;
  }
}
#endif
