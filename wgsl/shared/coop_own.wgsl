// A barrier for the lanes of one subgroup, and a vote among them.
#ifdef TOGETHER
// For the whole workgroup: where matrices are emulated over several subgroups, where subgroups share workgroup memory, and on llvmpipe,
// which takes a barrier of a subgroup for one of the workgroup.
var<workgroup> held: vec4<u32>;

fn own_barrier() {
  workgroupBarrier();
}

fn own_any(holds: bool) -> bool {
  held = vec4(0u);
  workgroupBarrier();
  if (holds) { held = vec4(1u); }
  let found = workgroupUniformLoad(&held);
  return found.x == 1u;
}
#else
fn own_barrier() {
  subgroupBarrier();
}

fn own_any(holds: bool) -> bool {
  return subgroupAny(holds);
}
#endif
