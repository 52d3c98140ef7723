#ifdef PLAIN
  let subgroup = 0u;
  let subgroups = 0u;
  let lane_id = 0u;
#else
  // Numbered so that neighbours share a subgroup, whatever its size is.
  let t = subgroup * subgroup_size + lane_id;
#endif
