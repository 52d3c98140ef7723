// The groups of W are experts, and expert_rows lists their tiles. This is for down: place i reads row i of x and writes the row of y of its slot.
#read tiles?: array<vec4<u32>> @words(4 * GRID_Y)   // (tiles) of (expert, first place, places, 0)
#read slots: array<u32> @words(TOKENS * USED)       // (places) of token * USED + rank, by expert
#length X_ROWS TOKENS * USED
#length Y_ROWS TOKENS * USED
#length W_UNITS p.groups * p.rows * UNITS

fn $W_input(at: Tile, m: u32) -> u32 { return at.first + m; }

fn $W_output(at: Tile, m: u32) -> u32 { return slots[at.first + m]; }

fn $W_first_row(at: Tile) -> u32 { return 0u; }
