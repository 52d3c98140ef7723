  // One over the root mean square of the input, of the sums that rms_load asked for and those beyond.
  var total = 0.0;
#for i SQUARES
  total += select(0.0, square$i, lane + $iu * LANES < UNITS * 2u);
#endfor
  var further = lane + SQUARES * LANES;
  loop {
    if (further >= UNITS * 2u) { break; }
    total += squares[further];
    further += LANES;
  }
  let scale = inverseSqrt(row_sum(total) / f32(UNITS * 32u) + p.eps);
