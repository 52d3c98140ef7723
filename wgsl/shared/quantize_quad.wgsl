// Quantizes 16 values as quantize_half does, by 4 neighbouring lanes with 4 values each. All of the threads 4i .. 4i + 4 must call, or none.
struct Quad {
  word: u32,            // the codes of the lane's values
  scale: f32,           // of all 16: value = scale * code
  scaled_sum: f32,      // scale times the sum of all 16 codes
}

// If the largest value is smaller, all become 0, because the scale or its inverse would not be a normal f32.
const SMALLEST_OF_QUADS = 1e-35;

fn quantize_quad(v: vec4<f32>) -> Quad {
  let m = abs(v);
  var largest = max(max(m.x, m.y), max(m.z, m.w));
  largest = max(largest, subgroupShuffleXor(largest, 1u));
  largest = max(largest, subgroupShuffleXor(largest, 2u));
  let some = largest >= SMALLEST_OF_QUADS;
  let inverse = select(0.0, 127.0 / max(largest, SMALLEST_OF_QUADS), some);
  let scale = select(0.0, largest / 127.0, some);
  let codes = vec4<i32>(round(v * inverse));
  var sum = codes.x + codes.y + (codes.z + codes.w);
  sum += subgroupShuffleXor(sum, 1u);
  sum += subgroupShuffleXor(sum, 2u);
  return Quad(pack4xI8(codes), scale, scale * f32(sum));
}
