// Vectors of codes of few bits: their fields, exact sums of their products with bytes, and their values as floats.
//
// Codes are unsigned, of at most six bits; bytes are the values themselves, plus BYTE_BIAS. A sum of products begins
// with a number that depends on x alone (`code_start`, `byte_start`) and stands for the zero of the codes, or for the
// bias.
#pragma once
#include "vec_int8.hpp"

namespace quire {

#if defined(__x86_64__)
// Sums over x[i], i % 4 < 2, in the lower 16 bits, and over the other x[i] in the upper ones. columns: 16 or 32.
inline int32_t pair_sums(const int8_t* x, int64_t columns) {
  const __m128i one = _mm_set1_epi8(1);
  const __m128i* from = reinterpret_cast<const __m128i*>(x);
  __m128i sums = _mm_maddubs_epi16(one, _mm_loadu_si128(from));
  if (columns == 32) sums = _mm_add_epi16(sums, _mm_maddubs_epi16(one, _mm_loadu_si128(from + 1)));
  sums = _mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi16(sums, _mm_shuffle_epi32(sums, 0xb1)));
}
#endif
inline int32_t sum_of_pair(int32_t pair) { return static_cast<int16_t>(pair) + (pair >> 16); }

#if defined(__AVX512F__)

inline U16 masked(U16 x, int mask) { return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask))); }
inline U16 merged(U16 a, U16 b) { return _mm512_or_si512(a, b); }
// 16-bit numbers times 2^N
template <int N>
inline U16 shifted(U16 x) {
  if constexpr (N > 0) return _mm512_slli_epi16(x, N);
  if constexpr (N < 0) return _mm512_srli_epi16(x, -N);
  return x;
}
inline U16 byte_table(const uint8_t* sixteen) {
  return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
}
inline U16 looked_up(U16 table, U16 codes) { return _mm512_shuffle_epi8(table, codes); }

inline S16 starting(int32_t x) { return _mm512_set1_epi32(x); }
#if defined(__AVX512VNNI__)
inline S16 dot_codes(S16 sums, U16 w, U16 x) { return _mm512_dpbusd_epi32(sums, w, x); }
inline S16 whole_sums(S16 sums) { return sums; }
#else
inline S16 dot_codes(S16 sums, U16 w, U16 x) { return _mm512_add_epi16(sums, _mm512_maddubs_epi16(w, x)); }
inline S16 whole_sums(S16 sums) { return _mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
#endif
inline F16 as_floats(S16 x) { return {_mm512_cvtepi32_ps(x)}; }

inline F16 load_halves(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Byte J of each unit.
template <int J>
inline F16 float_codes(U16 w) {
  return {_mm512_cvtepi32_ps(_mm512_and_si512(_mm512_srli_epi32(w, 8 * J), _mm512_set1_epi32(255)))};
}
struct FloatTable {
  __m512 all;
  explicit FloatTable(const float* sixteen) : all(_mm512_loadu_ps(sixteen)) {}
  template <int J>
  F16 of(U16 w) const {  // by the lower four bits of byte J
    return {_mm512_permutexvar_ps(_mm512_srli_epi32(w, 8 * J), all)};
  }
};
// Float8 (e4m3) divided by 256, from bytes in the order of `float8_place`: as halves of one exponent bit more.
inline void float8_values(U16 w, F16 (&to)[4]) {
  const __m512i keep = _mm512_set1_epi16(static_cast<int16_t>(0xbf80));
  const __m512i even = _mm512_and_si512(_mm512_srai_epi16(_mm512_slli_epi16(w, 8), 1), keep);
  const __m512i odd = _mm512_and_si512(_mm512_srai_epi16(w, 1), keep);
  to[0] = {_mm512_cvtph_ps(_mm512_castsi512_si256(even))}, to[2] = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(even, 1))};
  to[1] = {_mm512_cvtph_ps(_mm512_castsi512_si256(odd))}, to[3] = {_mm512_cvtph_ps(_mm512_extracti64x4_epi64(odd, 1))};
}

#elif defined(__AVX2__)  // two halves

