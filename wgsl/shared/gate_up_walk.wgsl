// The products of a row of G (prefix $Wg) and of the same row of U ($Wu) with the kernel's input `x`: a thread's share.
fn $W_walk(unit: u32, lane: u32, g_sub: u32, u_sub: u32) -> vec2<f32> {
  var sums = vec2<f32>(0.0);
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
#for k UNROLL
#ifdef RAGGED
    let e$k = min(b + $ku * LANES, UNITS - 1u);
#else
    let e$k = b + $ku * LANES;
#endif
    let g$k = $Wg_load(unit + e$k, g_sub);
    let u$k = $Wu_load(unit + e$k, u_sub);
#endfor
#for k UNROLL
#ifdef RAGGED
    if (b + $ku * LANES < UNITS)
#endif
    {
#ifdef STAGED
      let v = staged_unit(e$k);
#else
      let v = x_unit(e$k);
#endif
      sums += vec2<f32>($Wg_times(g$k, v), $Wu_times(u$k, v));
    }
#endfor
    b += UNROLL * LANES;
  }
  return sums;
}
