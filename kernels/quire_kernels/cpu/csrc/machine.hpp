// What CPUs do differently beside vectors: hints, and conversion of one float16.
#pragma once
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {

#if defined(__x86_64__)

inline void cpu_pause() { _mm_pause(); }
// Prefetches a line to the first level of the cache, or only to the second.
inline void prefetch_l1(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T0); }
inline void prefetch_l2(const void* at) { _mm_prefetch(static_cast<const char*>(at), _MM_HINT_T1); }
inline uint16_t to_half(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
inline float from_half(uint16_t x) { return _cvtsh_ss(x); }

#elif defined(__aarch64__)

inline void cpu_pause() { asm volatile("isb" ::: "memory"); }  // `yield` returns at once on most cores
inline void prefetch_l1(const void* at) { __builtin_prefetch(at, 0, 3); }
inline void prefetch_l2(const void* at) { __builtin_prefetch(at, 0, 2); }
inline uint16_t to_half(float x) {
  const __fp16 half = static_cast<__fp16>(x);
  uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float from_half(uint16_t x) {
  __fp16 half;
  std::memcpy(&half, &x, 2);
  return half;
}

#else
#error "The C++ ops are for x86-64 and AArch64."
#endif

}  // namespace quire
