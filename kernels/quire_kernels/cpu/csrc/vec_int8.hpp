// Vectors of signed bytes: conversion from and to sixteen float lanes, and exact sums of their products.
//
// `dot_bytes` adds the dot products of four bytes of w with four signed bytes of x to each sum. Bytes of w are stored
// plus BYTE_BIAS: instructions of AVX-512-VNNI and AVX-VNNI multiply unsigned by signed bytes, and those of AVX-512 and
// AVX2 also would, but pairs of such products do not fit their 16 bits.
#pragma once
#include "vec.hpp"

#if defined(__aarch64__)
#include "arm/vec_bytes.hpp"
#endif

namespace quire {

#if defined(__AVX512F__)

#if defined(__AVX512VNNI__)
constexpr int32_t BYTE_BIAS = 128;
#else
constexpr int32_t BYTE_BIAS = 0;
#endif

using S16 = __m512i;  // sixteen 32-bit sums

inline S16 no_sums() { return _mm512_setzero_si512(); }
inline void store(int32_t* p, S16 x) { _mm512_storeu_si512(p, x); }
inline S16 added(S16 a, S16 b) { return _mm512_add_epi32(a, b); }
inline int32_t sum(S16 a) { return _mm512_reduce_add_epi32(a); }
inline F16 to_floats(const int32_t* p, int32_t less) {
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_loadu_si512(p), _mm512_set1_epi32(less)))};
}
// x must be integers from -127 to 127 after rounding (ties to even)
inline void store_bytes(int8_t* p, F16 x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(x.v)));
}
inline F16 load_bytes(const int8_t* p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}

#if defined(__AVX512VNNI__)
inline S16 same_sums(int32_t x) { return _mm512_set1_epi32(x); }
inline F16 to_floats(S16 x) { return {_mm512_cvtepi32_ps(x)}; }
// signed bytes plus 128: unsigned bytes
inline U16 raised(U16 x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }
// Converts sixteen groups of four bytes: the first two of each group go to `first`, the others to `second`.
inline void widen_fours(const int8_t* p, bf16* first, bf16* second) {
  const __m512i x = _mm512_loadu_si512(p), high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const auto bits = [&](__m512i at_top) {  // integers below 128 fit the significand of bfloat16
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_srai_epi32(at_top, 24)));
  };
  const auto both = [&](__m512i a, __m512i b) {
    return _mm512_or_si512(_mm512_srli_epi32(bits(a), 16), _mm512_and_si512(bits(b), high));
  };
  _mm512_storeu_si512(first, both(_mm512_slli_epi32(x, 24), _mm512_slli_epi32(x, 16)));
  _mm512_storeu_si512(second, both(_mm512_slli_epi32(x, 8), x));
}
// Splits 16-bit integers into bytes: x = 256 · high + low. low is unsigned (up = 0) or signed (up = 128).
inline void store_halves(F16 x, int32_t up, void* high, void* low) {
  const __m512i n = _mm512_cvtps_epi32(x.v);
  const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(n, _mm512_set1_epi32(up)), 8);
  _mm_storeu_si128(static_cast<__m128i*>(high), _mm512_cvtepi32_epi8(above));
  _mm_storeu_si128(static_cast<__m128i*>(low), _mm512_cvtepi32_epi8(n));
}
inline S16 dot_bytes(S16 sums, U16 w, U16 x) { return _mm512_dpbusd_epi32(sums, w, x); }
#else
inline S16 dot_bytes(S16 sums, U16 w, U16 x) {  // |w| · (x with the sign of w): pairs fit 16 bits
  const __m512i signed_x = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
  const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), signed_x);
  return _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
}
#endif

#elif defined(__AVX2__)  // two halves

#if defined(__AVXVNNI__)
constexpr int32_t BYTE_BIAS = 128;
#else
constexpr int32_t BYTE_BIAS = 0;
#endif

