// The input of a product as floats, which are multiplied by the norm's weight here.
#import w32_math
#import own_token
#ifdef SEVERAL
#length STREAM_UNITS TOKENS * UNITS
#else
#length STREAM_UNITS UNITS
#endif
#read $W: array<vec4<f32>> @floats(STREAM_UNITS * 32)  // (tokens, units, 8)
#read $W_norm: array<vec4<f32>> @floats(UNITS * 32)    // (units, 8)
const $W_SHARED = false;
alias $W_Asked = u32;
alias $W_Unit = W32;
fn $W_ask(t: u32, group: u32) -> $W_Asked { return 0u; }
fn $W_put(t: u32, asked: $W_Asked) { }
fn $W_row(units: u32) -> u32 { return 0u; }

fn $W_unit(u: u32) -> W32 {
  let i = 8u * (own_token * UNITS + u);
  let n = 8u * u;
  let w = W32($W[i], $W[i + 1u], $W[i + 2u], $W[i + 3u], $W[i + 4u], $W[i + 5u], $W[i + 6u], $W[i + 7u]);
  return w32_mul(w, $W_norm[n], $W_norm[n + 1u], $W_norm[n + 2u], $W_norm[n + 3u], $W_norm[n + 4u], $W_norm[n + 5u], $W_norm[n + 6u], $W_norm[n + 7u]);
}
