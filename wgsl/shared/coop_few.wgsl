// How lanes read and write the sums that matrices leave in workgroup memory: FEW values at once. The array `$W` has elements of type `Sum`
// with SUM values. They are scalars for Metal, which stores matrices through pointers to scalars. `offset` counts values from element `at`.
#ifdef VECTORS
alias Sum = vec4<f32>;
alias Few = vec4<f32>;
alias FewHalves = vec4<f16>;
const SUM = 4u;
const FEW = 4u;

fn $W_few(at: u32, offset: u32) -> Few { return $W[at + offset / 4u]; }

fn $W_put(at: u32, offset: u32, v: Few) { $W[at + offset / 4u] = v; }
#else
alias Sum = f32;
alias Few = vec2<f32>;
alias FewHalves = vec2<f16>;
const SUM = 1u;
const FEW = 2u;

fn $W_few(at: u32, offset: u32) -> Few { return vec2($W[at + offset], $W[at + offset + 1u]); }

fn $W_put(at: u32, offset: u32, v: Few) {
  $W[at + offset] = v.x;
  $W[at + offset + 1u] = v.y;
}
#endif
