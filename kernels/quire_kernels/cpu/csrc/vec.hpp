// Sixteen float lanes, and four-byte units of the types that matrices are stored in.
//
// A unit is what one lane multiplies at a time: one float32, or two neighbouring bfloat16. All kernels are
// written once over these; only this file knows which instructions there are.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace quire {

struct bf16 {
  uint16_t bits;
};

constexpr int LANES = 16;

#if defined(__AVX512F__)

struct F16 {
  __m512 v;
};
using U16 = __m512i;  // sixteen units

inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
inline void store(float* p, F16 x) { _mm512_storeu_ps(p, x.v); }
inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1); }
inline F16 load(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
inline void store(float* p, F16 x, int n) { _mm512_mask_storeu_ps(p, first(n), x.v); }
inline F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
// the second operand where the first is NaN
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F16 scaled(F16 x, F16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }  // x · 2^n, n whole
inline F16 scaled_by_floor(F16 x, F16 y) { return scaled(x, y); }          // x · 2^⌊y⌋
// x - ⌊x⌋ in two, which run beside products where one instruction for both does not
inline F16 fraction(F16 x) { return x - F16{_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
// 1 / x: to 14 bits, which do for a result that will be bfloat16; one step of Newton's doubles them
template <class T>
inline F16 reciprocal(F16 x) {
  const F16 y = {_mm512_rcp14_ps(x.v)};
  if constexpr (sizeof(T) == 2) return y;
  return {_mm512_mul_ps(y.v, _mm512_fnmadd_ps(x.v, y.v, _mm512_set1_ps(2.0f)))};
}
inline F16 abs(F16 a) { return {_mm512_abs_ps(a.v)}; }
inline F16 with_sign(F16 a, F16 s) {
  return {_mm512_castsi512_ps(_mm512_ternarylogic_epi32(_mm512_set1_epi32(INT32_MIN), _mm512_castps_si512(s.v),
                                                        _mm512_castps_si512(a.v), 0xca))};
}
// lanes from `from` up to (not with) `to` keep x, the others get y
inline F16 keep(F16 x, int from, int to, F16 y) {
  const __mmask16 m = static_cast<__mmask16>(((1u << to) - 1) & ~((1u << from) - 1));
  return {_mm512_mask_blend_ps(m, y.v, x.v)};
}
inline float sum(F16 a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(F16 a) { return _mm512_reduce_max_ps(a.v); }
inline bool any_above(F16 a, float x) { return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0; }

inline U16 load_units(const void* p) { return _mm512_loadu_si512(p); }
inline void store_units(void* p, U16 x) { _mm512_storeu_si512(p, x); }
inline U16 same_unit(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
inline void transpose(U16 (&x)[LANES]) {
  U16 pairs[LANES], fours[LANES];  // of rows, side by side
  for (int i = 0; i < LANES; i += 2) {
    pairs[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    pairs[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < LANES; i += 4)
    for (int j = 0; j < 2; j++) {
      fours[i + 2 * j] = _mm512_unpacklo_epi64(pairs[i + j], pairs[i + j + 2]);
      fours[i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[i + j], pairs[i + j + 2]);
    }
  for (int i = 0; i < 4; i++) {  // quarter q of fours[i + 4 g]: column 4 q + i of rows 4 g ... 4 g + 3
    const U16 even0 = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0x88), even1 = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0x88);
    const U16 odd0 = _mm512_shuffle_i32x4(fours[i], fours[i + 4], 0xdd), odd1 = _mm512_shuffle_i32x4(fours[i + 8], fours[i + 12], 0xdd);
    x[i] = _mm512_shuffle_i32x4(even0, even1, 0x88), x[i + 8] = _mm512_shuffle_i32x4(even0, even1, 0xdd);
    x[i + 4] = _mm512_shuffle_i32x4(odd0, odd1, 0x88), x[i + 12] = _mm512_shuffle_i32x4(odd0, odd1, 0xdd);
  }
}

inline F16 widen(__m256i x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16))}; }
inline F16 load(const bf16* p) { return widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }

#if defined(__AVX512BF16__)
inline __m256i narrow(F16 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)); }
inline F16 dot(F16 acc, U16 a, U16 b, bf16) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}
#else
inline __m256i narrow(F16 x) {  // round to nearest, ties to even; NaN stays NaN
  const __m512i bits = _mm512_castps_si512(x.v);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(x.v, x.v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_blend_epi32(nan, up, _mm512_set1_epi32(0x7fc00000)), 16));
}
inline F16 dot(F16 acc, U16 a, U16 b, bf16) {
  const __m512i high = _mm512_set1_epi32(static_cast<int>(0xffff0000));
  const __m512 a0 = _mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), b0 = _mm512_castsi512_ps(_mm512_slli_epi32(b, 16));
  const __m512 a1 = _mm512_castsi512_ps(_mm512_and_si512(a, high)), b1 = _mm512_castsi512_ps(_mm512_and_si512(b, high));
  return {_mm512_fmadd_ps(a1, b1, _mm512_fmadd_ps(a0, b0, acc.v))};
}
#endif
inline void store(bf16* p, F16 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
inline void store(bf16* p, F16 x, F16 y) {  // as one, which a load of both at once need not wait for
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y.v, x.v)));
#else
  _mm512_storeu_si512(p, _mm512_inserti64x4(_mm512_castsi256_si512(narrow(x)), narrow(y), 1));
