// AMX kernels of products: 32 rows by one panel at a time, four tiles of 16 × 16 sums (Intel SDM vol. 1, ch. 18).
#pragma once
#include "gemm/gemm_tiling.hpp"
#include "low_rank/panel_terms.hpp"

namespace quire {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The intrinsics do not declare what tiles read: of LDTILECFG eight bytes, of TILELOADD none. After this, all that was
// written before is in memory.
inline void write_memory(const void* from) { asm volatile("" : : "r"(from) : "memory"); }

inline void load_config(const TileConfig& config) {
  write_memory(&config);
  _tile_loadconfig(&config);
}

constexpr int64_t AMX_TILE_ROWS = 32;
constexpr int64_t MANY_TILE_ROWS = 49;  // rows of a product from which on it is multiplied in blocks (`gemm_amx_blocks.hpp`)

// A product's rows are divided into tiles: with many rows of equal height, so that each has more than 16.
inline int64_t amx_tiles(int64_t rows) { return (rows + AMX_TILE_ROWS - 1) / AMX_TILE_ROWS; }
// The first row of a tile.
inline int64_t amx_tile_row(int64_t rows, int64_t tile) {
  return rows < MANY_TILE_ROWS ? std::min(rows, tile * AMX_TILE_ROWS) : rows * tile / amx_tiles(rows);
}
// The tile that a row is in.
inline int64_t amx_tile_of(int64_t rows, int64_t row) {
  int64_t tile = row / AMX_TILE_ROWS;
  while (amx_tile_row(rows, tile + 1) <= row) tile++;
  return tile;
}

constexpr int64_t NEAR = 8;  // prefetch distance of a single row's weights in units: 1 KiB in each stream
constexpr int64_t AHEAD = 16 * 16;  // prefetch distance in units: 32 KiB

// Prefetches the weights of one step to the second-level cache; beyond the end this is harmless.
inline void prefetch_units(const uint32_t* w) {
  for (int i = 0; i < 32; i++) prefetch_l2(w + i * LANES);
}

// Prefetches a cache line of weights to the first level: without it a single row gets a tenth less bandwidth.
inline void prefetch_near(const uint32_t* w) { prefetch_l1(w + NEAR * PANEL); }

struct AmxTiles {
  using Row = bf16;
  static constexpr int64_t ROWS = AMX_TILE_ROWS;
  static constexpr TileShape shape(int64_t) { return {ROWS, false, 1 << 20, ROWS}; }
  int64_t configured = 0;

  // Tiles 0-3: sums of the upper and lower 16 rows, left and right 16 outputs; 4, 5: x; 6, 7: weights.
  void configure(int64_t rows) {
    if (configured == rows) return;
    configured = rows;
    const uint8_t upper = static_cast<uint8_t>(std::min<int64_t>(rows, 16));
    const uint8_t lower = static_cast<uint8_t>(rows > 16 ? rows - 16 : 1);
    TileConfig config;
    const uint8_t heights[8] = {upper, upper, lower, lower, upper, lower, 16, 16};
    for (int i = 0; i < 8; i++) {
      config.rows[i] = heights[i];
      config.row_bytes[i] = 64;
    }
    load_config(config);
  }

