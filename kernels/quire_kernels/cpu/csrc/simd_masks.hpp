// Lane comparisons, which return bit masks (bit i = lane i), operations on such masks, and sums in double
// precision.
#pragma once
#include "vec.hpp"

#if defined(__aarch64__)
#include "arm/lane_masks.hpp"
#else

namespace quire {

#if defined(__AVX512F__)

inline uint32_t at_least(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GE_OQ); }
inline uint32_t above(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ); }
inline uint32_t equal(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ); }
// lanes where one of the two is NaN
inline uint32_t nan_in(F16 a, F16 b) { return _mm512_cmp_ps_mask(a.v, b.v, _CMP_UNORD_Q); }
inline F16 zero_below(F16 a, F16 least) { return {_mm512_maskz_mov_ps(at_least(a, least), a.v)}; }
inline F16 floor(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
// Stores the lanes of the mask contiguously at `to`; up to sixteen floats after them are overwritten.
inline void pack_found(float* to, F16 a, uint32_t found) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(static_cast<__mmask16>(found), a.v));
}

// Sums sixteen floats as doubles: exact as long as all are integers and the sum is below 2^53.
struct Total {
  __m512d a = _mm512_setzero_pd(), b = _mm512_setzero_pd();
  void add(F16 x) {
    a = _mm512_add_pd(a, _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)));
    b = _mm512_add_pd(b, _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1)));
  }
  double value() const { return _mm512_reduce_add_pd(_mm512_add_pd(a, b)); }
};

#else

template <int how>
inline uint32_t compare(F16 x, F16 y) {
  const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, how));
  return static_cast<uint32_t>(low | _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, how)) << 8);
}
inline uint32_t at_least(F16 x, F16 y) { return compare<_CMP_GE_OQ>(x, y); }
inline uint32_t above(F16 x, F16 y) { return compare<_CMP_GT_OQ>(x, y); }
inline uint32_t equal(F16 x, F16 y) { return compare<_CMP_EQ_OQ>(x, y); }
inline uint32_t nan_in(F16 x, F16 y) { return compare<_CMP_UNORD_Q>(x, y); }
inline F16 zero_below(F16 x, F16 least) {
  return {_mm256_and_ps(x.a, _mm256_cmp_ps(x.a, least.a, _CMP_GE_OQ)),
          _mm256_and_ps(x.b, _mm256_cmp_ps(x.b, least.b, _CMP_GE_OQ))};
}
inline void pack_found(float* to, F16 x, uint32_t found) {
  float lanes[LANES];
  store(lanes, x);
  for (; found; found &= found - 1) *to++ = lanes[__builtin_ctz(found)];
}

struct Total {
  __m256d a = _mm256_setzero_pd(), b = _mm256_setzero_pd();
  void add(F16 x) {
    a = _mm256_add_pd(a, _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x.a)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1))));
    b = _mm256_add_pd(b, _mm256_add_pd(_mm256_cvtps_pd(_mm256_castps256_ps128(x.b)),
                                       _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1))));
  }
  double value() const {
    const __m256d s = _mm256_add_pd(a, b);
    const __m128d h = _mm_add_pd(_mm256_castpd256_pd128(s), _mm256_extractf128_pd(s, 1));
    return _mm_cvtsd_f64(_mm_add_sd(h, _mm_unpackhi_pd(h, h)));
  }
};

#endif

}  // namespace quire

#endif
