// AMX kernels of products of at most 16 rows, and vector kernels of a single row that sum in the order of tiles. Reading the
// weights takes nearly all the time.
#pragma once
#include <array>
#include <utility>

#include "gemm/amx/tiles.hpp"

namespace quire {

// At most 16 rows by up to three panels at a time: six tiles of sums, and three streams of weights.
template <class Weights = PlainWeights>
struct FewRowTiles {
  static constexpr int64_t ROWS = 16;
  static constexpr int64_t PANELS = 3;
  Weights weights;

  FewRowTiles(int64_t rows, Weights weights) : weights(weights) {
    TileConfig config;
    for (int i = 0; i < 8; i++) {
      config.rows[i] = static_cast<uint8_t>(i == 7 ? 16 : rows);
      config.row_bytes[i] = 64;
    }
    load_config(config);
  }

  // Tiles 0-5: sums; 6: x; 7: weights. A tile's number must be a constant. terms(i): those of panel i, `next` after the one
  // before it.
  template <class Terms>
  void sums(int64_t panels, const bf16* x, int64_t stride, const uint32_t* w, int64_t next, int64_t units, float* out,
            Terms&& terms) const {
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16));
    auto first = weights.steps(w, units), second = weights.steps(w + std::min<int64_t>(1, panels - 1) * next, units, 1),
         third = weights.steps(w + (panels - 1) * next, units, 2);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t u = 0; u < units; u += 16) {
      first.prefetch(), second.prefetch(), third.prefetch();
      const uint32_t* from = first.next();
      _tile_loadd(6, x + 2 * u, bytes);
      _tile_loadd(7, from, 4 * PANEL);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, from + LANES, 4 * PANEL);
      _tile_dpbf16ps(1, 6, 7);
      if (panels == 1) continue;
      from = second.next();
      _tile_loadd(7, from, 4 * PANEL);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, from + LANES, 4 * PANEL);
      _tile_dpbf16ps(3, 6, 7);
      if (panels == 2) continue;
      from = third.next();
      _tile_loadd(7, from, 4 * PANEL);
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(7, from + LANES, 4 * PANEL);
      _tile_dpbf16ps(5, 6, 7);
    }
    for (const PanelTerm& term : terms(0)) add_half<0>(term.left), add_half<1>(term.right);
    if (panels > 1)
      for (const PanelTerm& term : terms(1)) add_half<2>(term.left), add_half<3>(term.right);
    if (panels > 2)
      for (const PanelTerm& term : terms(2)) add_half<4>(term.left), add_half<5>(term.right);
    constexpr int64_t panel = ROWS * PANEL;
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
    _tile_stored(2, out + panel, 4 * PANEL);
    _tile_stored(3, out + panel + LANES, 4 * PANEL);
    _tile_stored(4, out + 2 * panel, 4 * PANEL);
    _tile_stored(5, out + 2 * panel + LANES, 4 * PANEL);
  }

 private:
  template <int SUMS>
  static void add_half(const LowRankTerm& term) {
    for (int64_t i = 0; i < term.blocks(); i++) {
      _tile_loadd(6, term.rows(i), 4 * LANES);
      _tile_loadd(7, term.units(i), 4 * LANES);
      multiply_to<SUMS>();
    }
  }

  // Tile SUMS += tile 6 · tile 7; the intrinsics need a literal.
  template <int SUMS>
  static void multiply_to() {
    if (SUMS == 0) _tile_dpbf16ps(0, 6, 7);
    if (SUMS == 1) _tile_dpbf16ps(1, 6, 7);
    if (SUMS == 2) _tile_dpbf16ps(2, 6, 7);
    if (SUMS == 3) _tile_dpbf16ps(3, 6, 7);
    if (SUMS == 4) _tile_dpbf16ps(4, 6, 7);
    if (SUMS == 5) _tile_dpbf16ps(5, 6, 7);
  }
};

// Bit-identical to a tile's result for one row, by vectors: the products of even and of odd inputs are summed
// separately over 16 units, from zero, and then both sums are added (SDM vol. 2, TDPBF16PS). A single row is
// bandwidth-bound, and vectors read faster than tiles.
struct SingleRow {
  static constexpr int64_t ROWS = 1;
  static constexpr int64_t PANELS = 3;

