// Moves a product's input through workgroup memory, `staged`. Each thread requests STAGE_LOADS of the STAGE_VECTORS vectors of each token of
// the workgroup (shared/columns.wgsl) and stores them there unchanged. After a barrier threads read from there what they multiply.
#number STAGE_LOADS STAGE_VECTORS COLS  // vectors that a thread loads, vectors of x of a token, tokens of a workgroup
#each s STAGE_LOADS
#import columns
var<workgroup> staged: array<vec4<u32>, COLS * STAGE_VECTORS>;
const $W_SHARED = true;
alias $W_Asked = array<vec4<u32>, STAGE_LOADS>;

fn stage_at(s: u32, t: u32) -> u32 { return min(s * WG + t, STAGE_VECTORS - 1u); }

fn $W_ask(t: u32, group: u32) -> $W_Asked {
  return $W_Asked(
    $W[own_token * STAGE_VECTORS + stage_at($su, t)],
  );
}

// A barrier must follow. Threads behind the last vector store nothing.
fn $W_put(t: u32, asked: $W_Asked) {
  if ($su * WG + t < STAGE_VECTORS) { staged[stage_place(stage_at($su, t))] = asked[$s]; }
}

// The first unit of the token's row, which has so many: those of the columns before it precede it.
fn $W_row(units: u32) -> u32 { return column * units; }
