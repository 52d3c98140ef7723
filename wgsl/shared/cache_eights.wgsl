// Vectors of 8 values of a cache in Q8_0, whose elements are pairs of words. `row` is the first element of a row.
#import cache_codes
#import eight

// The codes of vector `c` of the latent, and the two words in which the scale of their block is.
fn latent_asked(row: u32, c: u32) -> vec4<u32> {
  return vec4(cache[row + c], cache[row + SCALES_AT / 2u + c / 16u]);
}

// Vector `c` of the latent, as it was asked for.
fn latent_eight(asked: vec4<u32>, c: u32) -> Eight {
  let block = c / 4u;
  let scale = scale_in(select(asked.z, asked.w, (block & 2u) != 0u), block);
  return Eight(four_values(asked.x, scale), four_values(asked.y, scale));
}

// Vector `c` of the rotated values, in f16.
fn rotated_asked(row: u32, c: u32) -> vec4<u32> {
  return vec4(cache[row + ROTATED_AT / 2u + 2u * c], cache[row + ROTATED_AT / 2u + 2u * c + 1u]);
}
