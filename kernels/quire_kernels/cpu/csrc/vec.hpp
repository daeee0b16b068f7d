// Sixteen float lanes, and four-byte units of the types that matrices are stored in.
//
// A unit is what one lane multiplies at a time: one float32, or two neighboring bfloat16. All kernels are
// written once with these; `vec_avx512.hpp`, `vec_avx2.hpp` and `arm/vec.hpp` implement them.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <type_traits>

#include "machine.hpp"

namespace quire {

struct bf16 {
  uint16_t bits;
};

constexpr int LANES = 16;

}  // namespace quire

#if defined(__aarch64__)
#include "arm/vec.hpp"
#elif defined(__AVX512F__)
#include "vec_avx512.hpp"
#else
#include "vec_avx2.hpp"
#endif

namespace quire {

// x rounded to T, as by a store and a load
template <class T>
inline F16 rounded(F16 x) {
  if constexpr (std::is_same_v<T, bf16>) return rounded_to_bf16(x);
  return x;
}

inline F16 zero() { return set1(0.0f); }
template <class T>
inline void store(T* p, F16 x, F16 y) {
  store(p, x);
  store(p + LANES, y);
}
// The first n elements; loads set the others to zero.
template <class T>
inline F16 load(const T* p, int n) {
  T all[LANES] = {};
  std::memcpy(all, p, n * sizeof(T));
  return load(all);
}
template <class T>
inline void store(T* p, F16 x, int n) {
  T all[LANES];
  store(all, x);
  std::memcpy(p, all, n * sizeof(T));
}

inline float to_float(float x) { return x; }
inline float to_float(bf16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}
inline void put(float* p, float x) { *p = x; }
inline void put(bf16* p, float x) { store(p, set1(x), 1); }

template <class T>
constexpr int PER_UNIT = 4 / sizeof(T);

// The type in which tiles of several rows take rows of T. Without instructions that multiply bfloat16, rows are widened
// once for all that they are multiplied with, and units of weights, keys and values in registers.
#if defined(__AVX2__) && !defined(__AVX512BF16__)
template <class T>
using RowElement = float;
#else
template <class T>
using RowElement = T;
#endif

// Units of RowElement that a unit of T is widened to.
template <class T>
constexpr int FACTORS = PER_UNIT<T> / PER_UNIT<RowElement<T>>;

// Unit i of them. Loops over i are unrolled. (With a lambda and a constant i in their place, g++ moves sums between
// registers, or keeps some in memory.)
template <class T>
inline U16 factor(U16 unit, int i) {
  if constexpr (FACTORS<T> > 1) return i ? widened<1>(unit) : widened<0>(unit);
  return unit;
}

// 2 to the x, as 2^n · 2^r. 0 far below -126; x may be any finite number below 127. For float32, |r| ≤ 1/2 and 2^r
// is its Taylor series to the 6th power (error below 2e-7). For a result that is stored as bfloat16, 0 ≤ r < 1 and
// 2^r is the cubic polynomial with the smallest relative error (7.5e-5).
template <class T>
inline F16 exp2(F16 x) {
  if constexpr (sizeof(T) == 2) {
    const F16 r = fraction(x);
    F16 p = set1(7.802452e-2f);
    for (float c : {2.2606716e-1f, 6.9583354e-1f, 9.9992522e-1f}) p = fma(p, r, set1(c));
    return scaled_by_floor(p, x);
  }
  const F16 n = round(x), r = x - n;
  F16 p = fma(fma(set1(1.5403530e-4f), r, set1(1.3333558e-3f)), r, set1(9.6181291e-3f));
  for (float c : {5.5504109e-2f, 2.4022651e-1f, 6.9314718e-1f, 1.0f}) p = fma(p, r, set1(c));
  return scaled(p, n);
}

constexpr float LOG2_E = 1.44269504f;

// e to the x, with r in the natural base so that no digit is lost: n · ln 2 is subtracted in two parts. Infinite
// above 88; at least e^-87, the last integer power that is a normal float32: subnormal results take the processor
// 150 times as long.
inline F16 exp(F16 x) {
  const F16 y = max(min(x, set1(89.0f)), set1(-87.0f));
  const F16 n = round(y * set1(LOG2_E));
  const F16 r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), y));
  F16 p = set1(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, set1(c));
  return scaled(p, n);
}

}  // namespace quire
