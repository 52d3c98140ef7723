// Activations as signed bytes. A unit is a record of 3 vec4<u32>: the bytes of values 0 .. 16, those of values 16 .. 32, and as floats
// (s0, s1, s0 * sum0, s1 * sum1). A value of half i is s_i times its byte, and sum_i is the sum of the bytes of half i.
struct Record { lo: vec4<u32>, hi: vec4<u32>, scales: vec4<f32> }

fn bytes_sum16(a: vec4<u32>, b: vec4<u32>) -> f32 {
  return f32(dot4I8Packed(a.x, b.x) + dot4I8Packed(a.y, b.y) + dot4I8Packed(a.z, b.z) + dot4I8Packed(a.w, b.w));
}

// 32 float weights times a record.
fn bytes_float_dot(w: W32, x: Record) -> f32 {
  let a = dot(w.v0, vec4<f32>(unpack4xI8(x.lo.x))) + dot(w.v1, vec4<f32>(unpack4xI8(x.lo.y))) + dot(w.v2, vec4<f32>(unpack4xI8(x.lo.z))) + dot(w.v3, vec4<f32>(unpack4xI8(x.lo.w)));
  let b = dot(w.v4, vec4<f32>(unpack4xI8(x.hi.x))) + dot(w.v5, vec4<f32>(unpack4xI8(x.hi.y))) + dot(w.v6, vec4<f32>(unpack4xI8(x.hi.z))) + dot(w.v7, vec4<f32>(unpack4xI8(x.hi.w)));
  return fma(x.scales.x, a, x.scales.y * b);
}
