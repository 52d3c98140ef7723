// One over the root mean square of a prepared input: its sums of squares are asked for by squares_load, one or few by each thread,
// left in workgroup memory by squares_put, added up within runs of RUN lanes, and read behind a barrier. What all threads
// repeat costs as much as the products, since they share the multiprocessors' issue slots; what one subgroup loads alone,
// behind its other loads, all wait for.
var<workgroup> square_sums: array<f32, SQUARE_RUNS>;

fn rms_scale() -> f32 {
  var total = 0.0;
#for i SQUARE_RUNS
  total += square_sums[$i];
#endfor
  return inverseSqrt(total / f32(UNITS * 32u) + p.eps);
}
