// 16 values as halves, by 4 neighbouring lanes with 4 values each. All of the threads 4i .. 4i + 4 must call, or none.
#import halves
#import halve
struct HalvesQuad {
  words: vec2<u32>,     // the lane's values
  scale: vec2<f32>,     // of all 16: the scale, and the scale times the sum of the halves
}

fn halve_quad(v: vec4<f32>) -> HalvesQuad {
  let m = abs(v);
  var largest = max(max(m.x, m.y), max(m.z, m.w));
  largest = max(largest, subgroupShuffleXor(largest, 1u));
  largest = max(largest, subgroupShuffleXor(largest, 2u));
  let scale = halves_scale(largest);
  let rounded = halves_round(v * scale.y);
  let words = halves_words(rounded);
  var sum = halves_sum(rounded);
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  return HalvesQuad(words, vec2<f32>(scale.x, scale.x * sum));
}

// The place of the two words of values 4i .. 4i + 4, in pairs of words.
fn halves_quad_place(i: u32) -> u32 {
  return 2u * (halves_place(i >> 3u) + ((i >> 1u) & 3u) * HALVES_PLANE) + (i & 1u);
}

// The place of the scale and the sum of the 16 values with values 4i .. 4i + 4, in pairs of words.
fn halves_scale_place(i: u32) -> u32 {
  return 2u * (halves_place(i >> 3u) + HALVES_SCALES) + ((i >> 2u) & 1u);
}
