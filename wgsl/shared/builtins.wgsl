  @builtin(workgroup_id) wid: vec3<u32>,
#ifdef PLAIN
  @builtin(local_invocation_index) t: u32,
#else
  @builtin(subgroup_id) subgroup: u32,
  @builtin(num_subgroups) subgroups: u32,
  @builtin(subgroup_size) subgroup_size: u32,
  @builtin(subgroup_invocation_id) lane_id: u32,
#endif
