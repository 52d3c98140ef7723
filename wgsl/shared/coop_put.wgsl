// Stores four halves in the array $W of workgroup memory, from which matrices are loaded, from element `at` on.
#import coop_stage
#ifdef VECTORS
fn $W_put(at: u32, v: vec4<f16>) { $W[at] = v; }
#else
fn $W_put(at: u32, v: vec4<f16>) {
  $W[at] = v.x;
  $W[at + 1u] = v.y;
  $W[at + 2u] = v.z;
  $W[at + 3u] = v.w;
}
#endif
