// The best of a workgroup of WG threads: the greatest key, and the lowest id that has it. Every thread must call. Between calls the kernel
// may use `ranked`, with barriers.
var<workgroup> ranked: array<vec2<u32>, WG>;

// The better of two (key, id).
fn better(a: vec2<u32>, b: vec2<u32>) -> vec2<u32> {
  return select(a, b, b.x > a.x || (b.x == a.x && b.y < a.y));
}

fn workgroup_best(mine: vec2<u32>, t: u32, subgroup: u32, subgroups: u32, lane: u32) -> vec2<u32> {
#ifdef PLAIN
  ranked[t] = mine;
  workgroupBarrier();
  var step = WG / 2u;
  loop {
    if (step == 0u) { break; }
    if (t < step) { ranked[t] = better(ranked[t], ranked[t + step]); }
    workgroupBarrier();
    step = step >> 1u;
  }
  return ranked[0];
#else
  let key = subgroupMax(mine.x);
  let id = subgroupMin(select(0xffffffffu, mine.y, mine.x == key));
  if (lane == 0u) { ranked[subgroup] = vec2(key, id); }
  workgroupBarrier();
  var best = ranked[0];
  var i = 1u;
  loop {
    if (i >= subgroups) { break; }
    best = better(best, ranked[i]);
    i += 1u;
  }
  return best;
#endif
}
