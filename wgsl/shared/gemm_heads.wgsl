// The groups of W are heads, each of which writes its own columns of y, or there is one group. Rows of x and y are tokens.
#length X_ROWS TOKENS
#length W_UNITS max(p.groups, GRID_Z) * p.rows * p.units
#length Y_LENGTH (TOKENS - 1) * p.y_stride + p.first_row + GRID_Z * p.rows

fn $W_input_row(i: u32) -> u32 { return i; }

// The first unit of a row of W.
fn $W_first_unit(at: Tile, row: u32) -> u32 { return (at.group * p.rows + row) * p.units; }

// The place of the sum of row 0 of W for place m of the tile.
fn $W_output(at: Tile, m: u32) -> u32 {
  return (at.first + m) * p.y_stride + p.first_row + at.group * p.rows;
}
