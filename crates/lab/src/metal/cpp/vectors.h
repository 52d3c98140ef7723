// Vectors of two to four numbers. What naga writes as a swizzle, `v.xz`, is read as a call, `v.at<0, 2>()`.

template <typename T, int N> struct vec;
template <typename T> struct packed;

template <typename T> struct alignas(2 * sizeof(T)) vec<T, 2> {
  T x, y;
  vec() = default;
  explicit vec(T s) : x(s), y(s) {}
  vec(T a, T b) : x(a), y(b) {}
  template <typename U> explicit vec(const vec<U, 2> &o) : x(T(o.x)), y(T(o.y)) {}
  T &operator[](uint i) { return i == 0 ? x : y; }
  const T &operator[](uint i) const { return i == 0 ? x : y; }
  template <int... I> vec<T, sizeof...(I)> at() const { return {(*this)[I]...}; }
};

template <typename T> struct alignas(4 * sizeof(T)) vec<T, 3> {
  T x, y, z;
  vec() = default;
  explicit vec(T s) : x(s), y(s), z(s) {}
  vec(T a, T b, T c) : x(a), y(b), z(c) {}
  vec(vec<T, 2> a, T c) : x(a.x), y(a.y), z(c) {}
  template <typename U> explicit vec(const vec<U, 3> &o) : x(T(o.x)), y(T(o.y)), z(T(o.z)) {}
  T &operator[](uint i) { return i == 0 ? x : i == 1 ? y : z; }
  const T &operator[](uint i) const { return i == 0 ? x : i == 1 ? y : z; }
  template <int... I> vec<T, sizeof...(I)> at() const { return {(*this)[I]...}; }
};

template <typename T> struct alignas(4 * sizeof(T)) vec<T, 4> {
  T x, y, z, w;
  vec() = default;
  explicit vec(T s) : x(s), y(s), z(s), w(s) {}
  vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
  vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
  vec(vec<T, 2> a, T c, T d) : x(a.x), y(a.y), z(c), w(d) {}
  vec(T a, vec<T, 3> b) : x(a), y(b.x), z(b.y), w(b.z) {}
  vec(vec<T, 3> a, T d) : x(a.x), y(a.y), z(a.z), w(d) {}
  template <typename U> explicit vec(const vec<U, 4> &o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  template <typename U> explicit vec(const packed<U> &o) : x(T(o.x)), y(T(o.y)), z(T(o.z)), w(T(o.w)) {}
  T &operator[](uint i) { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  const T &operator[](uint i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
  template <int... I> vec<T, sizeof...(I)> at() const { return {(*this)[I]...}; }
};

// f of each component.
template <typename T, typename F> inline auto each(F f, vec<T, 2> a) -> vec<decltype(f(a.x)), 2> { return {f(a.x), f(a.y)}; }
template <typename T, typename F> inline auto each(F f, vec<T, 3> a) -> vec<decltype(f(a.x)), 3> { return {f(a.x), f(a.y), f(a.z)}; }
template <typename T, typename F> inline auto each(F f, vec<T, 4> a) -> vec<decltype(f(a.x)), 4> { return {f(a.x), f(a.y), f(a.z), f(a.w)}; }
// f of each pair of components.
template <typename T, typename U, typename F> inline auto each(F f, vec<T, 2> a, vec<U, 2> b) -> vec<decltype(f(a.x, b.x)), 2> { return {f(a.x, b.x), f(a.y, b.y)}; }
template <typename T, typename U, typename F> inline auto each(F f, vec<T, 3> a, vec<U, 3> b) -> vec<decltype(f(a.x, b.x)), 3> { return {f(a.x, b.x), f(a.y, b.y), f(a.z, b.z)}; }
template <typename T, typename U, typename F> inline auto each(F f, vec<T, 4> a, vec<U, 4> b) -> vec<decltype(f(a.x, b.x)), 4> { return {f(a.x, b.x), f(a.y, b.y), f(a.z, b.z), f(a.w, b.w)}; }

template <typename T> struct same { typedef T type; };
#define OPERATOR(op, result)                                                                                        \
  template <typename T, int N> inline auto operator op(vec<T, N> a, vec<T, N> b) {                          \
    return each([](T p, T q) { return result(p op q); }, a, b);                                                   \
  }                                                                                                         \
  template <typename T, int N> inline auto operator op(vec<T, N> a, typename same<T>::type s) {             \
    return each([s](T p) { return result(p op s); }, a);                                                          \
  }                                                                                                         \
  template <typename T, int N> inline auto operator op(typename same<T>::type s, vec<T, N> a) {             \
    return each([s](T p) { return result(s op p); }, a);                                                          \
  }
OPERATOR(+, T) OPERATOR(-, T) OPERATOR(*, T) OPERATOR(/, T) OPERATOR(%, T)
OPERATOR(&, T) OPERATOR(|, T) OPERATOR(^, T) OPERATOR(<<, T) OPERATOR(>>, T)
OPERATOR(==, bool) OPERATOR(!=, bool) OPERATOR(<, bool) OPERATOR(>, bool) OPERATOR(<=, bool) OPERATOR(>=, bool) OPERATOR(&&, bool) OPERATOR(||, bool)
#undef OPERATOR
// An int shifted by unsigned numbers.
template <int N> inline vec<int, N> operator<<(vec<int, N> a, vec<uint, N> b) { return each([](int p, uint q) { return int(uint(p) << q); }, a, b); }
template <int N> inline vec<int, N> operator>>(vec<int, N> a, vec<uint, N> b) { return each([](int p, uint q) { return p >> q; }, a, b); }
template <typename T, int N> inline vec<T, N> operator-(vec<T, N> a) { return each([](T p) { return T(-p); }, a); }
template <typename T, int N> inline vec<T, N> operator~(vec<T, N> a) { return each([](T p) { return T(~p); }, a); }
template <int N> inline vec<bool, N> operator!(vec<bool, N> a) { return each([](bool p) { return !p; }, a); }

typedef vec<float, 2> float2; typedef vec<float, 3> float3; typedef vec<float, 4> float4;
typedef vec<half, 2> half2; typedef vec<half, 3> half3; typedef vec<half, 4> half4;
typedef vec<uint, 2> uint2; typedef vec<uint, 3> uint3; typedef vec<uint, 4> uint4;
typedef vec<int, 2> int2; typedef vec<int, 3> int3; typedef vec<int, 4> int4;
typedef vec<bool, 2> bool2; typedef vec<bool, 3> bool3; typedef vec<bool, 4> bool4;

// Four bytes; products of them are those of their numbers.
template <typename T> struct packed {
  T x, y, z, w;
  packed() = default;
  template <typename U> explicit packed(vec<U, 4> v) : x(T(v.x)), y(T(v.y)), z(T(v.z)), w(T(v.w)) {}
  T operator[](uint i) const { return i == 0 ? x : i == 1 ? y : i == 2 ? z : w; }
};
typedef packed<signed char> packed_char4;
typedef packed<uchar> packed_uchar4;
