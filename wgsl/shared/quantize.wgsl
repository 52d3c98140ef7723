// 16 values as signed bytes with a scale, for integer dot products, as half a unit of quant::activation.
struct Half {
  codes: vec4<u32>,     // in order, 4 per word
  scale: f32,           // value = scale * code
  scaled_sum: f32,      // scale times the sum of the codes
}

// If the largest value is smaller, all become 0, because the scale or its inverse would not be a normal f32.
const SMALLEST = 1e-35;

fn quantize_half(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> Half {
  let m = max(max(abs(a), abs(b)), max(abs(c), abs(d)));
  let largest = max(max(m.x, m.y), max(m.z, m.w));
  if (largest < SMALLEST) { return Half(vec4(0u), 0.0, 0.0); }
  let inverse = 127.0 / largest;
  let ca = vec4<i32>(round(a * inverse));
  let cb = vec4<i32>(round(b * inverse));
  let cc = vec4<i32>(round(c * inverse));
  let cd = vec4<i32>(round(d * inverse));
  let scale = largest / 127.0;
  let sum = ca + cb + cc + cd;
  return Half(
    vec4(pack4xI8(ca), pack4xI8(cb), pack4xI8(cc), pack4xI8(cd)),
    scale,
    scale * f32(sum.x + sum.y + sum.z + sum.w),
  );
}