  // Weights that were not read before are prefetched. between(): called in every step; its vector work costs
  // little beside the tiles.
  template <class Between, class Terms>
  void sums(const GemmTile& tile, int64_t, const bf16* x, int64_t stride, const uint32_t* w, int64_t units, PrefetchQueue& queue,
            float* out, Between&& between, Terms terms) {
    if (tile.count > 16) {
      int64_t ahead = AHEAD;
      return add(tile.count, x, stride, w, units, nullptr, out, queue.next(units), [&] {
        if (tile.fresh) prefetch_units(w + ahead * PANEL);
        ahead += LANES;
        between();
      }, terms);
    }
    configure(tile.count);  // so little computation that no prefetching is needed
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16));
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t u = 0; u < units; u += LANES) {
      _tile_stream_loadd(6, w + u * PANEL, 4 * PANEL);
      _tile_stream_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
      _tile_loadd(4, x + 2 * u, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    for (const PanelTerm& term : terms) add_term<false>(term);
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
  }

  // Adds the products of 17 to 32 rows to the sums at `before` (null: to zero). later: prefetched to the second-level cache.
  template <class Between, class Terms>
  void add(int64_t rows, const bf16* x, int64_t stride, const uint32_t* w, int64_t units, const float* before, float* out,
           PrefetchStream later, Between&& between, Terms terms) {
    configure(rows);
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16)), ahead = later.step * LANES;
    if (before) {
      _tile_stream_loadd(0, before, 4 * PANEL);
      _tile_stream_loadd(1, before + LANES, 4 * PANEL);
      _tile_stream_loadd(2, before + 16 * PANEL, 4 * PANEL);
      _tile_stream_loadd(3, before + 16 * PANEL + LANES, 4 * PANEL);
    } else {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    for (int64_t u = 0; u < units; u += LANES) {
      _tile_stream_loadd(6, w + u * PANEL, 4 * PANEL);
      _tile_loadd(4, x + 2 * u, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
      _tile_dpbf16ps(1, 4, 7);
      _tile_loadd(5, x + 16 * stride + 2 * u, bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
      for (int64_t i = 0; i < ahead; i += 64) prefetch_l2(later.at + u * later.step + i);
      between();
    }
    for (const PanelTerm& term : terms) add_term<true>(term);
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
    _tile_stored(2, out + 16 * PANEL, 4 * PANEL);
    _tile_stored(3, out + 16 * PANEL + LANES, 4 * PANEL);
  }

 private:
  template <bool LOWER>
  static void add_term(const PanelTerm& term) {
    for (int64_t i = 0; i < term.left.blocks(); i++) {
      _tile_stream_loadd(6, term.left.units(i), 4 * LANES);
      _tile_loadd(4, term.left.rows(i), 4 * LANES);
      _tile_dpbf16ps(0, 4, 6);
      if (LOWER) _tile_loadd(5, term.left.rows(i) + 16 * INPUT_STEP, 4 * LANES);
      if (LOWER) _tile_dpbf16ps(2, 5, 6);
    }
    for (int64_t i = 0; i < term.right.blocks(); i++) {
      _tile_stream_loadd(7, term.right.units(i), 4 * LANES);
      _tile_loadd(4, term.right.rows(i), 4 * LANES);
      _tile_dpbf16ps(1, 4, 7);
      if (LOWER) _tile_loadd(5, term.right.rows(i) + 16 * INPUT_STEP, 4 * LANES);
      if (LOWER) _tile_dpbf16ps(3, 5, 7);
    }
  }
};

// At most 16 rows by up to three panels at a time: six tiles of sums, and three streams of weights.
struct FewRowTiles {
  static constexpr int64_t ROWS = 16;
  static constexpr int64_t PANELS = 3;

  explicit FewRowTiles(int64_t rows) {
    TileConfig config;
    for (int i = 0; i < 8; i++) {
      config.rows[i] = static_cast<uint8_t>(i == 7 ? 16 : rows);
      config.row_bytes[i] = 64;
    }
    load_config(config);
  }

  // Tiles 0-5: sums; 6: x; 7: weights. A tile's number must be a constant. terms(i): those of panel i.
  template <class Terms>
  void sums(int64_t panels, const bf16* x, int64_t stride, const uint32_t* w, int64_t units, float* out, Terms&& terms) const {
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16)), next = units * PANEL;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t u = 0; u < units; u += 16) {
      const uint32_t* from = w + u * PANEL;
      _tile_loadd(6, x + 2 * u, bytes);
      _tile_loadd(7, from, 4 * PANEL);
      _tile_dpbf16ps(0, 6, 7);
      _tile_loadd(7, from + LANES, 4 * PANEL);
      _tile_dpbf16ps(1, 6, 7);
      if (panels == 1) continue;
      _tile_loadd(7, from + next, 4 * PANEL);
      _tile_dpbf16ps(2, 6, 7);
      _tile_loadd(7, from + next + LANES, 4 * PANEL);
      _tile_dpbf16ps(3, 6, 7);
      if (panels == 2) continue;
      _tile_loadd(7, from + 2 * next, 4 * PANEL);
      _tile_dpbf16ps(4, 6, 7);
      _tile_loadd(7, from + 2 * next + LANES, 4 * PANEL);
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
  static void sums_of(const bf16* x, const uint32_t* w, int64_t units, float* out) {
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
          const uint32_t* from = w + (i / 2 * units + k) * PANEL + i % 2 * LANES;
          prefetch_near(from);
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
  void sums(int64_t panels, const bf16* x, int64_t, const uint32_t* w, int64_t units, float* out, Terms&&) const {
    if (panels == 3) return sums_of<6>(x, w, units, out);
    if (panels == 2) return sums_of<4>(x, w, units, out);
    sums_of<2>(x, w, units, out);
  }
};

}  // namespace quire
