// The instructions of AVX-512 that the ops use, computed with AVX2, so that their code runs on other machines in tests.
//
// A register of 512 bits is two of 256. One instruction is not reproduced to the bit: `rcp14` is the quotient with its
// lower bits cut off, within the error that is allowed. An instruction that is missing here does not compile.
#pragma once
#include <immintrin.h>

#include <cmath>
#include <cstdint>
#include <cstring>

#define EMULATED inline __attribute__((always_inline))

namespace emulated {

union Register {
  __m512 f;
  __m512d d;
  __m512i i;
  __m512bh b;
  __m256 hf[2];
  __m256d hd[2];
  __m256i hi[2];
  float floats[16];
  int8_t int8[64];
  uint8_t uint8[64];
  uint16_t uint16[32];
  int32_t int32[16];
  uint32_t uint32[16];
  int64_t int64[8];
};

EMULATED Register of(__m512 x) { Register r; r.f = x; return r; }
EMULATED Register of(__m512d x) { Register r; r.d = x; return r; }
EMULATED Register of(__m512i x) { Register r; r.i = x; return r; }
EMULATED Register of(__m512bh x) { Register r; r.b = x; return r; }

// An instruction that does in each half what AVX2 does in a register: SIGN is the type's letter in the names.
#define BY_HALVES_1(TYPE, FIELD, HALF, TO, TO_HALF, NAME) \
  EMULATED TO _mm512_##NAME(TYPE a) { \
    Register x = of(a), y; \
    y.TO_HALF[0] = _mm256_##NAME(x.HALF[0]), y.TO_HALF[1] = _mm256_##NAME(x.HALF[1]); \
    return y.FIELD; \
  }
#define BY_HALVES_2(TYPE, FIELD, HALF, NAME, OF_HALF) \
  EMULATED TYPE _mm512_##NAME(TYPE a, TYPE b) { \
    Register x = of(a), y = of(b); \
    x.HALF[0] = _mm256_##OF_HALF(x.HALF[0], y.HALF[0]), x.HALF[1] = _mm256_##OF_HALF(x.HALF[1], y.HALF[1]); \
    return x.FIELD; \
  }
#define BY_HALVES_3(NAME) \
  EMULATED __m512 _mm512_##NAME(__m512 a, __m512 b, __m512 c) { \
    Register x = of(a), y = of(b), z = of(c); \
    x.hf[0] = _mm256_##NAME(x.hf[0], y.hf[0], z.hf[0]), x.hf[1] = _mm256_##NAME(x.hf[1], y.hf[1], z.hf[1]); \
    return x.f; \
  }
#define INTEGERS(NAME) BY_HALVES_2(__m512i, i, hi, NAME, NAME)
#define BITS_OF(NAME) BY_HALVES_2(__m512i, i, hi, NAME##_si512, NAME##_si256)
#define FLOATS(NAME) BY_HALVES_2(__m512, f, hf, NAME, NAME)
#define SHIFT(NAME) \
  EMULATED __m512i _mm512_##NAME(__m512i a, unsigned by) { \
    Register x = of(a); \
    x.hi[0] = _mm256_##NAME(x.hi[0], by), x.hi[1] = _mm256_##NAME(x.hi[1], by); \
    return x.i; \
  }
#define SAME(NAME, TYPE, FIELD, HALF, SUFFIX, NUMBER) \
  EMULATED TYPE _mm512_##NAME(NUMBER n) { \
    Register x; \
    x.HALF[0] = x.HALF[1] = _mm256_##NAME##SUFFIX(n); \
    return x.FIELD; \
  }

