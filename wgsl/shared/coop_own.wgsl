// What subgroups do on their own: waiting for their lanes' writes to workgroup memory, and asking them all.
#ifdef TOGETHER
// All subgroups do it together: where matrices are emulated over several subgroups, and on llvmpipe, which takes a subgroup's barrier for
// the workgroup's.
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
