// Sixteen float lanes in one AVX-512 register; `vec.hpp` includes this file.
#pragma once

namespace quire {

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
// returns the second operand if one is NaN
inline F16 max(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
inline F16 min(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
inline F16 scaled(F16 x, F16 n) { return {_mm512_scalef_ps(x.v, n.v)}; }  // x · 2^n for integer n
inline F16 scaled_by_floor(F16 x, F16 y) { return scaled(x, y); }          // x · 2^⌊y⌋
// x - ⌊x⌋. By two instructions on CPUs where products are vector instructions: they run in parallel with these, the single
// one does not.
inline F16 fraction(F16 x) {
#if defined(__AMX_TILE__)
  return {_mm512_reduce_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#else
  return x - F16{_mm512_roundscale_ps(x.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#endif
}
// 1 / x to 14 bits, which suffice for a result stored as bfloat16; one Newton step doubles the bits
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
// lanes from … to-1 of x, the others of y
inline F16 keep(F16 x, int from, int to, F16 y) {
  const __mmask16 m = static_cast<__mmask16>(((1u << to) - 1) & ~((1u << from) - 1));
  return {_mm512_mask_blend_ps(m, y.v, x.v)};
}
inline float sum(F16 a) { return _mm512_reduce_add_ps(a.v); }
inline float largest(F16 a) { return _mm512_reduce_max_ps(a.v); }
// lanes of `yes` where a > b, else of `no`, also where a or b is NaN
inline F16 where_above(F16 a, F16 b, F16 yes, F16 no) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ), no.v, yes.v)};
}
inline bool any_above(F16 a, float x) { return _mm512_cmp_ps_mask(a.v, _mm512_set1_ps(x), _CMP_GT_OQ) != 0; }

inline U16 load_units(const void* p) { return _mm512_loadu_si512(p); }
inline void store_units(void* p, U16 x) { _mm512_storeu_si512(p, x); }
inline U16 same_unit(const void* p) {
  int32_t x;
  std::memcpy(&x, p, 4);
  return _mm512_set1_epi32(x);
}
inline void transpose(U16 (&x)[LANES]) {
  U16 pairs[LANES], fours[LANES];  // of rows, interleaved
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

inline F16 dot(F16 acc, U16 a, U16 b, float) {
  return {_mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), acc.v)};
}

// the bfloat16 I of each unit, widened
template <int I>
inline U16 widened(U16 x) {
  return I == 0 ? _mm512_slli_epi32(x, 16) : _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000)));
}

#if defined(__AVX512BF16__)
inline __m256i narrow(F16 x) { return reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x.v)); }
inline F16 rounded_to_bf16(F16 x) { return widen(narrow(x)); }
inline F16 dot(F16 acc, U16 a, U16 b, bf16) {
  return {_mm512_dpbf16_ps(acc.v, reinterpret_cast<__m512bh>(a), reinterpret_cast<__m512bh>(b))};
}
#else
// x rounded to bfloat16, to nearest, ties to even, in the upper halves of lanes. NaN becomes a quiet NaN.
inline __m512i rounded_bits(F16 x) {
  const __m512i bits = _mm512_castps_si512(x.v), below_half = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
  const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
  const __m512i up = _mm512_mask_sub_epi32(below_half, odd, below_half, _mm512_set1_epi32(-1));
  // four bits for each kind of number, NaNs first: 2 for a quiet NaN of x, 0 for the first operand
  return _mm512_castps_si512(_mm512_fixupimm_ps(_mm512_castsi512_ps(up), x.v, _mm512_set1_epi32(0x22), 0));
}
inline F16 rounded_to_bf16(F16 x) { return {_mm512_castsi512_ps(widened<1>(rounded_bits(x)))}; }
inline __m256i narrow(F16 x) { return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded_bits(x), 16)); }
inline F16 dot(F16 acc, U16 a, U16 b, bf16) {
  return dot(dot(acc, widened<0>(a), widened<0>(b), float{}), widened<1>(a), widened<1>(b), float{});
}
#endif
inline void store(bf16* p, F16 x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(x)); }
inline void store(bf16* p, F16 x, F16 y) {  // as one store, so that a load of both need not wait
#if defined(__AVX512BF16__)
  _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(y.v, x.v)));
#else
  const __m512i both = _mm512_packus_epi32(_mm512_srli_epi32(rounded_bits(x), 16), _mm512_srli_epi32(rounded_bits(y), 16));
  alignas(64) static constexpr int64_t IN_ORDER[] = {0, 2, 4, 6, 1, 3, 5, 7};
  _mm512_storeu_si512(p, _mm512_permutexvar_epi64(_mm512_loadu_si512(IN_ORDER), both));
#endif
}

}  // namespace quire