#endif
}
inline F16 dot(F16 acc, U16 a, U16 b, float) {
  return {_mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc.v)};
}

#else  // AVX2 with FMA: two halves

struct F16 {
  __m256 a, b;
};
struct U16 {
  __m256i a, b;
};

inline F16 set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline F16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
inline void store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
inline F16 load(const float* p, int n) {
  float all[LANES] = {};
  std::memcpy(all, p, n * sizeof(float));
  return load(all);
}
inline void store(float* p, F16 x, int n) {
  float all[LANES];
  store(all, x);
  std::memcpy(p, all, n * sizeof(float));
}
inline F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
inline F16 fma(F16 x, F16 y, F16 z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline F16 max(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline F16 min(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline F16 round(F16 x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
inline __m256 two_to(__m256 n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline __m256 scaled(__m256 x, __m256 n) {  // in two steps, so that neither factor leaves float32
  n = _mm256_max_ps(_mm256_min_ps(n, _mm256_set1_ps(250.0f)), _mm256_set1_ps(-250.0f));
  const __m256 half = _mm256_floor_ps(_mm256_mul_ps(n, _mm256_set1_ps(0.5f)));
  return _mm256_mul_ps(_mm256_mul_ps(x, two_to(half)), two_to(_mm256_sub_ps(n, half)));
}
inline F16 scaled(F16 x, F16 n) { return {scaled(x.a, n.a), scaled(x.b, n.b)}; }  // x · 2^n, n whole
inline F16 floor(F16 x) { return {_mm256_floor_ps(x.a), _mm256_floor_ps(x.b)}; }
inline F16 scaled_by_floor(F16 x, F16 y) { return scaled(x, floor(y)); }  // x · 2^⌊y⌋
inline F16 fraction(F16 x) { return x - floor(x); }
template <class T>
inline F16 reciprocal(F16 x) {
  return set1(1.0f) / x;
}
inline F16 abs(F16 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline F16 with_sign(F16 x, F16 s) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_or_ps(_mm256_andnot_ps(sign, x.a), _mm256_and_ps(sign, s.a)),
          _mm256_or_ps(_mm256_andnot_ps(sign, x.b), _mm256_and_ps(sign, s.b))};
}
inline F16 keep(F16 x, int from, int to, F16 y) {
  float some[LANES], all[LANES];
  store(some, x);
  store(all, y);
  for (int i = from; i < to; i++) all[i] = some[i];
  return load(all);
}
inline float sum(F16 x) {
  const __m256 s = _mm256_add_ps(x.a, x.b);
  __m128 h = _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  h = _mm_add_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_add_ss(h, _mm_shuffle_ps(h, h, 1)));
}
inline float largest(F16 x) {
  const __m256 s = _mm256_max_ps(x.a, x.b);
  __m128 h = _mm_max_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1));
  h = _mm_max_ps(h, _mm_movehl_ps(h, h));
  return _mm_cvtss_f32(_mm_max_ss(h, _mm_shuffle_ps(h, h, 1)));
}

inline bool any_above(F16 x, float y) { return _mm256_movemask_ps(_mm256_cmp_ps(_mm256_max_ps(x.a, x.b), _mm256_set1_ps(y), _CMP_GT_OQ)) != 0; }

inline U16 load_units(const void* p) {
  const __m256i* q = static_cast<const __m256i*>(p);
  return {_mm256_loadu_si256(q), _mm256_loadu_si256(q + 1)};
}
inline void store_units(void* p, U16 x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}
inline U16 same_unit(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
inline __m256 widen(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
inline F16 load(const bf16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {widen(_mm_loadu_si128(q)), widen(_mm_loadu_si128(q + 1))};
}
inline __m128i narrow(__m256 x) {  // round to nearest, ties to even; NaN stays NaN
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  up = _mm256_srli_epi32(_mm256_blendv_epi8(up, _mm256_set1_epi32(0x7fc00000), nan), 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(up), _mm256_extracti128_si256(up, 1));
}
inline void store(bf16* p, F16 x) {
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, narrow(x.a));
  _mm_storeu_si128(q + 1, narrow(x.b));
}
inline void store(bf16* p, F16 x, F16 y) {
  store(p, x);
  store(p + LANES, y);
}
inline F16 dot(F16 acc, U16 x, U16 y, float) {
  return {_mm256_fmadd_ps(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(y.a), acc.a),
          _mm256_fmadd_ps(_mm256_castsi256_ps(x.b), _mm256_castsi256_ps(y.b), acc.b)};
}
inline __m256 dot_half(__m256 acc, __m256i x, __m256i y) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  const __m256 x0 = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16)), y0 = _mm256_castsi256_ps(_mm256_slli_epi32(y, 16));
  const __m256 x1 = _mm256_castsi256_ps(_mm256_and_si256(x, high)), y1 = _mm256_castsi256_ps(_mm256_and_si256(y, high));
  return _mm256_fmadd_ps(x1, y1, _mm256_fmadd_ps(x0, y0, acc));
}
inline F16 dot(F16 acc, U16 x, U16 y, bf16) { return {dot_half(acc.a, x.a, y.a), dot_half(acc.b, x.b, y.b)}; }

