// token_moe_down without a shared expert, or with none of its rows in this piece.
#number H_UNITS  // units of a token of h
#length INPUT_UNITS TOKENS * H_UNITS
const TOKEN_UNITS = H_UNITS;
alias Shared = u32;
fn shared_ask(row: u32, lane: u32) -> Shared { return 0u; }
fn shared_sum(asked: Shared, row: u32, lane: u32) -> f32 { return 0.0; }
