  // In the main function, not in one of its own: naga would not see that all threads return together (nor with ||).
#ifdef tiles
  let tile = tiles[wid.y];
  let expert = tile.x - p.first_group;
  // Nothing left; an expert of another part: one before this part wraps around.
  if (tile.z == 0u) { return; }
  if (expert >= p.groups) { return; }
  let at = Place(tile.y, tile.z, expert, wid.x * BN);
#else
  let begin = wid.y * BM;
  let at = Place(begin, min(BM, p.tokens - begin), wid.z, wid.x * BN);
#endif