#endif

// as if it had been stored and loaded
template <class T>
inline F16 rounded(F16 x) {
  return x;
}
#if defined(__AVX512F__)
template <>
inline F16 rounded<bf16>(F16 x) {
  return widen(narrow(x));
}
#else
template <>
inline F16 rounded<bf16>(F16 x) {
  return {widen(narrow(x.a)), widen(narrow(x.b))};
}
#endif

inline F16 zero() { return set1(0.0f); }
inline void store(float* p, F16 x, F16 y) {
  store(p, x);
  store(p + LANES, y);
}

inline F16 load(const bf16* p, int n) {
  bf16 all[LANES] = {};
  std::memcpy(all, p, n * sizeof(bf16));
  return load(all);
}
inline void store(bf16* p, F16 x, int n) {
  bf16 all[LANES];
  store(all, x);
  std::memcpy(p, all, n * sizeof(bf16));
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

// 2 to the x: 2^n · 2^r. Zero far below -126; x may be any finite number below 127. For float32 |r| ≤ 1/2 and 2^r is its
// Taylor series to the 6th power (error below 2e-7). For a result that will be bfloat16, 0 ≤ r < 1 and 2^r is the cubic
// with the smallest relative error (7.5e-5).
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

// e to the x, with r in the natural base so that no digit is lost: n · ln 2 is taken off in two parts. Infinite above 88;
// at least e^-87, the last whole power that float32 holds in full: the processor takes 150 times as long for less.
inline F16 exp(F16 x) {
  const F16 y = max(min(x, set1(89.0f)), set1(-87.0f));
  const F16 n = round(y * set1(LOG2_E));
  const F16 r = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), y));
  F16 p = set1(1.0f / 720);
  for (float c : {1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = fma(p, r, set1(c));
  return scaled(p, n);
}

}  // namespace quire
