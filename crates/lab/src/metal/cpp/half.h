// Numbers of 16 bits. Every operation is done in f32 and rounded once, which is exact for + - * / (24 >= 2 * 11 + 2 bits).

// clang's type for halves that are only stored.
inline float from_half_bits(uint16_t bits) {
  __fp16 h;
  memcpy(&h, &bits, 2);
  return float(h);
}

// To the nearest, ties to even.
inline uint16_t to_half_bits(float f) {
  __fp16 h = __fp16(f);
  uint16_t bits;
  memcpy(&bits, &h, 2);
  return bits;
}

struct half {
  uint16_t bits;
  half() = default;
  half(float f) : bits(to_half_bits(f)) {}
  half(int i) : half(float(i)) {}
  half(uint u) : half(float(u)) {}
  operator float() const { return from_half_bits(bits); }
};
inline half operator+(half a, half b) { return half(float(a) + float(b)); }
inline half operator-(half a, half b) { return half(float(a) - float(b)); }
inline half operator*(half a, half b) { return half(float(a) * float(b)); }
inline half operator/(half a, half b) { return half(float(a) / float(b)); }
inline half operator-(half a) { half h; h.bits = a.bits ^ 0x8000; return h; }
inline bool operator<(half a, half b) { return float(a) < float(b); }
inline bool operator>(half a, half b) { return float(a) > float(b); }
inline bool operator<=(half a, half b) { return float(a) <= float(b); }
inline bool operator>=(half a, half b) { return float(a) >= float(b); }
inline bool operator==(half a, half b) { return float(a) == float(b); }
inline bool operator!=(half a, half b) { return float(a) != float(b); }
