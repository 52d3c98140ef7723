#ifdef STAGED
  // A barrier must follow. Threads behind the last vector have none to leave.
#for s STAGE_LOADS
  if ($su * WG + t < STAGE_VECTORS) { staged[stage_place(stage_at$s)] = stage$s; }
#endfor
#endif
