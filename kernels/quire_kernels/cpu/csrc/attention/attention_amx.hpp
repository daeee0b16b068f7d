// AMX kernels of attention: 32 lines at a time, or up to 16.
#pragma once
#include "attention/attention_block.hpp"
#include "gemm/amx/tiles.hpp"

namespace quire {

struct AmxLines {
  static constexpr bool COPIES = true, BYTES = false, PREFETCHES_BY_HEAD = false, HAS_HEIGHT = false, BANDS = false;

  AmxLines() {
    TileConfig config;
    for (int i = 0; i < 8; i++) {
      config.rows[i] = 16;
      config.row_bytes[i] = 64;
    }
    load_config(config);
  }

  // lines must be a multiple of 32.
  void scores(Scratch<bf16>& mine, int64_t at, int64_t lines, int64_t dim, const Block<bf16>& block, float* scores) {
    const bf16* q = mine.q.data() + at * dim;
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
          _tile_stream_loadd(6, left + d * GROUP, 64);
          _tile_dpbf16ps(0, 4, 6);
          _tile_stream_loadd(7, right + d * GROUP, 64);
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

  // Prefetches a part of what `values` reads, during the softmax of line `l` of a strip: beside tiles prefetching would
  // delay them.
  static void prefetch_values(const Block<bf16>& block, int64_t l, int64_t stride) {
    constexpr int64_t ROWS = BLOCK / STRIP, LINE = 64 / sizeof(bf16);
    const bf16* values = block.values[0] + l * ROWS * stride;
    for (int64_t i = 0; i < ROWS * stride; i += LINE) prefetch_l1(values + i);
  }

  // The values of a block are contiguous: [BLOCK / 2][stride] units.
  void values(const bf16* weights, const float*, int64_t lines, const Block<bf16>& block, int64_t stride, float* out) {
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
          _tile_stream_loadd(6, v, row);
          _tile_dpbf16ps(0, 4, 6);
          _tile_stream_loadd(7, v + 2 * LANES, row);
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

// For at most 16 lines, as when each seq computes one token: tiles are as high as present are lines, and values are
// read in offset from the pages, 16 positions at a time. Reading keys and values takes nearly all the time.
struct FewAmxLines {
  static constexpr int64_t MAX = 16;
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = true, HAS_HEIGHT = true, BANDS = false;
  int64_t height = 0;

  explicit FewAmxLines(int64_t lines) { set_height(lines); }

  // Tiles 0-3: sums; 4: queries; 5: keys; 6: weights of 16 positions; 7: their values.
  void set_height(int64_t lines) {
    if (lines == height) return;
    height = lines;
    TileConfig config;
    for (int i = 0; i < 8; i++) {
      config.rows[i] = static_cast<uint8_t>(lines);
      config.row_bytes[i] = 64;
    }
    config.rows[5] = 16;
    config.row_bytes[6] = GROUP * sizeof(bf16);
    config.rows[7] = GROUP / 2;
    load_config(config);
  }

  // Keys of missing groups repeat the last one, so that each tile has its group.
  void scores(Scratch<bf16>& mine, int64_t at, int64_t, int64_t dim, const Block<bf16>& block, float* scores) const {
    const bf16* q = mine.q.data() + at * dim;
    const bf16* keys[GROUPS];
    for (int g = 0; g < GROUPS; g++) keys[g] = block.keys[std::min(g, block.groups() - 1)];
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < dim; d += 32) {
      _tile_loadd(4, q + d, dim * sizeof(bf16));
      _tile_loadd(5, keys[0] + d * GROUP, 64);
      _tile_dpbf16ps(0, 4, 5);
      _tile_loadd(5, keys[1] + d * GROUP, 64);
      _tile_dpbf16ps(1, 4, 5);
      _tile_loadd(5, keys[2] + d * GROUP, 64);
      _tile_dpbf16ps(2, 4, 5);
      _tile_loadd(5, keys[3] + d * GROUP, 64);
      _tile_dpbf16ps(3, 4, 5);
      for (int g = 0; g < GROUPS; g++)
        for (int i = 0; i < GROUP; i++) prefetch_l2(block.next_keys[g] + (d + 2 * i) * GROUP);
    }
    constexpr int64_t row = BLOCK * sizeof(float);
    _tile_stored(0, scores, row);
    _tile_stored(1, scores + GROUP, row);
    _tile_stored(2, scores + 2 * GROUP, row);
    _tile_stored(3, scores + 3 * GROUP, row);
  }

  // `stride` is a multiple of 32, so nothing beyond it is accessed: four vectors at a time, then two.
  void values(const bf16* weights, const float*, int64_t, const Block<bf16>& block, int64_t stride, float* out) const {
    const int64_t row = stride * static_cast<int64_t>(sizeof(float));
    for (int64_t d = 0; d < stride; d += 4 * LANES) {
      const bool four = d + 4 * LANES <= stride;
      float* to = out + d;
      _tile_loadd(0, to, row);
      _tile_loadd(1, to + LANES, row);
      if (four) _tile_loadd(2, to + 2 * LANES, row);
      if (four) _tile_loadd(3, to + 3 * LANES, row);
      for (int g = 0; g < block.groups(); g++) {
        const bf16* v = block.values[g] + 2 * d;
        _tile_loadd(6, weights + g * GROUP, BLOCK * sizeof(bf16));
        _tile_loadd(7, v, row);
        _tile_dpbf16ps(0, 6, 7);
        _tile_loadd(7, v + 2 * LANES, row);
        _tile_dpbf16ps(1, 6, 7);
        for (int u = 0; u < GROUP / 2; u++)
          for (int i = 0; i < 4; i++) prefetch_l2(block.next_values[g] + 2 * (u * stride + d + i * LANES));
        if (!four) continue;
        _tile_loadd(7, v + 4 * LANES, row);
        _tile_dpbf16ps(2, 6, 7);
        _tile_loadd(7, v + 6 * LANES, row);
        _tile_dpbf16ps(3, 6, 7);
      }
      _tile_stored(0, to, row);
      _tile_stored(1, to + LANES, row);
      if (four) _tile_stored(2, to + 2 * LANES, row);
      if (four) _tile_stored(3, to + 3 * LANES, row);
    }
  }
};

}  // namespace quire
