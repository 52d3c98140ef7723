#ifdef STAGED
  // A barrier must follow. Threads behind the last record have none to leave.
#for s STAGE_LOADS
  if ($su * WG + t < 3u * STAGE_UNITS) { staged[stage_at$s % 3u * STAGE_UNITS + stage_at$s / 3u] = stage$s; }
#endfor
#endif
