// A unit of weights (scale * code + offset per half) times 32 floats. Scales and offsets are applied to sums instead of weights. The sums of
// the input are the same for all rows, so compilers compute them once for several rows.
fn floats_sum16(codes: vec4<u32>, a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> f32 {
  return (dot(vec4<f32>(unpack4xI8(codes.x)), a) + dot(vec4<f32>(unpack4xI8(codes.y)), b)) + (dot(vec4<f32>(unpack4xI8(codes.z)), c) + dot(vec4<f32>(unpack4xI8(codes.w)), d));
}

fn floats_codes_dot(codes: W32Codes, affine: vec4<f32>, x: W32) -> f32 {
  let lo = affine.x * floats_sum16(codes.lo, x.v0, x.v1, x.v2, x.v3);
  let hi = affine.z * floats_sum16(codes.hi, x.v4, x.v5, x.v6, x.v7);
  let sums = vec2<f32>(dot((x.v0 + x.v1) + (x.v2 + x.v3), vec4<f32>(1.0)), dot((x.v4 + x.v5) + (x.v6 + x.v7), vec4<f32>(1.0)));
  return fma(affine.y, sums.x, lo) + fma(affine.w, sums.y, hi);
}