struct S16 {
  __m256i a, b;
};

inline S16 no_sums() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline void store(int32_t* p, S16 x) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), x.b);
}
inline S16 added(S16 x, S16 y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline int32_t sum(S16 x) {
  alignas(32) int32_t lanes[LANES];
  store(lanes, x);
  int32_t total = 0;
  for (int32_t lane : lanes) total += lane;
  return total;
}
inline F16 to_floats(const int32_t* p, int32_t less) {
  const __m256i l = _mm256_set1_epi32(less);
  const __m256i *q = reinterpret_cast<const __m256i*>(p);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(q), l)),
          _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_loadu_si256(q + 1), l))};
}
inline void store_bytes(int8_t* p, F16 x) {
  const __m256i halves = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));  // 0 8 | 4 12, in fours
  const __m256i whole = _mm256_permute4x64_epi64(halves, 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                   _mm_packs_epi16(_mm256_castsi256_si128(whole), _mm256_extracti128_si256(whole, 1)));
}
inline F16 load_bytes(const int8_t* p) {
  const __m128i x = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
// Keeps the compiler from summing products in a tree, for which it would need more registers than there are.
inline __m256i in_order(__m256i sums) {
  asm("" : "+x"(sums));
  return sums;
}
#if defined(__AVXVNNI__)
inline __m256i dot_bytes_half(__m256i sums, __m256i w, __m256i x) { return _mm256_dpbusd_avx_epi32(sums, w, x); }
#else
inline __m256i dot_bytes_half(__m256i sums, __m256i w, __m256i x) {  // |w| · (x with the sign of w): pairs fit 16 bits
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
  return in_order(_mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
}
#endif
inline S16 dot_bytes(S16 sums, U16 w, U16 x) {
  return {dot_bytes_half(sums.a, w.a, x.a), dot_bytes_half(sums.b, w.b, x.b)};
}

#endif

inline uint8_t stored_byte(int32_t value) { return static_cast<uint8_t>(value + BYTE_BIAS); }
inline int32_t byte_value(uint8_t stored) { return BYTE_BIAS ? stored - BYTE_BIAS : static_cast<int8_t>(stored); }

// n ≤ 16 values, converted as by `store_bytes` above
inline void store_bytes(int8_t* p, F16 x, int n) {
  int8_t all[LANES];
  store_bytes(all, x);
  std::memcpy(p, all, n);
}

constexpr float MIN_ABS = 1e-30f;  // a vector of smaller values is stored as zeros, so that no quotient leaves float32

// Quantization of a vector: x = scale · byte, with the largest element 127. scale is NaN if an element is not
// finite.
struct QuantScale {
  float scale, inverse;
};

inline QuantScale steps(float most, bool finite) {
  if (!finite) return {NAN, 0.0f};
  return most < MIN_ABS ? QuantScale{0.0f, 0.0f} : QuantScale{most / 127.0f, 127.0f / most};
}

template <class T>
inline QuantScale quant_scale_of(const T* x, int64_t count) {
  F16 most = zero(), nothing = zero();
  int64_t i = 0;
  const auto look = [&](F16 v) {
    most = max(most, abs(v));
    nothing = fma(v, zero(), nothing);  // 0 · ∞ and 0 · NaN are NaN
  };
  for (; i + LANES <= count; i += LANES) look(load(x + i));
  if (i < count) look(load(x + i, static_cast<int>(count - i)));
  return steps(largest(most), sum(nothing) == 0.0f);
}

template <class T>
inline void to_bytes(const T* x, int64_t count, float inverse, int8_t* to) {
  const F16 by = set1(inverse);
  int64_t i = 0;
  for (; i + LANES <= count; i += LANES) store_bytes(to + i, load(x + i) * by);
  if (i < count) store_bytes(to + i, load(x + i, static_cast<int>(count - i)) * by, static_cast<int>(count - i));
}

}  // namespace quire
