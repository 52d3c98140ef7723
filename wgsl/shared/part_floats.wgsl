// A part of a unit of a type of floats.
fn $W_part(u: u32, sub: u32, part: u32) -> Part {
  let w = $W_unit(u, sub);
#ifdef WHOLE
  return Part(
    vec4<f16>(w.v0), vec4<f16>(w.v1), vec4<f16>(w.v2), vec4<f16>(w.v3),
    vec4<f16>(w.v4), vec4<f16>(w.v5), vec4<f16>(w.v6), vec4<f16>(w.v7),
  );
#endif
#ifdef HALVES
  let second = part == 1u;
  return Part(
    vec4<f16>(select(w.v0, w.v4, second)), vec4<f16>(select(w.v1, w.v5, second)),
    vec4<f16>(select(w.v2, w.v6, second)), vec4<f16>(select(w.v3, w.v7, second)),
  );
#endif
#ifdef QUARTERS
  let second = part >= 2u;
  let odd = (part & 1u) == 1u;
  return Part(
    vec4<f16>(select(select(w.v0, w.v2, odd), select(w.v4, w.v6, odd), second)),
    vec4<f16>(select(select(w.v1, w.v3, odd), select(w.v5, w.v7, odd), second)),
  );
#endif
}
