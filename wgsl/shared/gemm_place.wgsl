// What the products of many tokens have in common: parameters, buffers, and which tile of the output a workgroup owns.
//
// GROUPS is what the groups of W are, and which rows of x and y belong to a token: heads, or the only group there is
// (shared/gemm_heads.wgsl), ranges of the columns (shared/gemm_columns.wgsl), or experts, whose inputs are those of tokens
// (shared/gemm_gather.wgsl) or whose outputs are (shared/gemm_scatter.wgsl). The kernel declares `Out`, what y consists of, and `Value`,
// what it finishes at once.
#word rows: u32            // of W in a group: of an expert, a head, or this piece of a plain weight
#word first_row: u32       // of this piece in y
#word first_group: u32     // of this piece: expert, head, or 0
#word groups: u32          // in this piece
#word units: u32           // of 32 weights, per row
#word sub: u32             // sub-planes of the scales, in words
#word u_sub?: u32          // those of the second weight
#word tokens: u32
#word x_stride: u32        // in vec4
#word x_group_stride: u32  // in vec4
#word y_stride: u32
#input w_q: array<vec4<u32>> @codes(WEIGHT, W_UNITS)
#input w_s: array<w_Scales> @scales(WEIGHT, W_UNITS)
#input u_q?: array<vec4<u32>> @codes(UP, W_UNITS)
#input u_s?: array<u_Scales> @scales(UP, W_UNITS)
#read residual?: array<Out> @floats(Y_LENGTH)   // (tokens, y_stride)
#write y: array<Out> @floats(Y_LENGTH)          // (tokens, y_stride)
#length X_LENGTH 4 * ((X_ROWS - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units)
#import w32
#import WEIGHT as w
#import GROUPS as group

// A workgroup dequantises W_ROWS rows: BN of W and, in a pair, as many of the second weight behind them.
const PAIR = W_ROWS > BN;

// Where a workgroup works: rows of x from `first` on, `count` of them, and rows of W from `row` on in `group`.
struct Place {
  first: u32,
  count: u32,
  group: u32,
  row: u32,
}

// Where the row of x begins that the m-th place of the tile reads.
fn input_index(at: Place, m: u32) -> u32 {
  return group_input_row(at.first + m) * p.x_stride + (p.first_group + at.group) * p.x_group_stride;
}

// What leaves of a sum: of a pair silu(gate) * up; exp(-gate) is kept finite, since Metal's fast math may assume it is.
fn finished(gate: Value, up: Value) -> Value {
  if (PAIR) { return gate / (1.0 + exp(min(-gate, Value(80.0)))) * up; }
  return up;
}

// With what is to be added to it at i.
#ifdef residual
fn with_residual(i: u32, v: Out) -> Out { return v + residual[i]; }
#else
fn with_residual(i: u32, v: Out) -> Out { return v; }
#endif
