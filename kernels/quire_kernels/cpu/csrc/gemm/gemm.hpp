// Products with a packed matrix: y = x · wᵀ + bias, for one row or thousands.
//
// Every output is one sum in a fixed order: a row's result is bit-identical for any number of rows. AMX tiles sum in
// another order than vectors, so there a single row is summed as tiles do (`gemm/amx/few_rows.hpp`).
#pragma once
#include <algorithm>

#include "gemm/packed.hpp"
#include "gemm/gemm_compressed.hpp"
#include "gemm/gemm_tiling.hpp"
#include "gemm/gemm_groups.hpp"
#include "gemm/gemm_epilogue.hpp"
#include "gemm/gemm_vector.hpp"
#include "low_rank/panel_terms.hpp"
#include "rowwise.hpp"
#include "scratch.hpp"
#include "thread_team.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "gemm/amx/blocks.hpp"
#include "gemm/amx/few_rows.hpp"
#endif

namespace quire {

// x [rows, inputs] with `stride` elements between rows.
template <class T, class Tiles, class Terms = NoTerms>
void multiply_with(Worker& worker, Tiles tiles, const T* x, int64_t stride, int64_t rows, const Packed& w,
                   const GemmOutput& to, PrefetchQueue& queue, const Terms& terms = {}) {
  if (rows == 0) return;
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>;
  alignas(64) float sums[2][Tiles::ROWS * PANEL];
  Epilogue<T> epilogue;  // of the previous sums
  int current = 0;
  // rows whose epilogue runs in each step of the next sums
  const int64_t epilogue_rows = (Tiles::ROWS * INPUT_STEP + inputs - 1) / inputs;
  const int64_t row_bytes = inputs * static_cast<int64_t>(sizeof(T));
  const GemmTiling tiling(worker, Tiles::shape(row_bytes), rows, row_bytes, w, units);
  queue.spread(tiling.units_of_each(worker));
  KernelRows<typename Tiles::Row, T> prepared(x, stride, w.inputs, tiling.block_rows());
  tiling.each_tile(worker, [&](const GemmTile& tile) {
    const auto some = prepared.of(tile.row, tile.count, tile.fresh);
    for (int64_t panel = tile.first; panel < tile.last; panel++) {
      tiles.sums(tile, panel, some.base, some.stride, w.panel(panel, units), units, queue,
                 sums[current], [&] { epilogue.some(epilogue_rows); },
                 terms.of(tile.row / Tiles::ROWS, panel));
      terms.add_rows(tile.row / Tiles::ROWS, panel, sums[current]);
      epilogue.rest();
      epilogue = Epilogue<T>(w, to, panel, tile.row, tile.count, sums[current]);
      current = 1 - current;
    }
  });
  epilogue.rest();
}

// `multiply_with` for so many rows that reading the weights takes little of the time.
template <class T, class Tiles>
void multiply_many(Worker& worker, const Tiles& tiles, const T* x, int64_t stride, int64_t rows, const Packed& w,
                   const GemmOutput& to, PrefetchQueue& queue) {
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>, panel_words = units * Tiles::UNIT_WORDS;
  const int64_t row_bytes = stride * static_cast<int64_t>(sizeof(T));
  alignas(64) float sums[Tiles::ROWS * PANEL];
  const uint32_t* weights = nullptr;
  const GemmGroups groups(worker, rows, Tiles::ROWS, w, units, panel_words * 4);
  queue.spread(groups.units_of_each(worker), groups.pace_of_panels());
  const auto begin = [&](int64_t first, int64_t last) { weights = tiles.group(w, first, last, units); };
  groups.each_tile(worker, begin, [&](const GroupTile& tile) {
    const T *first = x + tile.row * stride, *after = first + tile.count * stride;
    const auto some = tile_rows<typename Tiles::Row>(first, stride, tile.count, w.inputs);
    each_panel(tile, after, tile.count * row_bytes, units, queue, [&](int64_t panel, PrefetchStream next, PrefetchStream later) {
      prefetch_outputs<T>(w, to, panel, tile.row, tile.count);
      tiles.group_sums(tile.count, some.base, some.stride, weights + (panel - tile.first) * panel_words, units, sums, next, later);
      apply_epilogue<T>(w, to, panel, tile.row, tile.count, sums);
    });
  });
}

// `multiply_with` for so few rows that reading the weights takes all the time: each thread reads several panels at
// once, because several streams get more bandwidth than one.
template <class T, class Kernel, class Terms = NoTerms>
void multiply_few(Worker& worker, const Kernel& kernel, const T* x, int64_t stride, int64_t rows, const Packed& w,
                  const GemmOutput& to, const Terms& terms = {}) {
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>;
  const auto some = tile_rows<T>(x, stride, rows, w.inputs);
  alignas(64) float sums[Kernel::PANELS * Kernel::ROWS * PANEL];
  worker.each_few(w.panels(), Kernel::PANELS, [&](int64_t first, int64_t panels) {
    kernel.sums(panels, some.base, some.stride, w.panel(first, units), w.panel_bytes(units) / 4, units, sums,
                [&](int64_t i) { return terms.of(0, first + i); });
    for (int64_t i = 0; i < panels; i++) {
      float* panel = sums + i * Kernel::ROWS * PANEL;
      terms.add_rows(0, first + i, panel);
      apply_epilogue<T>(w, to, first + i, 0, rows, panel);
    }
  });
}

constexpr int64_t PANELS_AT_ONCE = VectorRow<float>::PANELS;

// Part h of a row of y = matrix h of w · part h of the row of x, for matrices of one shape, which stand one after
// another in w.
template <class T>
void multiply_heads(Worker& worker, const Rows<T>& x, int64_t rows, const Packed& w, const Rows<T>& y) {
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>, panels = w.panels();
  const int64_t groups = (panels + PANELS_AT_ONCE - 1) / PANELS_AT_ONCE;
  const VectorRow<T> kernel;
  worker.each(x.parts * groups, [&](int64_t i) {
    alignas(64) float sums[PANELS_AT_ONCE * PANEL];
    const int64_t head = i / groups, first = i % groups * PANELS_AT_ONCE, some = std::min(PANELS_AT_ONCE, panels - first);
    const uint32_t* matrix = w.units + (head * panels + first) * units * PANEL;
    for (int64_t r = 0; r < rows; r++) {
      kernel.sums(some, tile_rows<T>(x.row(r, head), 0, 1, w.inputs).base, 0, matrix, units * PANEL, units, sums, NoTerms{});
      const GemmOutput to{y.row(r, head), 0, nullptr, EpilogueKind::plain, Act{}, 0};
      for (int64_t j = 0; j < some; j++) apply_epilogue<T>(w, to, first + j, 0, 1, sums + j * PANEL);
    }
  });
}

template <class T>
void multiply(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const GemmOutput& to,
              PrefetchQueue& queue) {
  if constexpr (sizeof(T) == 2)
    if (w.book && rows <= FEW_COMPRESSED_ROWS)
      return multiply_with<T>(worker, CompressedRows{*w.book}, x, stride, rows, w, to, queue);
  if (rows == 1) return multiply_few<T>(worker, VectorRow<T>{}, x, stride, rows, w, to);
#if defined(__x86_64__)
  if constexpr (sizeof(T) == 2)
    if (w.book && rows >= MANY_ROWS) {
      if (WidenedTiles::pays(padded(w.inputs, INPUT_STEP) / PER_UNIT<T>))
        return multiply_many<T>(worker, WidenedTiles{*w.book}, x, stride, rows, w, to, queue);
      return multiply_many<T>(worker, CompressedTiles{*w.book}, x, stride, rows, w, to, queue);
    }
  if (!w.book && rows >= MANY_ROWS) return multiply_many<T>(worker, VectorTiles<T>{}, x, stride, rows, w, to, queue);
#endif
  if constexpr (sizeof(T) == 2)
    if (w.book) return multiply_with<T>(worker, CompressedTiles{*w.book}, x, stride, rows, w, to, queue);
  multiply_with<T>(worker, VectorTiles<T>{}, x, stride, rows, w, to, queue);
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
template <class Terms>
void multiply_tiles(Worker& worker, const bf16* x, int64_t stride, int64_t rows, const Packed& w, const GemmOutput& to,
                    PrefetchQueue& queue, const Terms& terms) {
  const auto few_or_some = [&](auto weights) {
    using Few = FewRowTiles<decltype(weights)>;
    if (rows <= Few::ROWS) return multiply_few<bf16>(worker, Few(rows, weights), x, stride, rows, w, to, terms);
    multiply_with<bf16>(worker, AmxTilesOf<decltype(weights)>{weights}, x, stride, rows, w, to, queue, terms);
  };
  if (rows == 0) return;
  if (rows == 1 && w.book) return multiply_few<bf16>(worker, CompressedSingleRow{*w.book}, x, stride, rows, w, to, terms);
  if (rows == 1) return multiply_few<bf16>(worker, SingleRow{}, x, stride, rows, w, to, terms);
  if (rows >= MANY_TILE_ROWS)
    multiply_blocks(worker, x, stride, rows, w, to, queue.after(), terms);
  else if (w.book)
    few_or_some(CompressedWeights{w.book});
  else
    few_or_some(PlainWeights{});
  _tile_release();
}

template <>
inline void multiply<bf16>(Worker& worker, const bf16* x, int64_t stride, int64_t rows, const Packed& w,
                           const GemmOutput& to, PrefetchQueue& queue) {
  multiply_tiles(worker, x, stride, rows, w, to, queue, NoTerms{});
}
#endif

}  // namespace quire
