  // Sums of squares that came with the input, asked for before the weights and used after them. SQUARES per thread at most.
#for i SQUARES
  let square$i = squares[min(lane + $iu * LANES, UNITS * 2u - 1u)];
#endfor
