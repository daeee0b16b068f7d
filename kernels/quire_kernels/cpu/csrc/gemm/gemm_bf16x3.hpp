// Float32 products in AMX tiles, which take bfloat16: every number is the sum of three bfloat16, each the rounded
// remainder of the previous ones, so that all 24 bits are kept (Henry, Tang & Heinecke 2019). Of the nine products
// of parts the six largest are summed; the others are below 2^-24 of the result.
//
// A thread splits the rows of x that it works on: [16 rows][step of 32 inputs][part][row][32]; w is a bfloat16
// matrix with inputs [step][part][32]. A row's sums have the same order for any number of rows. Small parts of
// numbers below 2^-100 are lost, and infinity gives NaN.
#pragma once
#include "gemm/gemm.hpp"

namespace quire {

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)

constexpr int64_t PARTS = 3;
constexpr int64_t SPLIT_BLOCK_BYTES = 1200 << 10;  // of x, to stay in a core's second-level cache beside the panels
constexpr int64_t WIDE_PANEL_BYTES = 150 << 10;    // panels of this size are processed one at a time

struct SplitRows {
  bf16* base;
  int64_t inputs;  // padded

  // The tile of the 16 rows that begin with `row`; at the end there are fewer, `count`.
  bf16* tile(int64_t row, int64_t count, int64_t step, int64_t part) const {
    return base + row * inputs * PARTS + (step * PARTS + part) * count * INPUT_STEP;
  }
};

inline void split_row(const float* x, int64_t inputs, const SplitRows& to, int64_t row, int64_t count, int64_t position) {
  for (int64_t i = 0; i < to.inputs; i += INPUT_STEP) {
    const int n0 = static_cast<int>(std::clamp<int64_t>(inputs - i, 0, LANES));
    const int n1 = static_cast<int>(std::clamp<int64_t>(inputs - i - LANES, 0, LANES));
    F16 a = get(x + i, n0), b = n1 ? get(x + i + LANES, n1) : zero();
    for (int64_t part = 0; part < PARTS; part++) {
      store(to.tile(row, count, i / INPUT_STEP, part) + position * INPUT_STEP, a, b);
      a = a - rounded<bf16>(a), b = b - rounded<bf16>(b);
    }
  }
}

// Sums of up to 32 rows and one panel.
struct SplitTiles {
  static constexpr int64_t ROWS = 32;
  AmxTiles tiles;  // with the same tile configuration

  // The smallest products are summed first. From one pair of parts to the next only one of the two is loaded,
  // each tile as queue as its old content is no longer needed.
  template <class Between>
  void sums(int64_t rows, const SplitRows& x, int64_t row, const uint32_t* w, float* out, Between&& between) {
    tiles.configure(rows);
    const int64_t upper = std::min<int64_t>(rows, 16), lower = rows - upper, steps = x.inputs / INPUT_STEP;
    const auto upper_x = [&](int64_t step, int part) { _tile_loadd(4, x.tile(row, upper, step, part), 2 * INPUT_STEP); };
    const auto lower_x = [&](int64_t step, int part) {
      if (lower) _tile_loadd(5, x.tile(row + 16, lower, step, part), 2 * INPUT_STEP);
    };
    const auto left_w = [&](int64_t step, int part) { _tile_loadd(6, w + (step * PARTS + part) * 16 * PANEL, 4 * PANEL); };
    const auto right_w = [&](int64_t step, int part) {
      _tile_loadd(7, w + (step * PARTS + part) * 16 * PANEL + LANES, 4 * PANEL);
    };
    const auto other_x = [&](int64_t step, int part) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      upper_x(step, part);
      if (lower) _tile_dpbf16ps(2, 5, 6);
      if (lower) _tile_dpbf16ps(3, 5, 7);
      lower_x(step, part);
    };
    const auto other_w = [&](int64_t step, int part) {
      _tile_dpbf16ps(0, 4, 6);
      if (lower) _tile_dpbf16ps(2, 5, 6);
      left_w(step, part);
      _tile_dpbf16ps(1, 4, 7);
      if (lower) _tile_dpbf16ps(3, 5, 7);
      right_w(step, part);
    };
    _tile_zero(0);
    _tile_zero(1);
    if (lower) _tile_zero(2);
    if (lower) _tile_zero(3);
    left_w(0, 0);
    upper_x(0, 2);
    right_w(0, 0);
    lower_x(0, 2);
    for (int64_t step = 0; step < steps; step++) {
      const int64_t next = std::min(step + 1, steps - 1);
      other_x(step, 1);
      other_w(step, 1);
      other_x(step, 0);
      between();
      other_w(step, 2);
      other_w(step, 0);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      upper_x(next, 2);
      if (lower) _tile_dpbf16ps(2, 5, 6);
      left_w(next, 0);
      if (lower) _tile_dpbf16ps(3, 5, 7);
      lower_x(next, 2);
      right_w(next, 0);
    }
    _tile_stored(0, out, 4 * PANEL);
    _tile_stored(1, out + LANES, 4 * PANEL);
    if (!lower) return;
    _tile_stored(2, out + 16 * PANEL, 4 * PANEL);
    _tile_stored(3, out + 16 * PANEL + LANES, 4 * PANEL);
  }
};

