// A part of a unit of a type with codes.
fn $W_part(u: u32, sub: u32, part: u32) -> Part {
  let c = $W_codes(u);
  let a = $W_affine(u, sub);
#ifdef WHOLE
  return Part(
    word_halves(c.lo.x, a.xy), word_halves(c.lo.y, a.xy), word_halves(c.lo.z, a.xy), word_halves(c.lo.w, a.xy),
    word_halves(c.hi.x, a.zw), word_halves(c.hi.y, a.zw), word_halves(c.hi.z, a.zw), word_halves(c.hi.w, a.zw),
  );
#endif
#ifdef HALVES
  let words = select(c.lo, c.hi, part == 1u);
  let b = select(a.xy, a.zw, part == 1u);
  return Part(word_halves(words.x, b), word_halves(words.y, b), word_halves(words.z, b), word_halves(words.w, b));
#endif
#ifdef QUARTERS
  let half = select(c.lo, c.hi, part >= 2u);
  let words = select(half.xy, half.zw, (part & 1u) == 1u);
  let b = select(a.xy, a.zw, part >= 2u);
  return Part(word_halves(words.x, b), word_halves(words.y, b));
#endif
}
