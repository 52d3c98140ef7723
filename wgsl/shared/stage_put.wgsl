#ifdef STAGED
  // A barrier must follow.
#for s STAGE_LOADS
  staged[stage_at$s % 3u * STAGE_UNITS + stage_at$s / 3u] = stage$s;
#endfor
#endif
