// Products of codes and halves without a conversion of the codes.
//
// With PACKED the bits of a code are used as a half: for a code below 1024 that is code * 2^-24, a subnormal number. Halves are multiplied in
// pairs, with 4 products to a sum. This is for devices that compute with subnormal halves (crates/gpu/src/gpu/small_halves.rs tries it).
// Without it 0x6400 | code is the half 1024 + code, and 0x6400 | code << 4 is 1024 + 16 code. They are widened to f32, which costs nothing
// for operands on Apple GPUs. The bias is subtracted from the sums, one step for 16 weights.

// Returns `bits`, which compilers cannot know: `sub` is far below 2^31. NVIDIA's and AMD's GPUs mask and combine bits in one instruction, but
// their compilers take two if they know both operands.
fn halves_hidden(bits: u32, sub: u32) -> u32 {
  return bits | (sub >> 31u);
}

#ifdef PACKED
enable f16;

// The factor of sums of products whose codes are used as halves: 2^24.
const HALVES_ONE = 16777216.0;

// The two halves of a word. Both conversions are exact, so compilers remove them.
fn halves_of(word: u32) -> vec2<f16> {
  return vec2<f16>(unpack2x16float(word));
}

fn halves_pairs(codes: vec4<u32>, first: vec4<u32>, second: vec4<u32>) -> vec2<f16> {
  var s = halves_of(codes.x) * halves_of(first.x);
  s = fma(halves_of(codes.y), halves_of(first.z), s);
  s = fma(halves_of(codes.z), halves_of(second.x), s);
  return fma(halves_of(codes.w), halves_of(second.z), s);
}

// halves_pairs with `middle` subtracted from the codes, which is exact. Codes around 128 would make sums that round more.
fn halves_centred_pairs(codes: vec4<u32>, middle: u32, first: vec4<u32>, second: vec4<u32>) -> vec2<f16> {
  let centre = halves_of(middle);
  var s = (halves_of(codes.x) - centre) * halves_of(first.x);
  s = fma(halves_of(codes.y) - centre, halves_of(first.z), s);
  s = fma(halves_of(codes.z) - centre, halves_of(second.x), s);
  return fma(halves_of(codes.w) - centre, halves_of(second.z), s);
}

fn halves_sum4(e: vec2<f16>, o: vec2<f16>) -> f32 {
  return (f32(e.x) + f32(e.y)) + (f32(o.x) + f32(o.y));
}

// The sum of code * half over 16 weights, over HALVES_ONE. `even` are the codes of weights 4i and 4i + 2, `odd` those of 4i + 1
// and 4i + 3, for i = 0 .. 4.
fn halves_dot16(even: vec4<u32>, odd: vec4<u32>, first: vec4<u32>, second: vec4<u32>) -> f32 {
  return halves_sum4(halves_pairs(even, first, second), halves_pairs(odd, first.yxwz, second.yxwz));
}

// halves_dot16 with `middle` subtracted from the codes.
fn halves_centred_dot16(even: vec4<u32>, odd: vec4<u32>, middle: u32, first: vec4<u32>, second: vec4<u32>) -> f32 {
  return halves_sum4(halves_centred_pairs(even, middle, first, second), halves_centred_pairs(odd, middle, first.yxwz, second.yxwz));
}
#else
const HALVES_BIAS = 0x64006400u;

// The sum of (biased code - bias) * value over 16 weights. `even` are the biased codes of weights 4i and 4i + 2, `odd` those of
// 4i + 1 and 4i + 3, for i = 0 .. 4; `scale` belongs to the halves of `first` and `second`.
fn halves_dot16(even: vec4<u32>, odd: vec4<u32>, bias: f32, first: vec4<u32>, second: vec4<u32>, scale: vec2<f32>) -> f32 {
  var e = unpack2x16float(even.x) * unpack2x16float(first.x);
  var o = unpack2x16float(odd.x) * unpack2x16float(first.y);
  e += unpack2x16float(even.y) * unpack2x16float(first.z);
  o += unpack2x16float(odd.y) * unpack2x16float(first.w);
  e += unpack2x16float(even.z) * unpack2x16float(second.x);
  o += unpack2x16float(odd.z) * unpack2x16float(second.y);
  e += unpack2x16float(even.w) * unpack2x16float(second.z);
  o += unpack2x16float(odd.w) * unpack2x16float(second.w);
  let both = e + o;
  return fma(scale.x, both.x + both.y, -bias * scale.y);
}
#endif
