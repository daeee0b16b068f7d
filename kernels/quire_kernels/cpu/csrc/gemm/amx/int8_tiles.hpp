// AMX kernel of int8 products: 32 rows of signed bytes by one panel of unsigned bytes (Intel SDM vol. 1, ch. 18).
#pragma once
#include "gemm/amx/tiles.hpp"

namespace quire {

constexpr int64_t MIN_AMX_ROWS = 4;  // fewer are faster with vectors

struct AmxByteTiles {
  static constexpr int64_t ROWS = 32;
  static constexpr TileShape shape(int64_t row_bytes) { return AmxTiles::shape(row_bytes); }
  AmxTiles tiles;  // with the same tile configuration

  void sums(const GemmTile& tile, int64_t, const int8_t* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue&, int32_t* out) {
    const int64_t rows = tile.count;
    tiles.configure(rows);
    _tile_zero(0);
    _tile_zero(1);
    if (rows <= 16) {
      for (int64_t u = 0; u < units; u += 16) {
        _tile_loadd(6, w + u * PANEL, 4 * PANEL);
        _tile_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
        _tile_loadd(4, x + 4 * u, stride);
        _tile_dpbsud(0, 4, 6);
        _tile_dpbsud(1, 4, 7);
      }
    } else {
      _tile_zero(2);
      _tile_zero(3);
      for (int64_t u = 0; u < units; u += 16) {
        _tile_loadd(6, w + u * PANEL, 4 * PANEL);
        _tile_loadd(4, x + 4 * u, stride);
        _tile_dpbsud(0, 4, 6);
        _tile_loadd(7, w + u * PANEL + LANES, 4 * PANEL);
        _tile_dpbsud(1, 4, 7);
        _tile_loadd(5, x + 16 * stride + 4 * u, stride);
        _tile_dpbsud(2, 5, 6);
        _tile_dpbsud(3, 5, 7);
      }
      _tile_stored(2, out + 16 * PANEL, 4 * PANEL);
      _tile_stored(3, out + 16 * PANEL + LANES, 4 * PANEL);
    }
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
  }
};

}  // namespace quire
