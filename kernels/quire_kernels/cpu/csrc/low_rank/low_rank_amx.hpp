// The sums of `low_rank/low_rank.hpp` in AMX tiles (where matrices are not compressed), and by vectors for a single
// row, with bit-identical results.
#pragma once
#include "gemm/gemm.hpp"

namespace quire {

// At most 32 rows by two panels: four tiles of 16 × 16 sums.
struct Tiles {
  static constexpr int64_t GROUP = 8;

  int64_t rows_ready = 0, units_ready = 0;

  // Tiles 0-3: sums of the upper and lower 16 rows, left and right panel; 4, 5: x; 6, 7: weights, `units` at a time.
  void configure(int64_t rows, int64_t units) {
    if (rows == rows_ready && units == units_ready) return;
    rows_ready = rows;
    units_ready = units;
    const uint8_t upper = static_cast<uint8_t>(std::min<int64_t>(rows, 16));
    const uint8_t lower = static_cast<uint8_t>(rows > 16 ? rows - 16 : 1);
    const uint8_t deep = static_cast<uint8_t>(units);
    TileConfig config;
    const uint8_t heights[8] = {upper, upper, lower, lower, upper, lower, deep, deep};
    for (int i = 0; i < 8; i++) {
      config.rows[i] = heights[i];
      config.row_bytes[i] = i == 4 || i == 5 ? 4 * deep : 64;
    }
    load_config(config);
  }

  template <bool LOWER, bool RIGHT>
  static void sums_of(const bf16* x, int64_t x_stride, const uint32_t* w, int64_t units, int64_t step, float* out,
                      int64_t stride) {
    const int64_t bytes = x_stride * static_cast<int64_t>(sizeof(bf16));
    const uint32_t* right = w + units * LANES;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t u = 0; u < units; u += step) {
      _tile_loadd(6, w + u * LANES, 4 * LANES);
      if (RIGHT) _tile_loadd(7, right + u * LANES, 4 * LANES);
      _tile_loadd(4, x + 2 * u, bytes);
      _tile_dpbf16ps(0, 4, 6);
      if (RIGHT) _tile_dpbf16ps(1, 4, 7);
      if (!LOWER) continue;
      _tile_loadd(5, x + 16 * x_stride + 2 * u, bytes);
      _tile_dpbf16ps(2, 5, 6);
      if (RIGHT) _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, out, 4 * stride);
    if (RIGHT) _tile_stored(1, out + LANES, 4 * stride);
    if (LOWER) _tile_stored(2, out + 16 * stride, 4 * stride);
    if (LOWER && RIGHT) _tile_stored(3, out + 16 * stride + LANES, 4 * stride);
  }

  // Rows without constant stride are copied to contiguous memory.
  static const bf16* evenly(const bf16* const* x, int64_t count, int64_t width, int64_t& stride) {
    stride = x[1] - x[0];
    bool even = stride >= 0;
    for (int64_t r = 2; r < count && even; r++) even = x[r] - x[r - 1] == stride;
    if (even) return x[0];
    static thread_local ScratchBuffer<bf16> together;
    together.fit(count * width);
    for (int64_t r = 0; r < count; r++) std::memcpy(together.data() + r * width, x[r], width * sizeof(bf16));
    stride = width;
    return together.data();
  }

  void multiply(const bf16* const* x, int64_t count, const uint32_t* w, int64_t panels, int64_t units, float* sums,
                int64_t stride) {
    const int64_t step = std::min(units, TILE_UNITS);
    int64_t x_stride;
    const bf16* rows = evenly(x, count, 2 * units, x_stride);
    configure(count, step);
    for (int64_t p = 0; p < panels; p += 2) {
      const uint32_t* from = w + p * units * LANES;
      float* to = sums + p * LANES;
      if (count > 16)
        p + 1 < panels ? sums_of<true, true>(rows, x_stride, from, units, step, to, stride)
                       : sums_of<true, false>(rows, x_stride, from, units, step, to, stride);
      else
        p + 1 < panels ? sums_of<false, true>(rows, x_stride, from, units, step, to, stride)
                       : sums_of<false, false>(rows, x_stride, from, units, step, to, stride);
    }
  }
};

// One row by up to four panels: products of even and of odd elements are summed separately over 16 units, from
// zero, and then both sums are added, as tiles do (SDM vol. 2, TDPBF16PS).
struct TileRow {
  static constexpr int64_t GROUP = 8;

