// Operations in which threads meet. A thread waits where the line of the kernel stands that has the call.

enum class mem_flags { mem_none = 0, mem_device = 1, mem_threadgroup = 2 };
inline mem_flags operator|(mem_flags a, mem_flags b) { return mem_flags(int(a) | int(b)); }
inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { fibers_barrier(line); }
inline void simdgroup_barrier(mem_flags, int line = __builtin_LINE()) { fibers_meet(0, 0, line); }

// Leaves a value for the other lanes, and waits for them.
template <typename T> inline void meet(T v, int line) {
  static_assert(sizeof(T) <= 16, "a value of a lane");
  fibers_meet(&v, sizeof v, line);
}
// The value that a lane left.
template <typename T> inline T of_lane(uint lane) {
  T v;
  memcpy(&v, fibers_of_lane(lane), sizeof v);
  return v;
}
template <typename T> inline T simd_shuffle(T v, uint lane, int line = __builtin_LINE()) { meet(v, line); return of_lane<T>(lane); }
template <typename T> inline T simd_broadcast(T v, uint lane, int line = __builtin_LINE()) { meet(v, line); return of_lane<T>(lane); }
template <typename T> inline T simd_shuffle_xor(T v, uint mask, int line = __builtin_LINE()) { meet(v, line); return of_lane<T>(fibers_lane() ^ mask); }
template <typename T> inline T simd_shuffle_down(T v, uint by, int line = __builtin_LINE()) { meet(v, line); return of_lane<T>(fibers_lane() + by); }
template <typename T> inline T simd_shuffle_up(T v, uint by, int line = __builtin_LINE()) { meet(v, line); return of_lane<T>(fibers_lane() - by); }
template <typename T> inline T simd_broadcast_first(T v, int line = __builtin_LINE()) {
  meet(v, line);
  for (uint lane = 0;; ++lane) if (fibers_has_lane(lane)) return of_lane<T>(lane);
}
// f over the values of all lanes that are there, in the order of the lanes.
template <typename T, typename F> inline T fold(T v, int line, F f) {
  meet(v, line);
  bool any = false;
  T result = v;
  for (uint lane = 0; lane < 32; ++lane) {
    if (!fibers_has_lane(lane)) continue;
    T other = of_lane<T>(lane);
    result = any ? f(result, other) : other;
    any = true;
  }
  return result;
}
template <typename T> inline T simd_sum(T v, int line = __builtin_LINE()) { return fold(v, line, [](T a, T b) { return a + b; }); }
template <typename T> inline T simd_product(T v, int line = __builtin_LINE()) { return fold(v, line, [](T a, T b) { return a * b; }); }
template <typename T> inline T simd_max(T v, int line = __builtin_LINE()) { return fold(v, line, [](T a, T b) { return metal::max(a, b); }); }
template <typename T> inline T simd_min(T v, int line = __builtin_LINE()) { return fold(v, line, [](T a, T b) { return metal::min(a, b); }); }
inline bool simd_any(bool v, int line = __builtin_LINE()) { return fold(v, line, [](bool a, bool b) { return a || b; }); }
inline bool simd_all(bool v, int line = __builtin_LINE()) { return fold(v, line, [](bool a, bool b) { return a && b; }); }
template <typename T> inline T simd_prefix_exclusive_sum(T v, int line = __builtin_LINE()) {
  meet(v, line);
  T sum = T(0);
  for (uint lane = 0; lane < fibers_lane(); ++lane) if (fibers_has_lane(lane)) sum = sum + of_lane<T>(lane);
  return sum;
}
template <typename T> inline T simd_prefix_inclusive_sum(T v, int line = __builtin_LINE()) { return simd_prefix_exclusive_sum(v, line) + v; }
typedef struct { uint64_t bits; } simd_vote;