  static F16 even(U16 x) { return {_mm512_castsi512_ps(_mm512_slli_epi32(x, 16))}; }
  static F16 odd(U16 x) { return {_mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32(-65536)))}; }

  template <int HALVES>  // of panels
  static void sums_of(const bf16* x, const uint32_t* w, int64_t next, int64_t units, float* out) {
    F16 total[HALVES];
    for (F16& sum : total) sum = zero();
    for (int64_t u = 0; u < units; u += 16) {
      F16 evens[HALVES], odds[HALVES];
#pragma GCC unroll 8
      for (int i = 0; i < HALVES; i++) evens[i] = odds[i] = zero();
#pragma GCC unroll 2  // with more, the streams would be read one after the other
      for (int64_t k = u; k < u + 16; k++) {
        const U16 unit = same_unit(x + 2 * k);
        const F16 x_even = even(unit), x_odd = odd(unit);
#pragma GCC unroll 8
        for (int i = 0; i < HALVES; i++) {
          const uint32_t* from = w + i / 2 * next + k * PANEL + i % 2 * LANES;
          prefetch_l1(from + NEAR * PANEL);  // without this a single row gets a tenth less bandwidth
          const U16 weights = load_units(from);
          evens[i] = fma(x_even, even(weights), evens[i]);
          odds[i] = fma(x_odd, odd(weights), odds[i]);
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < HALVES; i++) total[i] = total[i] + (evens[i] + odds[i]);
    }
    for (int i = 0; i < HALVES; i++) store(out + i * LANES, total[i]);
  }

  template <class Terms>
  void sums(int64_t panels, const bf16* x, int64_t, const uint32_t* w, int64_t next, int64_t units, float* out, Terms&&) const {
    if (panels == 3) return sums_of<6>(x, w, next, units, out);
    if (panels == 2) return sums_of<4>(x, w, next, units, out);
    sums_of<2>(x, w, next, units, out);
  }
};

// `SingleRow` for compressed panels, which are decompressed in registers.
struct CompressedSingleRow {
  static constexpr int64_t ROWS = 1;
  static constexpr int64_t PANELS = 3;
  const PanelCodebook& book;

  template <int COUNT>
  void sums_of(const bf16* x, const uint32_t* w, int64_t next, int64_t units, float* out) const {
    std::array<CompressedPanelReader, COUNT> readers = readers_of(w, next, std::make_index_sequence<COUNT>());
    F16 total[2 * COUNT];
    for (F16& sum : total) sum = zero();
    for (int64_t u = 0; u < units; u += 16) {
      F16 evens[2 * COUNT], odds[2 * COUNT];
#pragma GCC unroll 8
      for (int i = 0; i < 2 * COUNT; i++) evens[i] = odds[i] = zero();
      for (int64_t k = u; k < u + 16; k += 2) {
        const U16 unit = same_unit(x + 2 * k), later = same_unit(x + 2 * k + 2);
#pragma GCC unroll 4
        for (int p = 0; p < COUNT; p++) {
          for (int64_t line = 0; line < GROUP_BYTES; line += 64) prefetch_l1(readers[p].at() + NEAR_BYTES + line);
          U16 group[GROUP_VECTORS];
          readers[p].next(group);
#pragma GCC unroll 2
          for (int half = 0; half < 2; half++) {
            const int i = 2 * p + half;
            evens[i] = fma(SingleRow::even(unit), SingleRow::even(group[half]), evens[i]);
            odds[i] = fma(SingleRow::odd(unit), SingleRow::odd(group[half]), odds[i]);
            evens[i] = fma(SingleRow::even(later), SingleRow::even(group[2 + half]), evens[i]);
            odds[i] = fma(SingleRow::odd(later), SingleRow::odd(group[2 + half]), odds[i]);
          }
        }
      }
#pragma GCC unroll 8
      for (int i = 0; i < 2 * COUNT; i++) total[i] = total[i] + (evens[i] + odds[i]);
    }
    for (int i = 0; i < 2 * COUNT; i++) store(out + i * LANES, total[i]);
  }

  template <class Terms>
  void sums(int64_t panels, const bf16* x, int64_t, const uint32_t* w, int64_t next, int64_t units, float* out, Terms&&) const {
    if (panels == 3) return sums_of<3>(x, w, next, units, out);
    if (panels == 2) return sums_of<2>(x, w, next, units, out);
    sums_of<1>(x, w, next, units, out);
  }

 private:
  static constexpr int64_t NEAR_BYTES = 1024;

  template <size_t... P>
  std::array<CompressedPanelReader, sizeof...(P)> readers_of(const uint32_t* w, int64_t next, std::index_sequence<P...>) const {
    return {CompressedPanelReader(book, w + P * next)...};
  }
};

}  // namespace quire
