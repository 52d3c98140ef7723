// Functions of numbers. Those of vectors work on each component.

inline float min(float a, float b) { return fminf(a, b); }
inline float max(float a, float b) { return fmaxf(a, b); }
inline uint min(uint a, uint b) { return a < b ? a : b; }
inline uint max(uint a, uint b) { return a > b ? a : b; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline half min(half a, half b) { return half(fminf(a, b)); }
inline half max(half a, half b) { return half(fmaxf(a, b)); }
inline float abs(float a) { return fabsf(a); }
inline int abs(int a) { return a < 0 ? -a : a; }
inline half abs(half a) { return half(fabsf(a)); }
inline float exp(float a) { return expf(a); }
inline float exp2(float a) { return exp2f(a); }
inline float log(float a) { return logf(a); }
inline float log2(float a) { return log2f(a); }
inline float sqrt(float a) { return sqrtf(a); }
inline float rsqrt(float a) { return 1.0f / sqrtf(a); }
inline float cos(float a) { return cosf(a); }
inline float sin(float a) { return sinf(a); }
inline float pow(float a, float b) { return powf(a, b); }
inline float floor(float a) { return floorf(a); }
inline float ceil(float a) { return ceilf(a); }
inline float trunc(float a) { return truncf(a); }
inline float rint(float a) { return rintf(a); }
inline float round(float a) { return roundf(a); }
inline float sign(float a) { return a > 0 ? 1.0f : a < 0 ? -1.0f : 0.0f; }
inline int sign(int a) { return a > 0 ? 1 : a < 0 ? -1 : 0; }
inline float fma(float a, float b, float c) { return fmaf(a, b, c); }
inline half fma(half a, half b, half c) { return half(float(double(float(a)) * double(float(b)) + double(float(c)))); }
inline bool isnan(float a) { return a != a; }
inline uint popcount(uint a) { return uint(__builtin_popcount(a)); }
inline uint clz(uint a) { return a ? uint(__builtin_clz(a)) : 32; }
inline uint ctz(uint a) { return a ? uint(__builtin_ctz(a)) : 32; }
inline uint extract_bits(uint v, uint offset, uint bits) {
  return bits == 0 ? 0 : v >> offset & (bits == 32 ? ~0u : (1u << bits) - 1);
}
inline int extract_bits(int v, uint offset, uint bits) {
  return bits == 0 ? 0 : int(uint(v) << (32 - bits - offset)) >> (32 - bits);
}
template <typename T> inline T clamp(T v, T low, T high) { return min(max(v, low), high); }
template <typename T> inline T select(T a, T b, bool c) { return c ? b : a; }

template <typename T> struct is_vec { static constexpr bool value = false; };
template <typename T, int N> struct is_vec<vec<T, N>> { static constexpr bool value = true; };

#define OF_ONE(name) \
  template <typename T, int N> inline auto name(vec<T, N> a) { return each([](T p) { return metal::name(p); }, a); }
#define OF_TWO(name) \
  template <typename T, int N> inline auto name(vec<T, N> a, vec<T, N> b) { return each([](T p, T q) { return metal::name(p, q); }, a, b); }
OF_ONE(abs) OF_ONE(exp) OF_ONE(exp2) OF_ONE(log) OF_ONE(log2) OF_ONE(sqrt) OF_ONE(rsqrt) OF_ONE(cos) OF_ONE(sin) OF_ONE(floor) OF_ONE(ceil)
OF_ONE(trunc) OF_ONE(rint) OF_ONE(round) OF_ONE(sign) OF_ONE(popcount) OF_ONE(isnan)
OF_TWO(min) OF_TWO(max) OF_TWO(pow)
#undef OF_ONE
#undef OF_TWO
template <typename T, int N> inline vec<T, N> clamp(vec<T, N> v, vec<T, N> low, vec<T, N> high) { return min(max(v, low), high); }
template <typename T, int N> inline vec<T, N> clamp(vec<T, N> v, typename same<T>::type low, typename same<T>::type high) { return clamp(v, vec<T, N>(low), vec<T, N>(high)); }
template <typename T, int N> inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = fma(a[i], b[i], c[i]);
  return r;
}
template <typename T, int N> inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<bool, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; ++i) r[i] = c[i] ? b[i] : a[i];
  return r;
}
template <typename T, int N> inline T dot(vec<T, N> a, vec<T, N> b) {
  T sum = a[0] * b[0];
  for (int i = 1; i < N; ++i) sum = sum + a[i] * b[i];
  return sum;
}
template <int N> inline bool any(vec<bool, N> a) { bool r = false; for (int i = 0; i < N; ++i) r |= a[i]; return r; }
template <int N> inline bool all(vec<bool, N> a) { bool r = true; for (int i = 0; i < N; ++i) r &= a[i]; return r; }
inline bool any(bool a) { return a; }
inline bool all(bool a) { return a; }
