// An input that is read where it lies: nothing is asked for ahead.
const $W_SHARED = false;
alias $W_Asked = u32;
fn $W_ask(t: u32, group: u32) -> $W_Asked { return 0u; }
fn $W_put(t: u32, asked: $W_Asked) { }
