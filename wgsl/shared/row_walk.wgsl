// The product of a row of W (prefix $W), from unit `unit` on, with the kernel's input x from unit `first` on: a thread's share. With
// STAGED the input lies in workgroup memory.
fn $W_walk(unit: u32, first: u32, lane: u32, sub: u32) -> f32 {
  var sum = 0.0;
  var b = lane;
  loop {
    if (b >= UNITS) { break; }
#for k UNROLL
#ifdef RAGGED
    let e$k = min(b + $ku * LANES, UNITS - 1u);
#else
    let e$k = b + $ku * LANES;
#endif
    let w$k = $W_load(unit + e$k, sub);
#endfor
#for k UNROLL
#ifdef RAGGED
    if (b + $ku * LANES < UNITS)
#endif
    {
#ifdef STAGED
      sum += $W_times(w$k, staged_unit(first + e$k));
#else
      sum += $W_times(w$k, x_unit(first + e$k));
#endif
    }
#endfor
    b += UNROLL * LANES;
  }
  return sum;
}
