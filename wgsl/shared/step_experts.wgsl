// The experts that the tokens of a step chose, by ids or by tiles of batch_experts. The kernel binds either.

// Ids, or tiles.
fn entries() -> u32 {
#ifdef ids
  return p.tokens * USED;
#else
  return p.covered;
#endif
}

// The expert of entry i, an id or a tile; EXPERTS of a tile without slots.
fn expert_of(i: u32) -> u32 {
#ifdef ids
  return ids[i];
#else
  return select(EXPERTS, tiles[TILE_WORDS * i], tiles[TILE_WORDS * i + 2u] > 0u);
#endif
}
