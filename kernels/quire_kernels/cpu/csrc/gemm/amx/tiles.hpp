// AMX kernels of products: 32 rows by one panel at a time, four tiles of 16 × 16 sums (Intel SDM vol. 1, ch. 18).
#pragma once
#include "gemm/amx/weight_steps.hpp"
#include "gemm/gemm_tiling.hpp"
#include "low_rank/panel_terms.hpp"

namespace quire {

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, unused[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

inline void load_config(const TileConfig& config) {
  write_memory(&config);
  _tile_loadconfig(&config);
}

constexpr int64_t AMX_TILE_ROWS = 32;
constexpr int64_t MANY_TILE_ROWS = 49;  // rows of a product from which on it is multiplied in blocks (`gemm/amx/blocks.hpp`)

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

template <class Weights>
struct AmxTilesOf {
  using Row = bf16;
  static constexpr int64_t ROWS = AMX_TILE_ROWS;
  static constexpr TileShape shape(int64_t) { return {ROWS, false, 1 << 20, ROWS}; }
  Weights weights{};
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
  void sums(const GemmTile& tile, int64_t panel, const bf16* x, int64_t stride, const uint32_t* w, int64_t units, PrefetchQueue& queue,
            float* out, Between&& between, Terms terms) {
    auto steps = weights.steps_of(tile, panel, w, units);
    if (tile.count > 16) {
      int64_t unit = 0;
      return add(tile.count, x, stride, steps, units, nullptr, out, queue.next(units), [&] {
        if (tile.fresh) weights.prefetch(w, unit);
        unit += LANES;
        between();
      }, terms);
    }
    configure(tile.count);  // so little computation that no prefetching is needed
    const int64_t bytes = stride * static_cast<int64_t>(sizeof(bf16));
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t u = 0; u < units; u += LANES) {
      const uint32_t* from = steps.next();
      _tile_stream_loadd(6, from, 4 * PANEL);
      _tile_stream_loadd(7, from + LANES, 4 * PANEL);
      _tile_loadd(4, x + 2 * u, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
    }
    for (const PanelTerm& term : terms) add_term<false>(term);
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
  }

  // Adds the products of 17 to 32 rows to the sums at `before` (null: to zero). later: prefetched to the second-level cache.
  template <class Steps, class Between, class Terms>
  void add(int64_t rows, const bf16* x, int64_t stride, Steps& steps, int64_t units, const float* before, float* out,
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
      const uint32_t* from = steps.next();
      _tile_stream_loadd(6, from, 4 * PANEL);
      _tile_loadd(4, x + 2 * u, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, from + LANES, 4 * PANEL);
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

using AmxTiles = AmxTilesOf<PlainWeights>;

}  // namespace quire
