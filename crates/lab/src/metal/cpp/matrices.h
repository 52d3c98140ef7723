// 8x8 matrices of a simdgroup. Pointers are to numbers, as in Metal. Of a sum each lane has two values, of what was loaded it has all.

template <typename T> struct simdgroup_matrix {
  float at[8][8];
  bool whole;
};
typedef simdgroup_matrix<half> simdgroup_half8x8;
typedef simdgroup_matrix<float> simdgroup_float8x8;

// The row and the first of two columns that a lane has.
inline uint own_row() { return fibers_lane() / 4; }
inline uint own_column() { return fibers_lane() % 4 * 2; }

// Value (row, column) lies at row * stride + column, and the other way round where it is transposed.
template <typename T>
inline void simdgroup_load(simdgroup_matrix<T> &m, const T *from, unsigned long stride, int = 0, bool transposed = false, int line = __builtin_LINE()) {
  fibers_together(line);
  for (int r = 0; r < 8; ++r)
    for (int c = 0; c < 8; ++c) m.at[r][c] = float(transposed ? from[c * stride + r] : from[r * stride + c]);
  m.whole = true;
}
template <typename T>
inline void simdgroup_store(const simdgroup_matrix<T> &m, T *to, unsigned long stride, int = 0, bool transposed = false, int line = __builtin_LINE()) {
  fibers_together(line);
  for (uint c = own_column(); c < own_column() + 2; ++c) {
    uint r = own_row();
    to[transposed ? c * stride + r : r * stride + c] = T(m.at[r][c]);
  }
}
// Has all values of a matrix that is a sum.
template <typename T> inline simdgroup_matrix<T> gathered(const simdgroup_matrix<T> &m, int line) {
  if (m.whole) return m;
  simdgroup_matrix<T> all;
  meet(vec<float, 2>(m.at[own_row()][own_column()], m.at[own_row()][own_column() + 1]), line);
  for (uint lane = 0; lane < 32; ++lane) {
    vec<float, 2> two = of_lane<vec<float, 2>>(lane);
    all.at[lane / 4][lane % 4 * 2] = two.x, all.at[lane / 4][lane % 4 * 2 + 1] = two.y;
  }
  all.whole = true;
  return all;
}
template <typename A, typename B, typename C>
inline void sums_of_lane(simdgroup_matrix<C> &d, const simdgroup_matrix<A> &a, const simdgroup_matrix<B> &b, const simdgroup_matrix<C> &c) {
  uint r = own_row(), first = own_column();
  float left = c.at[r][first], right = c.at[r][first + 1];
  for (int k = 0; k < 8; ++k) left += a.at[r][k] * b.at[k][first], right += a.at[r][k] * b.at[k][first + 1];
  d.at[r][first] = float(C(left)), d.at[r][first + 1] = float(C(right));
  d.whole = false;
}
template <typename A, typename B, typename C>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<C> &d, const simdgroup_matrix<A> &a, const simdgroup_matrix<B> &b, const simdgroup_matrix<C> &c, int line = __builtin_LINE()) {
  fibers_together(line);
  if (a.whole && b.whole) sums_of_lane(d, a, b, c);
  else sums_of_lane(d, gathered(a, line), gathered(b, line), c);
}
