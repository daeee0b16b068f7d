// Sixteen float lanes in registers of NEON or SVE; `vec.hpp` includes this file.
#pragma once
#if defined(__ARM_FEATURE_SVE_BITS) && __ARM_FEATURE_SVE_BITS > 128
#include "arm/sve.hpp"
#else
#include "arm/neon.hpp"
#endif

namespace quire {

constexpr int PARTS = LANES / WIDTH;

struct F16 {
  Floats v[PARTS];
};
struct U16 {
  Words v[PARTS];
};
struct S16 {  // sixteen 32-bit sums
  Ints v[PARTS];
};

// Vectors whose part p is make(p).
template <class Vector, class Make>
inline Vector each_part(Make make) {
  if constexpr (PARTS == 4) return {{make(0), make(1), make(2), make(3)}};
  else if constexpr (PARTS == 2) return {{make(0), make(1)}};
  else return {{make(0)}};
}
template <class Vector, class Use>
inline void with_parts(const Vector& x, Use use) {
  use(0, x.v[0]);
  if constexpr (PARTS > 1) use(1, x.v[1]);
  if constexpr (PARTS > 2) use(2, x.v[2]), use(3, x.v[3]);
}

inline F16 set1(float x) {
  return each_part<F16>([&](int) { return same(x); });
}
inline F16 load(const float* p) {
  return each_part<F16>([&](int i) { return load_floats(p + i * WIDTH); });
}
inline void store(float* p, F16 x) {
  with_parts(x, [&](int i, Floats part) { store_floats(p + i * WIDTH, part); });
}
inline F16 operator+(F16 x, F16 y) {
  return each_part<F16>([&](int i) { return x.v[i] + y.v[i]; });
}
inline F16 operator-(F16 x, F16 y) {
  return each_part<F16>([&](int i) { return x.v[i] - y.v[i]; });
}
inline F16 operator*(F16 x, F16 y) {
  return each_part<F16>([&](int i) { return x.v[i] * y.v[i]; });
}
inline F16 operator/(F16 x, F16 y) {
  return each_part<F16>([&](int i) { return x.v[i] / y.v[i]; });
}
inline F16 fma(F16 x, F16 y, F16 z) {
  return each_part<F16>([&](int i) { return fused(x.v[i], y.v[i], z.v[i]); });
}
// lanes of `yes` where x > y, else of `no`, also where x or y is NaN
inline F16 where_above(F16 x, F16 y, F16 yes, F16 no) {
  return each_part<F16>([&](int i) { return x.v[i] > y.v[i] ? yes.v[i] : no.v[i]; });
}
inline bool any_above(F16 x, float y) {
  uint32_t found = 0;
  for (const Floats& part : x.v) found |= sum_of(reinterpret_cast<Words>(part > y) & 1);
  return found != 0;
}
inline F16 max(F16 x, F16 y) { return where_above(x, y, x, y); }  // y if one is NaN
inline F16 min(F16 x, F16 y) { return where_above(y, x, x, y); }
inline F16 round(F16 x) {
  return each_part<F16>([&](int i) { return nearest(x.v[i]); });
}
inline F16 floor(F16 x) {
  return each_part<F16>([&](int i) { return rounded_down(x.v[i]); });
}
inline Floats two_to(Floats n) { return reinterpret_cast<Floats>((nearest_ints(n) + 127) << 23); }
inline F16 scaled(F16 x, F16 n) {  // x · 2^n for integer n, in two steps: both factors stay in the range of float32
  n = max(min(n, set1(250.0f)), set1(-250.0f));
  const F16 half = floor(n * set1(0.5f));
  return each_part<F16>([&](int i) { return x.v[i] * two_to(half.v[i]) * two_to(n.v[i] - half.v[i]); });
}
inline F16 scaled_by_floor(F16 x, F16 y) { return scaled(x, floor(y)); }  // x · 2^⌊y⌋
inline F16 fraction(F16 x) { return x - floor(x); }
template <class T>
inline F16 reciprocal(F16 x) {
  return set1(1.0f) / x;
}

inline U16 bits_of(F16 x) {
  return each_part<U16>([&](int i) { return reinterpret_cast<Words>(x.v[i]); });
}
inline F16 floats_of(U16 x) {
  return each_part<F16>([&](int i) { return reinterpret_cast<Floats>(x.v[i]); });
}
constexpr uint32_t SIGN = 0x80000000;
inline F16 abs(F16 x) {
  return each_part<F16>([&](int i) { return reinterpret_cast<Floats>(reinterpret_cast<Words>(x.v[i]) & ~SIGN); });
}
inline F16 with_sign(F16 x, F16 s) {
  const U16 a = bits_of(x), b = bits_of(s);
  return each_part<F16>([&](int i) { return reinterpret_cast<Floats>((a.v[i] & ~SIGN) | (b.v[i] & SIGN)); });
}
// lanes from … to-1 of x, the others of y
inline F16 keep(F16 x, int from, int to, F16 y) {
  return each_part<F16>([&](int i) {
    const Ints lane = lane_numbers() + i * WIDTH;
    return ((lane >= from) & (lane < to)) ? x.v[i] : y.v[i];
  });
}
inline float sum(F16 x) {
  if constexpr (PARTS == 4) return sum_of((x.v[0] + x.v[1]) + (x.v[2] + x.v[3]));
  else if constexpr (PARTS == 2) return sum_of(x.v[0] + x.v[1]);
  else return sum_of(x.v[0]);
}
inline float largest(F16 x) {
  float most = -INFINITY;
  with_parts(x, [&](int, Floats part) { most = std::fmax(most, largest_of(part)); });
  return most;
}

inline U16 load_units(const void* p) {
  return each_part<U16>([&](int i) { return load_words(static_cast<const uint8_t*>(p) + i * WIDTH * 4); });
}
inline void store_units(void* p, U16 x) {
  with_parts(x, [&](int i, Words part) { store_words(static_cast<uint8_t*>(p) + i * WIDTH * 4, part); });
}
inline U16 same_unit(const void* p) {
  uint32_t x;
  std::memcpy(&x, p, 4);
  return each_part<U16>([&](int) { return same(x); });
}

#if !defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
constexpr uint32_t UPPER_HALF = 0xffff0000;
inline Words bf16_bits(Floats x) {  // round to nearest, ties to even; NaN stays NaN
  const Words bits = reinterpret_cast<Words>(x), up = (bits + ((bits >> 16 & 1) + 0x7fff)) >> 16;
  return x == x ? up : same(uint32_t{0x7fc0});
}
inline Floats dot_bf16(Floats sums, Words x, Words y) {
  const auto even = [](Words units) { return reinterpret_cast<Floats>(units << 16); };
  const auto odd = [](Words units) { return reinterpret_cast<Floats>(units & UPPER_HALF); };
  return fused(odd(x), odd(y), fused(even(x), even(y), sums));
}
#endif
inline F16 load(const bf16* p) {
  const uint16_t* bits = reinterpret_cast<const uint16_t*>(p);
  return each_part<F16>([&](int i) { return reinterpret_cast<Floats>(load_shorts(bits + i * WIDTH) << 16); });
}
inline void store(bf16* p, F16 x) {
  uint16_t* bits = reinterpret_cast<uint16_t*>(p);
  with_parts(x, [&](int i, Floats part) { store_shorts(bits + i * WIDTH, bf16_bits(part)); });
}
inline F16 rounded_to_bf16(F16 x) {
  return each_part<F16>([&](int i) { return reinterpret_cast<Floats>(bf16_bits(x.v[i]) << 16); });
}
// the bfloat16 I of each unit, widened
template <int I>
inline U16 widened(U16 x) {
  return each_part<U16>([&](int i) { return I == 0 ? x.v[i] << 16 : x.v[i] & 0xffff0000; });
}
inline F16 dot(F16 sums, U16 x, U16 y, float) { return fma(floats_of(x), floats_of(y), sums); }
inline F16 dot(F16 sums, U16 x, U16 y, bf16) {
  return each_part<F16>([&](int i) { return dot_bf16(sums.v[i], x.v[i], y.v[i]); });
}

}  // namespace quire