INTEGERS(add_epi16) INTEGERS(add_epi32) INTEGERS(sub_epi8) INTEGERS(sub_epi32)
INTEGERS(madd_epi16) INTEGERS(maddubs_epi16) INTEGERS(packus_epi32) INTEGERS(shuffle_epi8)
INTEGERS(unpacklo_epi32) INTEGERS(unpackhi_epi32) INTEGERS(unpacklo_epi64) INTEGERS(unpackhi_epi64)
BITS_OF(and) BITS_OF(or) BITS_OF(xor)
SHIFT(slli_epi16) SHIFT(slli_epi32) SHIFT(srli_epi16) SHIFT(srli_epi32) SHIFT(srai_epi16) SHIFT(srai_epi32)
FLOATS(add_ps) FLOATS(sub_ps) FLOATS(mul_ps) FLOATS(div_ps) FLOATS(max_ps) FLOATS(min_ps)
BY_HALVES_2(__m512d, d, hd, add_pd, add_pd)
BY_HALVES_3(fmadd_ps) BY_HALVES_3(fnmadd_ps)
BY_HALVES_1(__m512i, f, hi, __m512, hf, cvtepi32_ps)
BY_HALVES_1(__m512, i, hf, __m512i, hi, cvtps_epi32)
SAME(set1_epi8, __m512i, i, hi, , char) SAME(set1_epi16, __m512i, i, hi, , short) SAME(set1_epi32, __m512i, i, hi, , int)
SAME(set1_ps, __m512, f, hf, , float)

EMULATED __m512i _mm512_setzero_si512() { return _mm512_set1_epi32(0); }
EMULATED __m512d _mm512_setzero_pd() { return of(_mm512_set1_epi32(0)).d; }
EMULATED __m512 _mm512_castsi512_ps(__m512i x) { return of(x).f; }
EMULATED __m512i _mm512_castps_si512(__m512 x) { return of(x).i; }
EMULATED __m256 _mm512_castps512_ps256(__m512 x) { return of(x).hf[0]; }
EMULATED __m256i _mm512_castsi512_si256(__m512i x) { return of(x).hi[0]; }
EMULATED __m512i _mm512_castsi256_si512(__m256i x) {
  Register all;
  all.hi[0] = all.hi[1] = x;  // the upper half is undefined
  return all.i;
}
EMULATED __m512i _mm512_broadcast_i32x4(__m128i x) {
  Register all;
  all.hi[0] = all.hi[1] = _mm256_broadcastsi128_si256(x);
  return all.i;
}
EMULATED __m256 _mm512_extractf32x8_ps(__m512 x, int half) { return of(x).hf[half]; }
EMULATED __m256i _mm512_extracti64x4_epi64(__m512i x, int half) { return of(x).hi[half]; }
EMULATED __m512i _mm512_inserti64x4(__m512i x, __m256i y, int half) {
  Register all = of(x);
  all.hi[half] = y;
  return all.i;
}

EMULATED __m512 _mm512_loadu_ps(const void* p) { Register x; std::memcpy(&x, p, 64); return x.f; }
EMULATED __m512i _mm512_loadu_si512(const void* p) { Register x; std::memcpy(&x, p, 64); return x.i; }
EMULATED void _mm512_storeu_ps(void* p, __m512 x) { std::memcpy(p, &x, 64); }
EMULATED void _mm512_storeu_si512(void* p, __m512i x) { std::memcpy(p, &x, 64); }
inline __m512 _mm512_maskz_loadu_ps(__mmask16 mask, const void* p) {  // nothing is read where the mask is 0
  Register x = of(_mm512_setzero_si512());
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) std::memcpy(x.floats + i, static_cast<const char*>(p) + 4 * i, 4);
  return x.f;
}
inline void _mm512_mask_storeu_ps(void* p, __mmask16 mask, __m512 x) {
  const Register from = of(x);
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) std::memcpy(static_cast<char*>(p) + 4 * i, from.floats + i, 4);
}

