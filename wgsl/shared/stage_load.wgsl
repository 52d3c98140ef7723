#ifdef STAGED
  // The thread's share of the input $W, asked for before other loads and left for the workgroup by stage_put.
#for s STAGE_LOADS
  let stage_at$s = min($su * WG + t, STAGE_VECTORS - 1u);
  let stage$s = $W[stage_at$s];
#endfor
#endif
