// One over the root mean square of a row of x, of p.units units, which begins at vector `begin`. Every thread of the workgroup must call.
#import reduce
fn rms_scale(begin: u32, t: u32, subgroup: u32, subgroups: u32, lane_id: u32) -> f32 {
  var squares = 0.0;
  var i = t;
  loop {
    if (i >= p.units * 8u) { break; }
    squares += dot(x[begin + i], x[begin + i]);
    i += WG;
  }
  return inverseSqrt(workgroup_sum(squares, t, subgroup, subgroups, lane_id) / f32(p.units * 32u) + p.eps);
}
