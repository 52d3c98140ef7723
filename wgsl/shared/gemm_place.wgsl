// The common parts of the gemm kernels: parameters, bindings, and the tile of the output that a workgroup computes.
//
// The module GROUPS says what the groups of W are. They are heads, or there is one group (gemm_heads); ranges of the columns, for split-K
// (gemm_columns); or experts that gather their rows of x (gemm_gather) or scatter their rows of y (gemm_scatter). A place is a token, or
// with experts an entry of the list of slots. The kernel declares `Out`, the elements of y, and `Value`, what `finished` takes.
#number W_ROWS BN  // rows that a workgroup dequantises, rows of W in a tile
#word rows: u32            // of W in a group: of an expert, a head, or this piece of a plain weight
#word first_row: u32       // of this piece in y
#word first_group: u32     // of this piece: expert, head, or 0
#word groups: u32          // in this piece
#word units: u32           // of 32 weights, per row of a group
#word sub: u32             // sub-planes of the scales, in words
#word u_sub?: u32          // those of the second weight
#word tokens: u32
#word x_stride: u32        // in vec4
#word x_group_stride: u32  // in vec4, from the columns of x that one group reads to those of the next
#word y_stride: u32        // in values
#input w_q: array<vec4<u32>> @codes(WEIGHT, W_UNITS)   // (groups, rows, units) units
#input w_s: array<w_Scales> @scales(WEIGHT, W_UNITS)   // (groups, rows, units) units
#input u_q?: array<vec4<u32>> @codes(UP, W_UNITS)      // the same
#input u_s?: array<u_Scales> @scales(UP, W_UNITS)      // the same
#read residual?: array<Out> @floats(Y_LENGTH)   // (tokens, y_stride)
#write y: array<Out> @floats(Y_LENGTH)          // (tokens, y_stride)
#length X_LENGTH 4 * ((X_ROWS - 1) * p.x_stride + (p.first_group + max(p.groups, GRID_Z) - 1) * p.x_group_stride + 8 * p.units)
#import w32
#import WEIGHT as w
#import GROUPS as group

// A workgroup dequantises W_ROWS rows: BN of W, and in a pair BN of the second weight after them.
const PAIR = W_ROWS > BN;

// The tile of a workgroup: `count` places from `first` on, and BN rows of W from `row` on in `group`.
struct Tile { first: u32, count: u32, group: u32, row: u32 }

// The first vector of x that place m of the tile reads.
fn input_index(at: Tile, m: u32) -> u32 {
  return group_input_row(at.first + m) * p.x_stride + (p.first_group + at.group) * p.x_group_stride;
}

// A finished sum: `up`, or in a pair silu(gate) * up. exp(-gate) is kept finite, because Metal's fast math may assume that it is.
fn finished(gate: Value, up: Value) -> Value {
  if (PAIR) { return gate / (1.0 + exp(min(-gate, Value(80.0)))) * up; }
  return up;
}

// The value to write at i, with the residual added if one is bound.
#ifdef residual
fn with_residual(i: u32, v: Out) -> Out { return v + residual[i]; }
#else
fn with_residual(i: u32, v: Out) -> Out { return v; }
#endif
