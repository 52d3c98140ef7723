// The groups of W are heads, each of which writes its own columns of y, or there is one group. Places are tokens, with a row of x and of y each.
#length X_ROWS TOKENS
#length Y_ROWS TOKENS
#length W_UNITS max(p.groups, GRID_Z) * p.rows * UNITS

fn $W_input(at: Tile, m: u32) -> u32 { return at.first + m; }

fn $W_output(at: Tile, m: u32) -> u32 { return at.first + m; }

// The beginning of the rows of a group in a row of y.
fn $W_first_row(at: Tile) -> u32 { return at.group * p.rows; }
