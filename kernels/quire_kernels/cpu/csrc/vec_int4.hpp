// Vectors of 4-bit codes, two a byte, as floats; and units made from floats.
#pragma once
#include "vec_quantized.hpp"

namespace quire {

#if defined(__AVX512F__)

inline U16 bits_of(F16 x) { return _mm512_castps_si512(x.v); }
inline F16 floats_of(U16 x) { return {_mm512_castsi512_ps(x)}; }
inline U16 upper_halves(U16 x) { return _mm512_and_si512(x, _mm512_set1_epi32(static_cast<int>(0xffff0000))); }
inline U16 raised_halves(U16 x) { return _mm512_slli_epi32(x, 16); }
inline U16 lowered_halves(U16 x) { return _mm512_srli_epi32(x, 16); }
// The lower and the upper codes of 16 bytes.
inline void load_codes(const uint8_t* p, F16& lower, F16& upper) {
  const __m512i x = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  lower = {_mm512_cvtepi32_ps(_mm512_and_si512(x, _mm512_set1_epi32(15)))};
  upper = {_mm512_cvtepi32_ps(_mm512_srli_epi32(x, 4))};
}

#elif defined(__AVX2__)  // two halves

inline U16 bits_of(F16 x) { return {_mm256_castps_si256(x.a), _mm256_castps_si256(x.b)}; }
inline F16 floats_of(U16 x) { return {_mm256_castsi256_ps(x.a), _mm256_castsi256_ps(x.b)}; }
inline U16 upper_halves(U16 x) {
  const __m256i high = _mm256_set1_epi32(static_cast<int>(0xffff0000));
  return {_mm256_and_si256(x.a, high), _mm256_and_si256(x.b, high)};
}
inline U16 raised_halves(U16 x) { return {_mm256_slli_epi32(x.a, 16), _mm256_slli_epi32(x.b, 16)}; }
inline U16 lowered_halves(U16 x) { return {_mm256_srli_epi32(x.a, 16), _mm256_srli_epi32(x.b, 16)}; }
inline void load_codes(const uint8_t* p, F16& lower, F16& upper) {
  const __m256i x = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m256i y = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p + 8)));
  const __m256i low = _mm256_set1_epi32(15);
  lower = {_mm256_cvtepi32_ps(_mm256_and_si256(x, low)), _mm256_cvtepi32_ps(_mm256_and_si256(y, low))};
  upper = {_mm256_cvtepi32_ps(_mm256_srli_epi32(x, 4)), _mm256_cvtepi32_ps(_mm256_srli_epi32(y, 4))};
}

#endif

// The first two elements at p, each in all lanes.
inline void same_two(const float* p, F16& first, F16& second) { first = set1(p[0]), second = set1(p[1]); }
inline void same_two(const bf16* p, F16& first, F16& second) {
  const U16 both = same_unit(p);
  first = floats_of(raised_halves(both)), second = floats_of(upper_halves(both));
}

// Stores x and y: neighbors of bfloat16 share units; vectors of float32 are `apart` elements from each other.
inline void store_two(float* p, int64_t apart, F16 x, F16 y) { store(p, x), store(p + apart, y); }
inline void store_two(bf16* p, int64_t, F16 x, F16 y) {
  store_units(p, merged(lowered_halves(bits_of(rounded<bf16>(x))), bits_of(rounded<bf16>(y))));
}

}  // namespace quire
