// 32 values as halves, by one thread.
#import halves
#import halve
struct HalvesHalf { first: vec4<u32>, second: vec4<u32>, scale: vec2<f32> }

fn halve_half(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>) -> HalvesHalf {
  let m = max(max(abs(a), abs(b)), max(abs(c), abs(d)));
  let scale = halves_scale(max(max(m.x, m.y), max(m.z, m.w)));
  let ra = halves_round(a * scale.y);
  let rb = halves_round(b * scale.y);
  let rc = halves_round(c * scale.y);
  let rd = halves_round(d * scale.y);
  let sum = (halves_sum(ra) + halves_sum(rb)) + (halves_sum(rc) + halves_sum(rd));
  let first = vec4<u32>(halves_words(ra), halves_words(rb));
  let second = vec4<u32>(halves_words(rc), halves_words(rd));
  return HalvesHalf(first, second, vec2<f32>(scale.x, scale.x * sum));
}

fn halve_unit(a: vec4<f32>, b: vec4<f32>, c: vec4<f32>, d: vec4<f32>, e: vec4<f32>, f: vec4<f32>, g: vec4<f32>, h: vec4<f32>) -> Halves {
  let lo = halve_half(a, b, c, d);
  let hi = halve_half(e, f, g, h);
  return Halves(lo.first, lo.second, hi.first, hi.second, vec4<f32>(lo.scale, hi.scale));
}
