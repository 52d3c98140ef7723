  // What $W holds at i; where it comes in p.parts parts, p.part_stride apart, they are added up.
  var sum = $W[i];
#ifdef parts
  var part = 1u;
  loop {
    if (part >= p.parts) { break; }
    sum += $W[part * p.part_stride + i];
    part += 1u;
  }
#endif
