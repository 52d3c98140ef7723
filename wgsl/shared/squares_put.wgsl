  // A barrier must follow.
  if (t < SQUARE_RUNS * RUN) {
    var sum = 0.0;
#for i SQUARES
    sum += select(0.0, square$i, square_at$i < UNITS * 2u);
#endfor
    if (RUN > 16u) { sum += subgroupShuffleXor(sum, 16u); }
    if (RUN > 8u) { sum += subgroupShuffleXor(sum, 8u); }
    if (RUN > 4u) { sum += subgroupShuffleXor(sum, 4u); }
    if (RUN > 2u) { sum += subgroupShuffleXor(sum, 2u); }
    sum += subgroupShuffleXor(sum, 1u);
    if ((t & (RUN - 1u)) == 0u) { square_sums[t / RUN] = sum; }
  }
