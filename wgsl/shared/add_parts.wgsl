  // What $W holds at i; with SPLIT it comes in p.parts parts, p.part_stride apart, to be added up.
  var sum = $W[i];
#ifdef SPLIT
  var part = 1u;
  loop {
    if (part >= p.parts) { break; }
    sum += $W[part * p.part_stride + i];
    part += 1u;
  }
#endif
