// Split-K: the groups of W are ranges of the columns of one weight, p.units of each row. y (ranges, tokens, y_stride) holds
// partial sums, which the next kernel adds up. This is for products of few rows, whose workgroups would not fill a device.
#word row_units: u32      // of 32 weights, per row
#word partial_stride: u32    // values from one range's sums to the next one's
#length X_ROWS TOKENS
#length W_UNITS (p.rows - 1) * p.row_units + GRID_Z * p.units
#length Y_LENGTH (TOKENS - 1) * p.y_stride + p.first_row + (GRID_Z - 1) * p.partial_stride + p.rows

fn $W_input_row(i: u32) -> u32 { return i; }

// The first unit of the range's columns of a row of W.
fn $W_first_unit(at: Place, row: u32) -> u32 { return row * p.row_units + at.group * p.units; }

// Where row 0 of W writes for the m-th place of the tile.
fn $W_output(at: Place, m: u32) -> u32 {
  return (at.first + m) * p.y_stride + p.first_row + at.group * p.partial_stride;
}
