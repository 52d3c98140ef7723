// The groups of W are experts, and a tile of tokens is one of a list by expert (see expert_rows): down, which reads the rows of x by place and
// writes the rows of y by slot.
#read tiles?: array<vec4<u32>> @words(4 * GRID_Y)  // (tiles) of expert, first place, places, nothing
#read slots: array<u32> @words(TOKENS * USED)     // (places) by expert, token * USED + rank
#length X_ROWS TOKENS * USED
#length W_UNITS max(p.groups, GRID_Z) * p.rows * p.units
#length Y_LENGTH (TOKENS * USED - 1) * p.y_stride + p.first_row + GRID_Z * p.rows

fn $W_input_row(i: u32) -> u32 { return i; }

// The first unit of a row of W.
fn $W_first_unit(at: Place, row: u32) -> u32 { return (at.group * p.rows + row) * p.units; }

// Where row 0 of W writes for the m-th place of the tile.
fn $W_output(at: Place, m: u32) -> u32 { return slots[at.first + m] * p.y_stride + p.first_row; }
