// Products with a packed matrix: y = x · wᵀ + bias, for one row or thousands.
//
// Every output is one sum in an order that depends on nothing else: a row's result is the same to the last bit, whatever
// the number of rows; but AMX tiles (`product_amx.hpp`), which take over from the second row on, sum in another order than
// vectors do.
#pragma once
#include <algorithm>

#include "packed.hpp"
#include "product_compact.hpp"
#include "product_cut.hpp"
#include "product_finish.hpp"
#include "product_vector.hpp"
#include "room.hpp"
#include "team.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "product_amx.hpp"
#endif

namespace quire {

// `rows` rows of x, made as wide as the panels are.
template <class T>
const T* widened(const T* x, int64_t stride, int64_t rows, int64_t inputs, int64_t width) {
  static thread_local Room<T> copy;
  copy.fit(rows * width);
  std::fill_n(copy.data(), rows * width, T{});
  for (int64_t r = 0; r < rows; r++) std::memcpy(copy.data() + r * width, x + r * stride, inputs * sizeof(T));
  return copy.data();
}

// x [rows, inputs] with `stride` elements between rows.
template <class T, class Tiles>
void multiply_with(Worker& worker, Tiles tiles, const T* x, int64_t stride, int64_t rows, const Packed& w,
                   const Target& to, Soon& soon) {
  if (rows == 0) return;
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>;
  const bool exact = inputs == w.inputs;
  alignas(64) float sums[2][Tiles::ROWS * PANEL];
  Finisher<T> finisher;  // of the sums before
  int turn = 0;
  const int64_t share = (Tiles::ROWS * INPUT_STEP + inputs - 1) / inputs;  // rows to be finished in a step of the next
  const int64_t row_bytes = inputs * static_cast<int64_t>(sizeof(T));
  const ProductCut cut(worker, Tiles::shape(row_bytes), rows, row_bytes, w, units);
  soon.spread(cut.units_of_each(worker));
  cut.each_tile(worker, [&](const ProductTile& tile) {
    const T* some = x + tile.row * stride;
    if (!exact) some = widened(some, stride, tile.count, w.inputs, inputs);
    for (int64_t panel = tile.first; panel < tile.last; panel++) {
      tiles.sums(tile, panel, some, exact ? stride : inputs, w.panel(panel, units), units, soon,
                 sums[turn], [&] { finisher.some(share); });
      finisher.rest();
      finisher = Finisher<T>(w, to, panel, tile.row, tile.count, sums[turn]);
      turn = 1 - turn;
    }
  });
  finisher.rest();
}

// The same for so few rows that reading the weights takes all the time: each thread reads several panels at once, for
// memory gives more to several streams than to one.
template <class T, class Kernel>
void multiply_few(Worker& worker, const Kernel& kernel, const T* x, int64_t stride, int64_t rows, const Packed& w,
                  const Target& to) {
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>;
  const bool exact = inputs == w.inputs;
  const T* wide = exact ? x : widened(x, stride, rows, w.inputs, inputs);
  alignas(64) float sums[Kernel::PANELS * Kernel::ROWS * PANEL];
  worker.each_few(w.panels(), Kernel::PANELS, [&](int64_t first, int64_t panels) {
    kernel.sums(panels, wide, exact ? stride : inputs, w.units + first * units * PANEL, units, sums);
    for (int64_t i = 0; i < panels; i++) finish<T>(w, to, first + i, 0, rows, sums + i * Kernel::ROWS * PANEL);
  });
}

template <class T>
void multiply(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const Target& to,
              Soon& soon) {
  if constexpr (sizeof(T) == 2)
    if (w.book) return multiply_with<T>(worker, CompactTiles{*w.book}, x, stride, rows, w, to, soon);
  if (rows == 1) return multiply_few<T>(worker, VectorRow<T>{}, x, stride, rows, w, to);
  multiply_with<T>(worker, VectorTiles<T>{}, x, stride, rows, w, to, soon);
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
template <>
inline void multiply<bf16>(Worker& worker, const bf16* x, int64_t stride, int64_t rows, const Packed& w,
                           const Target& to, Soon& soon) {
  if (rows == 0) return;
  if (rows == 1) return multiply_few<bf16>(worker, SingleRow{}, x, stride, rows, w, to);
  if (rows <= FewRowTiles::ROWS)
    multiply_few<bf16>(worker, FewRowTiles{rows}, x, stride, rows, w, to);
  else
    multiply_with<bf16>(worker, AmxTiles{}, x, stride, rows, w, to, soon);
  _tile_release();
}
#endif

}  // namespace quire
