// A product's rows, rotated if `angles` is bound (--precompose qk).
#word pos?: u32                                                      // of the token
#read angles?: array<vec2<f32>> @floats(CONTEXT * ROPE)              // (n_ctx, ROPE / 2) of (cos, sin)
#ifdef angles
#import rotate_rows
#else
fn rotated(sum: f32, row: u32, t: u32) -> f32 { return sum; }
#endif
