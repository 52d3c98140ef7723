// What the rows of a workgroup give to the experts' logits, by 16 rows, where the product that ends an attention block leaves them
// (`router` is bound): W_router (norm x) of these rows in f32, still to be added up and divided by the root mean square of x
// (shared/add_partial_logits.wgsl), so that no dispatch has to read all of x before experts are chosen. EXPERTS, TILE and
// token_weighted_at are the kernel's.
#ifndef router
alias Router = u32;
fn router_ask(first: u32, t: u32) -> Router { return 0u; }
fn router_put(asked: Router, t: u32) { }
fn router_store(first: u32, end: u32, t: u32) { }
#else
#read router?: array<vec4<f32>> @floats(EXPERTS * ROUTER_COLUMNS * 4)      // (EXPERTS, ROUTER_COLUMNS)
#write partial_logits?: array<f32> @floats(OUT_ROWS / 16 * EXPERTS)           // (rows / 16, EXPERTS)
#each i ROUTER_LOADS
#each n ROUTER_STORES
#each q 4

const ROUTER_QUADS = TILE / 4u;
const ROUTER_LOADED = EXPERTS * ROUTER_QUADS;
// (4 rows, expert)
var<workgroup> router_rows: array<vec4<f32>, ROUTER_LOADED>;

// Number i of the workgroup's weights, whose rows begin at `first`.
fn router_load(first: u32, i: u32) -> vec4<f32> {
  let at = min(i, ROUTER_LOADED - 1u);
  let expert = at / ROUTER_QUADS;
  // Behind the last row it is not used.
  let column = min((first >> 2u) + at - expert * ROUTER_QUADS, ROUTER_COLUMNS - 1u);
  return router[expert * ROUTER_COLUMNS + column];
}

fn router_keep(i: u32, v: vec4<f32>) {
  let expert = i / ROUTER_QUADS;
  if (i < ROUTER_LOADED) { router_rows[(i - expert * ROUTER_QUADS) * EXPERTS + expert] = v; }
}

alias Router = array<vec4<f32>, ROUTER_LOADS>;

// The thread's share of the weights of the rows from `first` on.
fn router_ask(first: u32, t: u32) -> Router {
  return Router(
    router_load(first, $iu * WG + t),
  );
}

// A barrier must follow.
fn router_put(asked: Router, t: u32) {
  router_keep($iu * WG + t, asked[$i]);
}

// Of rows first .. first + TILE, but none from `end` on. Call behind token_store.
fn router_store(first: u32, end: u32, t: u32) {
  router_leave(first, end, $nu * WG + t);
}

// Number `at` of what the workgroup gives.
fn router_leave(first: u32, end: u32, at: u32) {
  let run = at / EXPERTS;
  let expert = at - run * EXPERTS;
  if (run < TILE / 16u && first + 16u * run < end) {
    var sum = 0.0;
    sum += dot(router_rows[(4u * run + $qu) * EXPERTS + expert], token_weighted_at(16u * run + 4u * $qu));
    partial_logits[((first >> 4u) + run) * EXPERTS + expert] = sum;
  }
}
#endif
