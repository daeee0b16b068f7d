// Sixteen float lanes in two AVX2 registers, with FMA; `vec.hpp` includes this file.
#pragma once

namespace quire {

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
inline __m256 scaled(__m256 x, __m256 n) {  // in two steps, so that both factors stay in the range of float32
  n = _mm256_max_ps(_mm256_min_ps(n, _mm256_set1_ps(250.0f)), _mm256_set1_ps(-250.0f));
  const __m256 half = _mm256_floor_ps(_mm256_mul_ps(n, _mm256_set1_ps(0.5f)));
  return _mm256_mul_ps(_mm256_mul_ps(x, two_to(half)), two_to(_mm256_sub_ps(n, half)));
}
inline F16 scaled(F16 x, F16 n) { return {scaled(x.a, n.a), scaled(x.b, n.b)}; }  // x · 2^n for integer n
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

// lanes of `yes` where x > y, else of `no`, also where x or y is NaN
inline F16 where_above(F16 x, F16 y, F16 yes, F16 no) {
  return {_mm256_blendv_ps(no.a, yes.a, _mm256_cmp_ps(x.a, y.a, _CMP_GT_OQ)),
          _mm256_blendv_ps(no.b, yes.b, _mm256_cmp_ps(x.b, y.b, _CMP_GT_OQ))};
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
// x rounded to bfloat16, to nearest, ties to even, in the upper halves of lanes. NaN stays NaN.
inline __m256i rounded_bits(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  return _mm256_or_si256(up, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
inline __m256 rounded_to_bf16(__m256 x) {
  return _mm256_and_ps(_mm256_castsi256_ps(rounded_bits(x)), _mm256_castsi256_ps(_mm256_set1_epi32(-65536)));
}
inline F16 rounded_to_bf16(F16 x) { return {rounded_to_bf16(x.a), rounded_to_bf16(x.b)}; }
inline void store(bf16* p, F16 x) {
  const __m256i a = _mm256_srli_epi32(rounded_bits(x.a), 16), b = _mm256_srli_epi32(rounded_bits(x.b), 16);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(_mm256_packus_epi32(a, b), 0xd8));
}
inline F16 dot(F16 acc, U16 x, U16 y, float) {
  return {_mm256_fmadd_ps(_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(y.a), acc.a),
          _mm256_fmadd_ps(_mm256_castsi256_ps(x.b), _mm256_castsi256_ps(y.b), acc.b)};
}
// the bfloat16 I of each unit, widened
template <int I>
inline U16 widened(U16 x) {
  if constexpr (I == 0) return {_mm256_slli_epi32(x.a, 16), _mm256_slli_epi32(x.b, 16)};
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_and_si256(x.a, high), _mm256_and_si256(x.b, high)};
}
inline F16 dot(F16 acc, U16 x, U16 y, bf16) {
  return dot(dot(acc, widened<0>(x), widened<0>(y), float{}), widened<1>(x), widened<1>(y), float{});
}

}  // namespace quire
