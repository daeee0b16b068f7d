// Lines of an attention tile in AMX tiles, 32 lines at a time.
#pragma once
#include "product_amx.hpp"

namespace quire {

constexpr int64_t FEWEST_AMX_LINES = 8;

struct AmxLines {
  static constexpr bool COPIES = true;

  AmxLines() {
    TileConfig config;
    for (int i = 0; i < 8; i++) {
      config.rows[i] = 16;
      config.row_bytes[i] = 64;
    }
    _tile_loadconfig(&config);
  }

  // lines is a multiple of 32
  void scores(const bf16* q, int64_t lines, int64_t dim, const Block<bf16>& block, float* scores) {
    const int64_t bytes = dim * static_cast<int64_t>(sizeof(bf16));
    constexpr int64_t row = BLOCK * sizeof(float);
    for (int64_t l = 0; l < lines; l += 32) {
      const bf16 *upper = q + l * dim, *lower = upper + 16 * dim;
      float* out = scores + l * BLOCK;
      for (int g = 0; g < block.groups(); g += 2) {
        const bool two = g + 1 < block.groups();
        const bf16 *left = block.keys[g], *right = block.keys[two ? g + 1 : g];
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t d = 0; d < dim; d += 32) {
          _tile_loadd(4, upper + d, bytes);
          _tile_loadd(6, left + d * GROUP, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, right + d * GROUP, 64);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, lower + d, bytes);
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, out + g * GROUP, row);
        _tile_stored(2, out + 16 * BLOCK + g * GROUP, row);
        if (!two) continue;
        _tile_stored(1, out + (g + 1) * GROUP, row);
        _tile_stored(3, out + 16 * BLOCK + (g + 1) * GROUP, row);
      }
    }
  }

  // values of a block lie one after the other: [BLOCK / 2][stride] units
  void values(const bf16* weights, int64_t lines, const Block<bf16>& block, int64_t stride, float* out) {
    const bf16* values = block.values[0];
    const int64_t row = stride * static_cast<int64_t>(sizeof(float));
    for (int64_t l = 0; l < lines; l += 32) {
      const bf16 *upper = weights + l * BLOCK, *lower = upper + 16 * BLOCK;
      for (int64_t d = 0; d < stride; d += 32) {
        float *first = out + l * stride + d, *second = first + 16 * stride;
        _tile_loadd(0, first, row);
        _tile_loadd(1, first + LANES, row);
        _tile_loadd(2, second, row);
        _tile_loadd(3, second + LANES, row);
        for (int p = 0; p < block.count; p += 32) {
          const bf16* v = values + (p / 2 * stride + d) * 2;
          _tile_loadd(4, upper + p, BLOCK * sizeof(bf16));
          _tile_loadd(6, v, row);
          _tile_dpbf16ps(0, 4, 6);
          _tile_loadd(7, v + 2 * LANES, row);
          _tile_dpbf16ps(1, 4, 7);
          _tile_loadd(5, lower + p, BLOCK * sizeof(bf16));
          _tile_dpbf16ps(2, 5, 6);
          _tile_dpbf16ps(3, 5, 7);
        }
        _tile_stored(0, first, row);
        _tile_stored(1, first + LANES, row);
        _tile_stored(2, second, row);
        _tile_stored(3, second + LANES, row);
      }
    }
  }
};

}  // namespace quire
