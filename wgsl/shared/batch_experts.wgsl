// The groups of W are experts, and batch_experts lists their tiles. The places of a tile are slots of its expert. A slot has a row of y, and
// SLOTS_OF_ROW slots share a row of x: for gate and up those of a token, for down each slot has its own.
#number USED SLOTS_OF_ROW  // experts of a token, slots that read the same row of x
#read tiles?: array<vec4<u32>> @words(8 * GRID_Y)   // (tiles, 2): (expert, -, slots, -), then the slots
#length X_ROWS TOKENS * USED / SLOTS_OF_ROW
#length Y_ROWS TOKENS * USED
#length W_UNITS p.groups * p.rows * UNITS

fn $W_output(at: Tile, m: u32) -> u32 { return at.slots[m]; }

fn $W_input(at: Tile, m: u32) -> u32 { return $W_output(at, m) / SLOTS_OF_ROW; }

fn $W_first_row(at: Tile) -> u32 { return 0u; }
