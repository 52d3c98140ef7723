// The first lines of `main` of the gemm kernels: `at` is the tile of the output that the workgroup computes.
#number BN BM  // rows of W in a tile, tokens of a tile
#ifdef tiles
  let listed = tiles[wid.y];
  // An expert that precedes this piece of the weight wraps around to a large number.
  let expert = listed.x - p.first_group;
  // The list has ended, or another piece holds the expert. With one condition for both, naga would not see that all threads agree.
  if (listed.z == 0u) { return; }
  if (expert >= p.groups) { return; }
  let at = Tile(listed.y, listed.z, expert, wid.x * BN);
#else
  let at = Tile(wid.y * BM, min(BM, p.tokens - wid.y * BM), wid.z, wid.x * BN);
#endif
