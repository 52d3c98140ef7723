// The slices of a token's context among those of all tokens. Their sums lie as (tokens, HEADS, slices of the token).
#number HEADS  // query heads
#import table
struct TokenSlices {
  place: u32,   // of the first slice of the token's first head
  count: u32,   // slices
}

#ifdef table
fn token_slices(token: u32) -> TokenSlices {
  return TokenSlices(table[2u * token].w * HEADS, table[2u * token + 1u].x);
}
#else
#word slices: u32      // of each token
fn token_slices(token: u32) -> TokenSlices { return TokenSlices(token * HEADS * p.slices, p.slices); }
#endif
