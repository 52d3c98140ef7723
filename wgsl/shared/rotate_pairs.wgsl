// Two pairs of neighbouring values, each rotated by an angle given as cosine and sine.
fn rotate_pairs(x: vec4<f32>, angle: vec4<f32>) -> vec4<f32> {
  return vec4(
    fma(x.x, angle.x, -x.y * angle.y), fma(x.x, angle.y, x.y * angle.x),
    fma(x.z, angle.z, -x.w * angle.w), fma(x.z, angle.w, x.w * angle.z),
  );
}
