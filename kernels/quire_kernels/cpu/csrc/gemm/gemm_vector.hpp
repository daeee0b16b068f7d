// Vector kernels of products.
#pragma once
#include "gemm/packed.hpp"
#include "gemm/gemm_tiling.hpp"

namespace quire {

// Prefetches two cache lines of weights to the first level.
inline void prefetch_lines(const char* at) {
  _mm_prefetch(at, _MM_HINT_T0);
  _mm_prefetch(at + 64, _MM_HINT_T0);
}

// Sums of ROWS rows of x and one panel.
template <class T, int ROWS>
inline void sum_rows(const T* x, int64_t stride, const uint32_t* w, int64_t units, float* sums, PrefetchStream stream,
                     PrefetchStream queue) {
  F16 acc[ROWS][2];
  for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = zero();
  for (int64_t u = 0; u < units; u++, stream.at += stream.step, queue.at += queue.step) {
    prefetch_lines(stream.at);
    _mm_prefetch(queue.at, _MM_HINT_T1);
    const U16 w0 = load_units(w + u * PANEL), w1 = load_units(w + u * PANEL + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const U16 a = same_unit(x + r * stride + u * PER_UNIT<T>);
      acc[r][0] = dot(acc[r][0], a, w0, T{});
      acc[r][1] = dot(acc[r][1], a, w1, T{});
    }
  }
  for (int r = 0; r < ROWS; r++) {
    store(sums + r * PANEL, acc[r][0]);
    store(sums + r * PANEL + LANES, acc[r][1]);
  }
}

#if defined(__AVX512F__)
constexpr int MAX_ROWS = 12;  // 24 sums, two weights, one x: 27 of 32 registers
#else
constexpr int MAX_ROWS = 2;
#endif

template <class T, int MAX = MAX_ROWS>
inline void sum_some(int64_t rows, const T* x, int64_t stride, const uint32_t* w, int64_t units, float* sums,
                     PrefetchStream stream, PrefetchStream queue) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return sum_some<T, MAX - 1>(rows, x, stride, w, units, sums, stream, queue);
  }
  sum_rows<T, MAX>(x, stride, w, units, sums, stream, queue);
}

template <class T>
struct VectorTiles {
  static constexpr int64_t ROWS = MAX_ROWS;
  static constexpr TileShape shape(int64_t) { return {ROWS, true, 1 << 18, 64}; }

  template <class Between>
  void sums(const GemmTile& tile, int64_t panel, const T* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue& queue, float* out, Between&&) {
    sum_some<T>(tile.count, x, stride, w, units, out, tile.beside(panel), queue.next(units));
  }
};

// One row and up to three panels, summed in the order of `sum_rows`.
template <class T>
struct VectorRow {
  static constexpr int64_t ROWS = 1;
  static constexpr int64_t PANELS = 3;

  template <int HALVES>  // of panels
  static void sums_of(const T* x, const uint32_t* w, int64_t units, float* out) {
    F16 acc[HALVES];
    for (F16& sum : acc) sum = zero();
    for (int64_t u = 0; u < units; u++) {
      const U16 unit = same_unit(x + u * PER_UNIT<T>);
#pragma GCC unroll 8
      for (int i = 0; i < HALVES; i++)
        acc[i] = dot(acc[i], unit, load_units(w + (i / 2 * units + u) * PANEL + i % 2 * LANES), T{});
    }
    for (int i = 0; i < HALVES; i++) store(out + i * LANES, acc[i]);
  }

  void sums(int64_t panels, const T* x, int64_t, const uint32_t* w, int64_t units, float* out) const {
    if (panels == 3) return sums_of<6>(x, w, units, out);
    if (panels == 2) return sums_of<4>(x, w, units, out);
    sums_of<2>(x, w, units, out);
  }
};

}  // namespace quire
