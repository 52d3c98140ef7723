// Copies experts of a weight to their places on the device: from host memory, or from slots that keep them.
//
// fills (entries) of (source, place): the source is an expert in host memory, KEPT + a slot, or NONE if nothing is to be copied.
// Division: grid (parts of an expert, entries).
// Bound by: the bytes of the bus, whose latency many loads at a time hide.
#read fills: array<vec2<u32>> @words(2 * GRID_Y)   // (entries)
#import expert_copy

#main
  let own = fills[wid.y];
  if (own.x == NONE) { return; }
  copy_part(own.x, own.y, wid.x, t);
}