// Splits rows begin … end-1 of x into memory of this thread.
inline SplitRows split_rows(const float* x, int64_t stride, int64_t inputs, int64_t begin, int64_t end) {
  static thread_local ScratchBuffer<bf16> parts;
  const int64_t width = padded(inputs, INPUT_STEP);
  parts.fit((end - begin) * width * PARTS);
  const SplitRows to{parts.data(), width};
  for (int64_t row = begin; row < end; row++) {
    const int64_t first = (row - begin) / 16 * 16, count = std::min<int64_t>(16, end - begin - first);
    split_row(x + row * stride, inputs, to, first, count, row - begin - first);
  }
  return to;
}

// x [rows, inputs] with `stride` elements between rows.
inline void multiply_split(Worker& worker, const float* x, int64_t stride, int64_t rows, int64_t inputs,
                           const Packed& w, const GemmOutput& to) {
  if (rows == 0) return;
  SplitTiles tiles;
  constexpr int64_t ROWS = SplitTiles::ROWS;
  const int64_t all = padded(inputs, INPUT_STEP), units = all * PARTS / 2, panels = w.panels();
  const int64_t most = std::max<int64_t>(1, SPLIT_BLOCK_BYTES / (all * PARTS * 2) / ROWS);
  const int64_t tiles_all = (rows + ROWS - 1) / ROWS, blocks = (tiles_all + most - 1) / most;
  const int64_t block = (tiles_all + blocks - 1) / blocks * ROWS;
  alignas(64) float sums[2][ROWS * PANEL];
  Epilogue<float> epilogue;  // of the previous sums
  int current = 0;
  // rows whose epilogue runs in each step of the next sums
  const int64_t epilogue_rows = (ROWS * INPUT_STEP + all - 1) / all;
  const int64_t width = rows > ROWS && units * PANEL * 4 < WIDE_PANEL_BYTES ? 2 : 1, groups = (panels + width - 1) / width;
  int64_t split = -1;  // first row of the block that is split
  SplitRows parts{};
  worker.each(blocks * groups, [&](int64_t item) {
    const int64_t first = item % groups * width, last = std::min(panels, first + width);
    const int64_t begin = item / groups * block, end = std::min(rows, begin + block);
    if (split != begin) parts = split_rows(x, stride, inputs, begin, end);
    split = begin;
    for (int64_t row = begin; row < end; row += ROWS) {
      const int64_t count = std::min<int64_t>(ROWS, end - row);
      for (int64_t panel = first; panel < last; panel++) {
        tiles.sums(count, parts, row - begin, w.units + panel * units * PANEL, sums[current], [&] { epilogue.some(epilogue_rows); });
        epilogue.rest();
        epilogue = Epilogue<float>(w, to, panel, row, count, sums[current]);
        current = 1 - current;
      }
    }
  });
  epilogue.rest();
  _tile_release();
}

#endif

}  // namespace quire
