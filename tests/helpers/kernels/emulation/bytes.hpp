// Instructions of AVX-512 that work on single bytes.
#pragma once
#include "avx512.hpp"

namespace emulated {

EMULATED __m512i _mm512_abs_epi8(__m512i a) {
  Register x = of(a);
  for (__m256i& half : x.hi) half = _mm256_abs_epi8(half);
  return x.i;
}
EMULATED __m512i _mm512_mask_sub_epi8(__m512i other, __mmask64 mask, __m512i a, __m512i b) {
  Register x = of(other), y = of(_mm512_sub_epi8(a, b));
  for (int i = 0; i < 64; i++) x.int8[i] = mask >> i & 1 ? y.int8[i] : x.int8[i];
  return x.i;
}
EMULATED __m512i _mm512_permutex2var_epi8(__m512i a, __m512i index, __m512i b) {
  const Register x = of(a), y = of(b), at = of(index);
  Register found;
  for (int i = 0; i < 64; i++) found.int8[i] = (at.int8[i] & 64 ? y : x).int8[at.int8[i] & 63];
  return found.i;
}
EMULATED __mmask64 _mm512_movepi8_mask(__m512i a) {
  const Register x = of(a);
  const uint32_t low = _mm256_movemask_epi8(x.hi[0]), high = _mm256_movemask_epi8(x.hi[1]);
  return low | static_cast<__mmask64>(high) << 32;
}
EMULATED __mmask64 _mm512_test_epi8_mask(__m512i a, __m512i b) {
  const Register x = of(a), y = of(b);
  __mmask64 found = 0;
  for (int i = 0; i < 64; i++) found |= static_cast<__mmask64>((x.int8[i] & y.int8[i]) != 0) << i;
  return found;
}
EMULATED __m512i _mm512_mask_blend_epi8(__mmask64 mask, __m512i a, __m512i b) {
  Register x = of(a), y = of(b);
  for (int i = 0; i < 64; i++) x.int8[i] = mask >> i & 1 ? y.int8[i] : x.int8[i];
  return x.i;
}
EMULATED __m512i _mm512_permutexvar_epi8(__m512i places, __m512i a) {
  Register x = of(a), at = of(places), y;
  for (int i = 0; i < 64; i++) y.int8[i] = x.int8[at.int8[i] & 63];
  return y.i;
}

}  // namespace emulated
