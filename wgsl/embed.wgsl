// y[t] = the row of the token embedding that the history names for token t (shared/history.wgsl). `history` is on the device, so a sampled token need not pass through the host. A call
// for a piece of W writes only the tokens whose rows it holds.
//
// W (vocabulary, 32 * units), y (tokens, 32 * units).
// Division: grid (tiles of 64 units, tokens), a thread per unit.
// Bound by: launching it, since a row has a few KiB.
#word rows: u32       // of this piece
#word first_row: u32  // of this piece in the vocabulary
#word units: u32      // of 32 weights, per row
#word sub: u32        // sub-plane of the scales, in words
#import history
#read w_q: array<vec4<u32>> @codes(WEIGHT, p.rows * p.units)   // (rows, units) units
#read w_s: array<w_Scales> @scales(WEIGHT, p.rows * p.units)   // (rows, units) units
#read history: array<u32> @words(IDS)                                // ids by position
#write y: array<vec4<f32>> @floats(TOKENS * p.units * 32)            // (tokens, 8 * units)
#import w32
#import WEIGHT as w

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  let row = history[id_place(id.y)] - p.first_row;
  // A row that precedes this piece wraps around to a large number.
  if (id.x >= p.units || row >= p.rows) {
    return;
  }
  let w = w_unit(row * p.units + id.x, p.sub);
  let at = (id.y * p.units + id.x) * 8u;
  y[at] = w.v0;
  y[at + 1u] = w.v1;
  y[at + 2u] = w.v2;
  y[at + 3u] = w.v3;
  y[at + 4u] = w.v4;
  y[at + 5u] = w.v5;
  y[at + 6u] = w.v6;
  y[at + 7u] = w.v7;
}
