  // The thread's sums of squares, for squares_put (shared/rms_in_runs.wgsl).
#for i SQUARES
  let square_at$i = $iu * WG + t;
  let square$i = squares[min(square_at$i, UNITS * 2u - 1u)];
#endfor