template <int HOW>
EMULATED __mmask16 compare(__m512 a, __m512 b) {
  const Register x = of(a), y = of(b);
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.hf[0], y.hf[0], HOW));
  return static_cast<__mmask16>(low | _mm256_movemask_ps(_mm256_cmp_ps(x.hf[1], y.hf[1], HOW)) << 8);
}
EMULATED __m512i _mm512_mask_blend_epi32(__mmask16 mask, __m512i a, __m512i b) {
  Register x = of(a), y = of(b);
  for (int i = 0; i < 16; i++) x.int32[i] = mask >> i & 1 ? y.int32[i] : x.int32[i];
  return x.i;
}
EMULATED __m512i _mm512_mask_sub_epi32(__m512i others, __mmask16 mask, __m512i a, __m512i b) {
  return _mm512_mask_blend_epi32(mask, others, _mm512_sub_epi32(a, b));
}
EMULATED __mmask16 _mm512_test_epi32_mask(__m512i a, __m512i b) {
  const Register x = of(_mm512_and_si512(a, b));
  int found = 0;
  for (int i = 0; i < 16; i++) found |= (x.int32[i] != 0) << i;
  return static_cast<__mmask16>(found);
}
EMULATED __m512 _mm512_fixupimm_ps(__m512 a, __m512 b, __m512i table, int) {  // of tables that make NaN quiet and keep others
  Register x = of(a);
  const Register y = of(b), kinds = of(table);
  for (int i = 0; i < 16; i++)
    if (y.floats[i] != y.floats[i] && kinds.uint32[i] == 0x22) x.uint32[i] = y.uint32[i] | 1u << 22;
  return x.f;
}
EMULATED __m512i _mm512_permutex2var_epi32(__m512i a, __m512i index, __m512i b) {
  const Register x = of(a), y = of(b), at = of(index);
  Register found;
  for (int i = 0; i < 16; i++) found.int32[i] = (at.int32[i] & 16 ? y : x).int32[at.int32[i] & 15];
  return found.i;
}
EMULATED __m512 _mm512_mask_blend_ps(__mmask16 mask, __m512 a, __m512 b) {
  return of(_mm512_mask_blend_epi32(mask, of(a).i, of(b).i)).f;
}
EMULATED __m512 _mm512_maskz_mov_ps(__mmask16 mask, __m512 a) {
  return _mm512_mask_blend_ps(mask, of(_mm512_setzero_si512()).f, a);
}
EMULATED __m512 _mm512_maskz_compress_ps(__mmask16 mask, __m512 a) {
  Register x = of(a), y = of(_mm512_setzero_si512());
  int count = 0;
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) y.int32[count++] = x.int32[i];
  return y.f;
}

EMULATED __m512 _mm512_permutexvar_ps(__m512i places, __m512 a) {
  Register x = of(a), at = of(places), y;
  for (int i = 0; i < 16; i++) y.int32[i] = x.int32[at.int32[i] & 15];
  return y.f;
}
EMULATED __m512i _mm512_permutexvar_epi64(__m512i places, __m512i a) {
  Register x = of(a), at = of(places), y;
  for (int i = 0; i < 8; i++) y.int64[i] = x.int64[at.int64[i] & 7];
  return y.i;
}
EMULATED __m512i _mm512_shuffle_i32x4(__m512i a, __m512i b, int how) {
  Register x = of(a), y = of(b), z;
  for (int i = 0; i < 4; i++) {
    const Register& from = i < 2 ? x : y;
    for (int j = 0; j < 2; j++) z.int64[2 * i + j] = from.int64[2 * (how >> 2 * i & 3) + j];
  }
  return z.i;
}
EMULATED __m512i _mm512_ternarylogic_epi32(__m512i a, __m512i b, __m512i c, int table) {
  Register x = of(a), y = of(b), z = of(c);
  for (int i = 0; i < 16; i++) {
    uint32_t bits = 0;
    for (int of_table = 0; of_table < 8; of_table++) {
      if (!(table >> of_table & 1)) continue;
      bits |= (of_table & 4 ? x.uint32[i] : ~x.uint32[i]) & (of_table & 2 ? y.uint32[i] : ~y.uint32[i]) &
              (of_table & 1 ? z.uint32[i] : ~z.uint32[i]);
    }
    x.uint32[i] = bits;
  }
  return x.i;
}
EMULATED __m512i _mm512_shldi_epi16(__m512i a, __m512i b, int by) {
  Register x = of(a), y = of(b);
  for (int i = 0; i < 32; i++) x.uint16[i] = static_cast<uint16_t>((x.uint16[i] << 16 | y.uint16[i]) << by >> 16);
  return x.i;
}

