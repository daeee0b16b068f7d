// Multiply-adds on registers only: the most that a core computes with the best instructions of its instruction set.
#include "vec.hpp"  // of the C++ ops

namespace {

#if !defined(__aarch64__)
// Independent sums, more than instructions in flight (two per cycle, of six cycles each, on some CPUs); with two operands they
// fit the registers.
#if defined(__AVX512F__)
constexpr int SUMS = 24;
#else
constexpr int SUMS = 12;
#endif

// multiply_add(sum): an instruction of `flops` operations. Sums are stored so that the compiler computes them.
template <class Vector, class MultiplyAdd>
double sum_vectors(int64_t rounds, const float* in, float* out, double flops, MultiplyAdd multiply_add) {
  Vector sums[SUMS];
  for (int k = 0; k < SUMS; k++) sums[k] = Vector{} + in[k];
  for (int64_t i = 0; i < rounds; i++)
#pragma GCC unroll 24
    for (auto& sum : sums) sum = multiply_add(sum);
  Vector total{};
  for (auto& sum : sums) total += sum;
  std::memcpy(out, &total, sizeof total);
  return flops * SUMS * rounds;
}
#endif

#if defined(__AMX_TILE__)
struct TileConfig {
  uint8_t palette = 1, start = 0, unused[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

double bf16_flops(int64_t rounds, const float*, float*) {
  const TileConfig config;
  asm volatile("" : : "r"(&config) : "memory");  // the intrinsic declares that it reads eight bytes of the 64
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int64_t i = 0; i < rounds; i++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
  return 4.0 * 16 * 16 * 32 * 2 * rounds;
}
#elif defined(__AVX512BF16__)
double bf16_flops(int64_t rounds, const float* in, float* out) {
  const __m512bh x = (__m512bh)_mm512_loadu_ps(in), y = (__m512bh)_mm512_loadu_ps(in + 16);
  return sum_vectors<__m512>(rounds, in, out, 64, [&](__m512 sum) { return _mm512_dpbf16_ps(sum, x, y); });
}
#endif

#if defined(__aarch64__)
template <class T>
double vector_flops(int64_t rounds, const float* in, float* out) {
  constexpr int SUMS = 16 / quire::PARTS;
  const quire::U16 x = quire::load_units(in), y = quire::load_units(in + 16);
  quire::F16 sums[SUMS];
  for (int k = 0; k < SUMS; k++) sums[k] = quire::set1(in[k]);
  for (int64_t i = 0; i < rounds; i++)
    for (auto& sum : sums) sum = quire::dot(sum, x, y, T{});
  for (auto& sum : sums) quire::store(out, quire::load(out) + sum);
  return 2.0 * quire::LANES * quire::PER_UNIT<T> * SUMS * rounds;
}
double float_flops(int64_t rounds, const float* in, float* out) { return vector_flops<float>(rounds, in, out); }
#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
double bf16_flops(int64_t rounds, const float* in, float* out) { return vector_flops<quire::bf16>(rounds, in, out); }
#endif
#elif defined(__AVX512F__)
double float_flops(int64_t rounds, const float* in, float* out) {
  const __m512 x = _mm512_loadu_ps(in), y = _mm512_loadu_ps(in + 16);
  return sum_vectors<__m512>(rounds, in, out, 32, [&](__m512 sum) { return _mm512_fmadd_ps(x, y, sum); });
}
#else
double float_flops(int64_t rounds, const float* in, float* out) {
  const __m256 x = _mm256_loadu_ps(in), y = _mm256_loadu_ps(in + 16);
  return sum_vectors<__m256>(rounds, in, out, 16, [&](__m256 sum) { return _mm256_fmadd_ps(x, y, sum); });
}
#endif

}  // namespace

// Computes on the calling thread; returns the number of floating-point operations. in: float [32]. out: float [16].
extern "C" double multiply_adds(int32_t is_bf16, int64_t rounds, const float* in, float* out) {
#if defined(__AMX_TILE__) || defined(__AVX512BF16__) || defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
  if (is_bf16) return bf16_flops(rounds, in, out);
#endif
  return float_flops(rounds, in, out);  // bfloat16 is widened where no instruction multiplies it
}