  static F16 even(U16 x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))}; }
  static F16 odd(U16 x) { return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)))}; }

  template <int PANELS>
  static void sums_of(const bf16* x, const uint32_t* w, int64_t units, float* out) {
    F16 total[PANELS];
    for (F16& sum : total) sum = zero();
    for (int64_t u = 0; u < units; u += TILE_UNITS) {
      F16 evens[PANELS], odds[PANELS];
      for (int p = 0; p < PANELS; p++) evens[p] = odds[p] = zero();
      const int64_t end = std::min(units, u + TILE_UNITS);
#pragma GCC unroll 4
      for (int64_t k = u; k < end; k++) {
        const U16 unit = same_unit(x + 2 * k);
        const F16 x_even = even(unit), x_odd = odd(unit);
#pragma GCC unroll 4
        for (int p = 0; p < PANELS; p++) {
          const uint32_t* at = w + (p * units + k) * LANES;
          prefetch_ahead(at);
          const U16 weights = load_units(at);
          evens[p] = fma(x_even, even(weights), evens[p]);
          odds[p] = fma(x_odd, odd(weights), odds[p]);
        }
      }
      for (int p = 0; p < PANELS; p++) total[p] = total[p] + (evens[p] + odds[p]);
    }
    for (int p = 0; p < PANELS; p++) store(out + p * LANES, total[p]);
  }

  void multiply(const bf16* const* x, int64_t, const uint32_t* w, int64_t panels, int64_t units, float* sums,
                int64_t) const {
    int64_t p = 0;
    for (; p + 4 <= panels; p += 4) sums_of<4>(x[0], w + p * units * LANES, units, sums + p * LANES);
    for (; p < panels; p++) sums_of<1>(x[0], w + p * units * LANES, units, sums + p * LANES);
  }
};

// Applies a kernel whose products are sums in memory.
template <class Kernel>
struct BySums {
  Kernel& kernel;

  void shrink(const bf16* const* x, const float* weights, int64_t count, const PackedWeights& adapter, int64_t units,
              bf16* middle) const {
    static thread_local ScratchBuffer<float> sums;
    const int64_t width = adapter.panels * LANES;
    sums.fit(count * width);
    kernel.multiply(x, count, adapter.a.units(), adapter.panels, units, sums.data(), width);
    for (int64_t r = 0; r < count; r++) {
      const F16 weight = set1(weights[r]);
      for (int64_t i = r * width; i < (r + 1) * width; i += LANES) store(middle + i, load(&sums[i]) * weight);
    }
  }

  template <class Y>
  void expand(const Slice& slice, const Entries<Y>& entries, const bf16* middle, int64_t width) const {
    constexpr int64_t stride = Kernel::GROUP * LANES;
    alignas(64) float sums[TOKENS_PER_ITEM * stride];
    const bf16* rows[TOKENS_PER_ITEM];
    for (int64_t r = 0; r < entries.count; r++) rows[r] = middle + r * width + slice.first;
    const int64_t outputs = slice.stop - slice.start;
    if (!slice.units) std::fill_n(sums, entries.count * stride, 0.0f);
    for (int64_t at = 0; at < outputs; at += stride) {
      const int64_t some = std::min(stride, outputs - at);
      if (slice.units)
        kernel.multiply(rows, entries.count, slice.b.units() + at * slice.units, (some + LANES - 1) / LANES,
                        slice.units, sums, stride);
      change_rows(slice, entries, at, some, sums, stride);
    }
  }

  // `some` outputs of a slice starting at `at`; sums [count][stride].
  template <class Y>
  static void change_rows(const Slice& slice, const Entries<Y>& entries, int64_t at, int64_t some, const float* sums,
                          int64_t stride) {
    const bool unscaled = !slice.scale && !slice.shift;
    for (int64_t r = 0; r < entries.count; r++) {
      Y* y = entries.y.row(entries.tokens[r], 0) + slice.start;
      const float* row = sums + r * stride;
      if (unscaled && some % (2 * LANES) == 0) {
        for (int64_t i = 0; i < some; i += 2 * LANES)
          store(y + at + i, load(y + at + i) + load(row + i), load(y + at + i + LANES) + load(row + i + LANES));
        continue;
      }
      lanes(some, [&](int64_t i, int n) {
        set(y + at + i, rescaled(slice, y, at + i, n, entries.weights[r]) + load(row + i), n);
      });
    }
  }
};

}  // namespace quire