EMULATED __m512 _mm512_abs_ps(__m512 a) { return of(_mm512_and_si512(of(a).i, _mm512_set1_epi32(INT32_MAX))).f; }
EMULATED __m512 _mm512_roundscale_ps(__m512 a, int how) {  // to integers
  Register x = of(a);
  const bool down = (how & 3) == _MM_FROUND_TO_NEG_INF;
  for (__m256& half : x.hf) half = down ? _mm256_floor_ps(half) : _mm256_round_ps(half, _MM_FROUND_TO_NEAREST_INT);
  return x.f;
}
EMULATED __m512 _mm512_reduce_ps(__m512 a, int how) { return _mm512_sub_ps(a, _mm512_roundscale_ps(a, how)); }
EMULATED __m512 _mm512_scalef_ps(__m512 a, __m512 b) {
  Register x = of(a), y = of(b);
  for (int i = 0; i < 16; i++)
    x.floats[i] = std::ldexp(x.floats[i], static_cast<int>(std::fmax(-1000.0f, std::fmin(std::floor(y.floats[i]), 1000.0f))));
  return x.f;
}
EMULATED __m512 _mm512_rcp14_ps(__m512 a) {
  return of(_mm512_and_si512(of(_mm512_div_ps(_mm512_set1_ps(1.0f), a)).i, _mm512_set1_epi32(~0x1ff))).f;
}

EMULATED float halved_sum(__m128 x) {
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}
EMULATED float _mm512_reduce_add_ps(__m512 a) {
  const __m256 x = _mm256_add_ps(of(a).hf[1], of(a).hf[0]);
  return halved_sum(_mm_add_ps(_mm256_extractf128_ps(x, 1), _mm256_castps256_ps128(x)));
}
EMULATED float _mm512_reduce_max_ps(__m512 a) {
  const Register x = of(a);
  float most = x.floats[0];
  for (float y : x.floats) most = most > y ? most : y;
  return most;
}
EMULATED double _mm512_reduce_add_pd(__m512d a) {
  const __m256d x = _mm256_add_pd(of(a).hd[1], of(a).hd[0]);
  const __m128d y = _mm_add_pd(_mm256_extractf128_pd(x, 1), _mm256_castpd256_pd128(x));
  return _mm_cvtsd_f64(_mm_add_sd(y, _mm_unpackhi_pd(y, y)));
}
EMULATED int _mm512_reduce_add_epi32(__m512i a) {
  const Register x = of(a);
  uint32_t all = 0;
  for (uint32_t y : x.uint32) all += y;
  return static_cast<int>(all);
}

EMULATED __m512i _mm512_cvtepi8_epi32(__m128i a) {
  Register x;
  x.hi[0] = _mm256_cvtepi8_epi32(a), x.hi[1] = _mm256_cvtepi8_epi32(_mm_srli_si128(a, 8));
  return x.i;
}
EMULATED __m512i _mm512_cvtepu8_epi32(__m128i a) {
  Register x;
  x.hi[0] = _mm256_cvtepu8_epi32(a), x.hi[1] = _mm256_cvtepu8_epi32(_mm_srli_si128(a, 8));
  return x.i;
}
EMULATED __m512i _mm512_cvtepu16_epi32(__m256i a) {
  Register x;
  x.hi[0] = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(a));
  x.hi[1] = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(a, 1));
  return x.i;
}
EMULATED __m512 _mm512_cvtph_ps(__m256i a) {
  Register x;
  x.hf[0] = _mm256_cvtph_ps(_mm256_castsi256_si128(a)), x.hf[1] = _mm256_cvtph_ps(_mm256_extracti128_si256(a, 1));
  return x.f;
}
EMULATED __m512d _mm512_cvtps_pd(__m256 a) {
  Register x;
  x.hd[0] = _mm256_cvtps_pd(_mm256_castps256_ps128(a)), x.hd[1] = _mm256_cvtps_pd(_mm256_extractf128_ps(a, 1));
  return x.d;
}
EMULATED __m128i _mm512_cvtepi32_epi8(__m512i a) {  // the lowest byte of each
  const Register x = of(a);
  alignas(16) int8_t bytes[16];
  for (int i = 0; i < 16; i++) bytes[i] = x.int8[4 * i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(bytes));
}
EMULATED __m256i _mm512_cvtepi32_epi16(__m512i a) {
  const Register x = of(a);
  Register y;
  for (int i = 0; i < 16; i++) y.uint16[i] = x.uint16[2 * i];
  return y.hi[0];
}

}  // namespace emulated
