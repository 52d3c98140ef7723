#for i SQUARES
  let square_at$i = $iu * WG + t;
  let square$i = squares[min(square_at$i, UNITS * 2u - 1u)];
#endfor
