// There is one group of W and one place, with the only row of x and of y, whatever the step has.
#length X_ROWS 1
#length Y_ROWS 1
#length W_UNITS p.rows * UNITS

fn $W_input(at: Tile, m: u32) -> u32 { return 0u; }

fn $W_output(at: Tile, m: u32) -> u32 { return 0u; }

fn $W_first_row(at: Tile) -> u32 { return 0u; }
