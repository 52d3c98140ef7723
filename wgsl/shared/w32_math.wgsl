// Arithmetic on 32 dequantised weights.
fn w32_dot(w: W32, x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>, x4: vec4<f32>, x5: vec4<f32>, x6: vec4<f32>, x7: vec4<f32>) -> f32 {
  return (dot(w.v0, x0) + dot(w.v1, x1)) + (dot(w.v2, x2) + dot(w.v3, x3)) + (dot(w.v4, x4) + dot(w.v5, x5)) + (dot(w.v6, x6) + dot(w.v7, x7));
}

fn w32_mul(w: W32, x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>, x4: vec4<f32>, x5: vec4<f32>, x6: vec4<f32>, x7: vec4<f32>) -> W32 {
  return W32(w.v0 * x0, w.v1 * x1, w.v2 * x2, w.v3 * x3, w.v4 * x4, w.v5 * x5, w.v6 * x6, w.v7 * x7);
}
