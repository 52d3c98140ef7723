// Split-K: each group is a range of the columns of one weight, with p.units units of every row. y (ranges, tokens, y_stride) holds
// partial sums, which the next kernel adds up. Products of few rows need this, because their tiles alone would not fill a device.
#word row_units: u32       // of 32 weights, per whole row
#word partial_stride: u32  // values from one range's sums to the next one's
#length X_ROWS TOKENS
#length W_UNITS (p.rows - 1) * p.row_units + GRID_Z * p.units
#length Y_LENGTH (TOKENS - 1) * p.y_stride + p.first_row + (GRID_Z - 1) * p.partial_stride + p.rows

fn $W_input_row(i: u32) -> u32 { return i; }

// The first unit of the range's columns of a row of W.
fn $W_first_unit(at: Tile, row: u32) -> u32 { return row * p.row_units + at.group * p.units; }

// The place of the sum of row 0 of W for place m of the tile.
fn $W_output(at: Tile, m: u32) -> u32 {
  return (at.first + m) * p.y_stride + p.first_row + at.group * p.partial_stride;
}
