// What gemm and gemm_coop share: parameters, buffers, and which part of the output a workgroup owns.
struct Params {
  rows: u32,            // of W in a group: of an expert, a head, or this part of a plain weight
  first_row: u32,       // of this part in y
  first_group: u32,     // of this part: expert, head, or 0
  groups: u32,          // in this part
  units: u32,           // of 32 weights, per row
  sub: u32,             // sub-planes of the scales, in words
  u_sub: u32,           // (PAIR)
  tokens: u32,
  x_stride: u32,        // in vec4
  x_group_stride: u32,  // in vec4
  y_stride: u32,
#ifdef SPLIT
  row_units: u32,       // of 32 weights, per row; units are those of a part
  part_stride: u32,     // values from one part's sums to the next one's
#endif
}
#input w_q: array<vec4<u32>>
#input w_s: array<w_Scales>
#ifdef PAIR
#input u_q: array<vec4<u32>>
#input u_s: array<u_Scales>
#endif
#ifdef COOP
#input x: array<vec4<f16>>           // (tokens, x_stride)
#input x_scales: array<f32>          // (tokens)
#else
#input x: array<vec4<f32>>           // (tokens, x_stride)
#endif
#ifdef EXPERTS
#read tiles: array<vec4<u32>>       // (tiles) of expert, first place, places, nothing; see expert_rows
#read slots: array<u32>             // (places) by expert, token * USED + rank
#endif
#ifdef WHOLE_VECTORS
#ifdef RESIDUAL
#read residual: array<vec4<f32>>    // (tokens, y_stride / 4)
#endif
#write y: array<vec4<f32>>          // (tokens, y_stride / 4)
#else
#ifdef RESIDUAL
#read residual: array<f32>          // (tokens, y_stride)
#endif
#write y: array<f32>                // (tokens, y_stride)
#endif
#import params
#import w32
#import WEIGHT as w
#ifdef PAIR
#import UP as u
#endif

// The rows of W that a workgroup dequantises: with PAIR as many of the second weight follow.
#ifdef PAIR
const W_ROWS = 2u * BN;
#else
const W_ROWS = BN;
#endif

// Where a workgroup works: rows of x from `first` on, `count` of them, and rows of W from `row` on in `group`.
struct Place {
  first: u32,
  count: u32,
  group: u32,
  row: u32,
}

// The row of x that place i of the list reads, and the row of y that it writes.
fn input_row(i: u32) -> u32 {
#ifdef GATHER
  return slots[i] / USED;
#else
  return i;
#endif
}

fn output_row(i: u32) -> u32 {
#ifdef SCATTER
  return slots[i];
#else
  return i;
#endif
}

// The first unit that a workgroup multiplies of a row of W.
fn first_unit(at: Place, row: u32) -> u32 {
#ifdef SPLIT
  return row * p.row_units + at.group * p.units;
#else
  return (at.group * p.rows + row) * p.units;
#endif
}

// Where row 0 of W writes for the m-th place of the tile. Groups that are heads follow one another.
fn output_index(at: Place, m: u32) -> u32 {
  let to = output_row(at.first + m) * p.y_stride + p.first_row;
#ifdef EXPERTS
  return to;
#else
#ifdef SPLIT
  return to + at.group * p.part_stride;
#else
  return to + at.group * p.rows;
#endif
#endif
}

// What a thread finishes at once.
#ifdef COOP
alias Sums = vec4<f32>;
#else
alias Sums = f32;
#endif

// silu(gate) * up; exp(-gate) is kept finite, since Metal's fast math may assume it is.
fn swiglu(gate: Sums, up: Sums) -> Sums {
  return gate / (1.0 + exp(min(-gate, Sums(80.0)))) * up;
}
