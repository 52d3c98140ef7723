// An input that is read from its buffer when it is used. Nothing is requested ahead.
#import own_token
const $W_SHARED = false;
alias $W_Asked = u32;
fn $W_ask(t: u32, group: u32) -> $W_Asked { return 0u; }
fn $W_put(t: u32, asked: $W_Asked) { }
// The first unit of the token's row, which has so many.
fn $W_row(units: u32) -> u32 { return own_token * units; }