inline U16 masked(U16 x, int mask) {
  const __m256i m = _mm256_set1_epi8(static_cast<char>(mask));
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
inline U16 merged(U16 x, U16 y) { return {_mm256_or_si256(x.a, y.a), _mm256_or_si256(x.b, y.b)}; }
template <int N>
inline U16 shifted(U16 x) {
  if constexpr (N > 0) return {_mm256_slli_epi16(x.a, N), _mm256_slli_epi16(x.b, N)};
  if constexpr (N < 0) return {_mm256_srli_epi16(x.a, -N), _mm256_srli_epi16(x.b, -N)};
  return x;
}
inline U16 byte_table(const uint8_t* sixteen) {
  const __m256i all = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(sixteen)));
  return {all, all};
}
inline U16 looked_up(U16 table, U16 codes) {
  return {_mm256_shuffle_epi8(table.a, codes.a), _mm256_shuffle_epi8(table.b, codes.b)};
}

inline S16 starting(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
#if defined(__AVXVNNI__)
inline S16 dot_codes(S16 sums, U16 w, U16 x) { return dot_bytes(sums, w, x); }
inline S16 whole_sums(S16 sums) { return sums; }
#else
inline S16 dot_codes(S16 sums, U16 w, U16 x) {
  return {in_order(_mm256_add_epi16(sums.a, _mm256_maddubs_epi16(w.a, x.a))),
          in_order(_mm256_add_epi16(sums.b, _mm256_maddubs_epi16(w.b, x.b)))};
}
inline S16 whole_sums(S16 sums) {
  const __m256i one = _mm256_set1_epi16(1);
  return {_mm256_madd_epi16(sums.a, one), _mm256_madd_epi16(sums.b, one)};
}
#endif
inline F16 as_floats(S16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }

inline F16 load_halves(const uint16_t* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
template <int J>
inline F16 float_codes(U16 w) {
  const __m256i low = _mm256_set1_epi32(255);
  return {_mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w.a, 8 * J), low)),
          _mm256_cvtepi32_ps(_mm256_and_si256(_mm256_srli_epi32(w.b, 8 * J), low))};
}
struct FloatTable {
  __m256 lower, upper;
  explicit FloatTable(const float* sixteen) : lower(_mm256_loadu_ps(sixteen)), upper(_mm256_loadu_ps(sixteen + 8)) {}
  template <int J>
  F16 of(U16 w) const {
    const auto half = [&](__m256i units) {
      const __m256i code = _mm256_srli_epi32(units, 8 * J);
      const __m256 in_upper = _mm256_castsi256_ps(_mm256_slli_epi32(units, 28 - 8 * J));  // the sign is bit 3 of the code
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(lower, code), _mm256_permutevar8x32_ps(upper, code), in_upper);
    };
    return {half(w.a), half(w.b)};
  }
};
inline void float8_values(U16 w, F16 (&to)[4]) {
  const __m256i keep = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
  const auto halves = [](__m256i x) {
    return F16{_mm256_cvtph_ps(_mm256_castsi256_si128(x)), _mm256_cvtph_ps(_mm256_extracti128_si256(x, 1))};
  };
  const auto even = [&](__m256i x) { return _mm256_and_si256(_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 1), keep); };
  const auto odd = [&](__m256i x) { return _mm256_and_si256(_mm256_srai_epi16(x, 1), keep); };
  to[0] = halves(even(w.a)), to[1] = halves(odd(w.a)), to[2] = halves(even(w.b)), to[3] = halves(odd(w.b));
}

#endif

// The number that sums of products with x begin with. pair: `pair_sums` of x.
inline int32_t code_start(int32_t pair, int32_t zero) {
#if defined(__aarch64__) || defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))
  return -zero * sum_of_pair(pair);
#else  // 16-bit numbers modulo 2^16: the sums fit again when they are complete
  const int32_t first = -zero * static_cast<int16_t>(pair), second = -zero * (pair >> 16);
  return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | (static_cast<uint32_t>(first) & 0xffff));
#endif
}
inline int32_t byte_start(int32_t pair) { return -BYTE_BIAS * sum_of_pair(pair); }

}  // namespace quire
