// The parameters of a dispatch: immediates, or a uniform with a dynamic offset where a browser could run it.
// The kernel declares `struct Params` (u32 and f32 members only, at most 128 bytes).
#ifdef PLAIN
@group(1) @binding(0) var<uniform> p: Params;
#else
var<immediate> p: Params;
#endif
