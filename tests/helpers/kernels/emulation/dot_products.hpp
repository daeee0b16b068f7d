// Dot products of bytes and of bfloat16 in registers: VPDPBUSD, VDPBF16PS and VCVTNEPS2BF16 (Intel SDM vol. 2).
#pragma once
#include "bytes.hpp"

namespace emulated {

// Numbers too small for a normal float32 become zeros, which bfloat16 instructions do without asking MXCSR.
EMULATED __m256 flushed(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x), exponent = _mm256_and_si256(bits, _mm256_set1_epi32(0x7f800000));
  const __m256i small = _mm256_cmpeq_epi32(exponent, _mm256_setzero_si256());
  return _mm256_castsi256_ps(_mm256_andnot_si256(_mm256_and_si256(small, _mm256_set1_epi32(INT32_MAX)), bits));
}
EMULATED __m256 fma_flushed(__m256 x, __m256 y, __m256 sum) { return flushed(_mm256_fmadd_ps(x, y, sum)); }
// The first or the second bfloat16 of each pair.
EMULATED __m256 even(__m256i pairs) { return flushed(_mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16))); }
EMULATED __m256 odd(__m256i pairs) {
  return flushed(_mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(static_cast<int>(0xffff0000)))));
}

EMULATED __m512 _mm512_dpbf16_ps(__m512 sums, __m512bh a, __m512bh b) {
  Register to = of(sums), x = of(a), y = of(b);
  for (int i = 0; i < 2; i++) {
    to.hf[i] = fma_flushed(even(x.hi[i]), even(y.hi[i]), flushed(to.hf[i]));
    to.hf[i] = fma_flushed(odd(x.hi[i]), odd(y.hi[i]), to.hf[i]);
  }
  return to.f;
}
EMULATED uint16_t narrowed(uint32_t bits) {  // to nearest, ties to even; NaN becomes quiet
  if ((bits & 0x7f800000) == 0) return static_cast<uint16_t>(bits >> 16 & 0x8000);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
EMULATED __m256i _mm512_cvtneps_pbh(__m512 a) {
  const Register x = of(a);
  Register y;
  for (int i = 0; i < 16; i++) y.uint16[i] = narrowed(x.uint32[i]);
  return y.hi[0];
}
EMULATED __m512bh _mm512_cvtne2ps_pbh(__m512 upper, __m512 lower) {
  Register y;
  y.hi[0] = _mm512_cvtneps_pbh(lower), y.hi[1] = _mm512_cvtneps_pbh(upper);
  return y.b;
}

// sums + the products of four unsigned bytes of a with four signed bytes of b
EMULATED __m256i _mm256_dpbusd_avx_epi32(__m256i sums, __m256i a, __m256i b) {
  const __m256i low = _mm256_set1_epi16(255);
  const __m256i evens = _mm256_madd_epi16(_mm256_and_si256(a, low), _mm256_srai_epi16(_mm256_slli_epi16(b, 8), 8));
  const __m256i odds = _mm256_madd_epi16(_mm256_srli_epi16(a, 8), _mm256_srai_epi16(b, 8));
  return _mm256_add_epi32(sums, _mm256_add_epi32(evens, odds));
}
EMULATED __m512i _mm512_dpbusd_epi32(__m512i sums, __m512i a, __m512i b) {
  Register to = of(sums), x = of(a), y = of(b);
  for (int i = 0; i < 2; i++) to.hi[i] = emulated::_mm256_dpbusd_avx_epi32(to.hi[i], x.hi[i], y.hi[i]);
  return to.i;
}

}  // namespace emulated
