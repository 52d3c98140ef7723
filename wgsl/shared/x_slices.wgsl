// The input of attn_v_b: a head's latent. The workgroup joins it from the slices of attention while its weights are being loaded.
#number HEADS  // query heads
#read slice_sums: array<vec4<f32>> @floats(SLICES * HEADS * UNITS * 32)   // (tokens, HEADS, slices of the token, 8 * UNITS)
#read stats: array<vec2<f32>> @floats(SLICES * HEADS * 2)                     // (tokens, HEADS, slices of the token) of (max, sum)
const KV_LORA = UNITS * 32u;
#import own_token
#import token_slices
#import merge_head
const $W_SHARED = false;
alias $W_Unit = Kept;
alias $W_Asked = u32;
fn $W_ask(t: u32, group: u32) -> $W_Asked { return group; }
fn $W_put(t: u32, head: $W_Asked) {
  let own = token_slices(own_token);
  merge_head(own.place + head * own.count, t, own.count);
}
fn $W_unit(u: u32) -> $W_Unit { return kept_unit(u); }
fn $W_row(units: u32) -> u32 { return 0u; }
