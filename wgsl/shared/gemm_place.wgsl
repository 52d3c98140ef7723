// What gemm and gemm_coop share: parameters, buffers, and which part of the output a workgroup owns.
#word rows: u32            // of W in a group: of an expert, a head, or this part of a plain weight
#word first_row: u32       // of this part in y
#word first_group: u32     // of this part: expert, head, or 0
#word groups: u32          // in this part
#word units: u32           // of 32 weights, per row
#word sub: u32             // sub-planes of the scales, in words
#word u_sub?: u32          // those of the second weight
#word tokens: u32
#word x_stride: u32        // in vec4
#word x_group_stride: u32  // in vec4
#word y_stride: u32
#word row_units?: u32      // of 32 weights, per row; units are those of a part of the columns
#word part_stride?: u32    // values from one part's sums to the next one's
#ifdef row_units
#input w_q: array<vec4<u32>> @codes(WEIGHT, (p.rows - 1) * p.row_units + GRID_Z * p.units)
#input w_s: array<w_Scales> @scales(WEIGHT, (p.rows - 1) * p.row_units + GRID_Z * p.units)
#else
#input w_q: array<vec4<u32>> @codes(WEIGHT, max(p.groups, GRID_Z) * p.rows * p.units)
#input w_s: array<w_Scales> @scales(WEIGHT, max(p.groups, GRID_Z) * p.rows * p.units)
#endif
#input u_q?: array<vec4<u32>> @codes(UP, max(p.groups, GRID_Z) * p.rows * p.units)
#input u_s?: array<u_Scales> @scales(UP, max(p.groups, GRID_Z) * p.rows * p.units)
#read tiles?: array<vec4<u32>> @words(4 * GRID_Y)  // (tiles) of expert, first place, places, nothing; see expert_rows
#read slots?: array<u32> @words(TOKENS * USED)     // (places) by expert, token * USED + rank
// A workgroup writes whole vectors or numbers.
#ifdef WHOLE_VECTORS
alias Out = vec4<f32>;
#else
alias Out = f32;
#endif
#read residual?: array<Out> @floats((TOKENS * USED - 1) * p.y_stride + p.first_row + GRID_Z * p.rows)  // (tokens, y_stride)
#ifdef row_units
#write y: array<Out> @floats((TOKENS * USED - 1) * p.y_stride + p.first_row + (GRID_Z - 1) * p.part_stride + p.rows)
#else
#write y: array<Out> @floats((TOKENS * USED - 1) * p.y_stride + p.first_row + GRID_Z * p.rows)         // (tokens, y_stride)
#endif
#import w32
#import WEIGHT as w
#ifdef u_q
#import UP as u
#endif

// The rows of W that a workgroup dequantises: as many of the second weight follow.
#ifdef u_q
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
#ifdef row_units
  return row * p.row_units + at.group * p.units;
#else
  return (at.group * p.rows + row) * p.units;
#endif
}

// Where row 0 of W writes for the m-th place of the tile. Groups that are heads follow one another.
fn output_index(at: Place, m: u32) -> u32 {
  let to = output_row(at.first + m) * p.y_stride + p.first_row;
#ifdef tiles
  return to;
#else
#ifdef row_units
  return to + at.group * p.part_stride;
#else
  return to + at.group * p.rows;
#endif
#endif
}

// silu(gate) * up; exp(-gate) is kept finite, since Metal's fast math may assume it is.
fn swiglu(gate: Sums, up: Sums) -> Sums {
  return gate / (1.0 + exp(min(-gate, Sums(80.0)))) * up;
}
