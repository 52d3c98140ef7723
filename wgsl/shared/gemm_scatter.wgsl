// The groups of W are experts, and expert_rows lists their tiles. This is for down: place i reads row i of x and writes the row of y of
// its slot.
#number USED  // experts of a token
#read tiles?: array<vec4<u32>> @words(4 * GRID_Y)  // (tiles) of (expert, first place, places, 0)
#read slots: array<u32> @words(TOKENS * USED)     // (places) of token * USED + rank, by expert
#length X_ROWS TOKENS * USED
#length W_UNITS max(p.groups, GRID_Z) * p.rows * p.units
#length Y_LENGTH (TOKENS * USED - 1) * p.y_stride + p.first_row + GRID_Z * p.rows

fn $W_input_row(i: u32) -> u32 { return i; }

// The first unit of a row of W.
fn $W_first_unit(at: Tile, row: u32) -> u32 { return (at.group * p.rows + row) * p.units; }

// The place of the sum of row 0 of W for place m of the tile.
fn $W_output(at: Tile, m: u32) -> u32 { return slots[at.first + m] * p.y_stride + p.first_row; }
