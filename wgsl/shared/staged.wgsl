// An input on its way through workgroup memory, `staged`: a thread asks for its share, STAGE_LOADS vectors of STAGE_VECTORS, leaves it there
// as it came, and behind a barrier reads what it multiplies.
#each s STAGE_LOADS
var<workgroup> staged: array<vec4<u32>, STAGE_VECTORS>;
const $W_SHARED = true;
alias $W_Asked = array<vec4<u32>, STAGE_LOADS>;

fn stage_at(s: u32, t: u32) -> u32 { return min(s * WG + t, STAGE_VECTORS - 1u); }

fn $W_ask(t: u32, group: u32) -> $W_Asked {
  return $W_Asked(
    $W[stage_at($su, t)],
  );
}

// A barrier must follow. Threads behind the last vector have none to leave.
fn $W_put(t: u32, asked: $W_Asked) {
  if ($su * WG + t < STAGE_VECTORS) { staged[stage_place(stage_at($su, t))] = asked[$s]; }
}
