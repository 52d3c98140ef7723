// What a lane takes at once of the sums that matrices leave in workgroup memory, in `$W`, which consists of `Sum`s, SUM numbers
// each: numbers where a language wants pointers to numbers (Metal). Places are those `offset` numbers behind the element `at`.
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
