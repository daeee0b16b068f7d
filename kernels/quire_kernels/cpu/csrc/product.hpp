// Products with a packed matrix: y = x · wᵀ + bias, for one row or thousands.
//
// A matrix w [outputs, inputs] is packed in panels of 32 outputs: [panel][unit][32], a unit being four bytes of
// neighbouring inputs. So a panel is read as one stream, and one load feeds sixteen outputs. Inputs are padded with
// zeros to a multiple of 32 elements, outputs to 32. Every output is one sum in an order that depends on nothing else:
// a row's result is the same to the last bit, whatever the number of rows; but AMX tiles (`product_amx.hpp`), which take
// over from the second row on, sum in another order than vectors do.
#pragma once
#include <algorithm>

#include "act.hpp"
#include "room.hpp"
#include "team.hpp"

namespace quire {

constexpr int PANEL = 32;
constexpr int INPUT_STEP = 32;

inline int64_t padded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// halves: a panel holds 16 outputs of the first half of the matrix and the 16 that stand as far in the second,
// so that whatever joins the two finds both (gate and up of a gated MLP).
struct Packed {
  const uint32_t* units;
  int64_t outputs, inputs;
  int32_t halves;
};

enum class Finish : int32_t { plain, gated };

// What becomes of the sums: y [rows, outputs] of T (or of float, if `wide`); gated: y [rows, outputs / 2] = act(gate) · up.
struct Target {
  void* y;
  int64_t stride;  // elements between rows of y
  const void* bias;
  Finish finish;
  Act act;
  int32_t wide;
};

template <class Y>
inline void put_lanes(Y* row, int64_t at, int64_t end, F16 x) {
  if (at + LANES <= end)
    store(row + at, x);
  else if (at < end)
    store(row + at, x, static_cast<int>(end - at));
}

// Sums of `rows` rows and one panel, [rows][PANEL], to where they go. row: the first one's number.
template <class T>
void finish(const Packed& w, const Target& to, int64_t panel, int64_t row, int64_t rows, const float* sums) {
  const int64_t half = w.outputs / 2;
  const int64_t at0 = w.halves ? panel * LANES : panel * PANEL, at1 = w.halves ? half + at0 : at0 + LANES;
  const int64_t end0 = w.halves ? half : w.outputs, end1 = w.outputs;
  F16 bias0 = zero(), bias1 = zero();
  if (to.bias) {
    const T* bias = static_cast<const T*>(to.bias);
    if (at0 < end0) bias0 = load(bias + at0, static_cast<int>(std::min<int64_t>(LANES, end0 - at0)));
    if (at1 < end1) bias1 = load(bias + at1, static_cast<int>(std::min<int64_t>(LANES, end1 - at1)));
  }
  if (to.finish == Finish::plain && !to.wide && !w.halves && at1 + LANES <= end1) {  // nearly always: a line at once
    T* y = static_cast<T*>(to.y) + row * to.stride + at0;
    for (int64_t r = 0; r < rows; r++)
      store(y + r * to.stride, load(sums + r * PANEL) + bias0, load(sums + r * PANEL + LANES) + bias1);
    return;
  }
  for (int64_t r = 0; r < rows; r++) {
    const F16 s0 = load(sums + r * PANEL) + bias0, s1 = load(sums + r * PANEL + LANES) + bias1;
    if (to.finish == Finish::gated) {
      T* y = static_cast<T*>(to.y) + (row + r) * to.stride;
      put_lanes(y, at0, end0, activate<T>(to.act, rounded<T>(s0)) * rounded<T>(s1));
    } else if (to.wide) {
      float* y = static_cast<float*>(to.y) + (row + r) * to.stride;
      put_lanes(y, at0, end0, s0);
      put_lanes(y, at1, end1, s1);
    } else {
      T* y = static_cast<T*>(to.y) + (row + r) * to.stride;
      put_lanes(y, at0, end0, s0);
      put_lanes(y, at1, end1, s1);
    }
  }
}

// Sums of ROWS rows of x and one panel.
template <class T, int ROWS>
inline void sum_rows(const T* x, int64_t stride, const uint32_t* w, int64_t units, float* sums) {
  F16 acc[ROWS][2];
  for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = zero();
  for (int64_t u = 0; u < units; u++) {
    const U16 w0 = load_units(w + u * PANEL), w1 = load_units(w + u * PANEL + LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      const U16 a = same_unit(x + r * stride + u * PER_UNIT<T>);
      acc[r][0] = dot(acc[r][0], a, w0, T{});
      acc[r][1] = dot(acc[r][1], a, w1, T{});
    }
  }
  for (int r = 0; r < ROWS; r++) {
    store(sums + r * PANEL, acc[r][0]);
    store(sums + r * PANEL + LANES, acc[r][1]);
  }
}

#if defined(__AVX512F__)
constexpr int MOST_ROWS = 12;  // 24 sums, two weights, one x: 27 of 32 registers
#else
constexpr int MOST_ROWS = 2;
#endif

template <class T>
void sum_some(int64_t rows, const T* x, int64_t stride, const uint32_t* w, int64_t units, float* sums) {
  switch (rows) {
    case 1:
      return sum_rows<T, 1>(x, stride, w, units, sums);
    case 2:
      return sum_rows<T, 2>(x, stride, w, units, sums);
#if defined(__AVX512F__)
    case 3:
      return sum_rows<T, 3>(x, stride, w, units, sums);
    case 4:
      return sum_rows<T, 4>(x, stride, w, units, sums);
    case 5:
      return sum_rows<T, 5>(x, stride, w, units, sums);
    case 6:
      return sum_rows<T, 6>(x, stride, w, units, sums);
    case 7:
      return sum_rows<T, 7>(x, stride, w, units, sums);
    case 8:
      return sum_rows<T, 8>(x, stride, w, units, sums);
    case 9:
      return sum_rows<T, 9>(x, stride, w, units, sums);
    case 10:
      return sum_rows<T, 10>(x, stride, w, units, sums);
    case 11:
      return sum_rows<T, 11>(x, stride, w, units, sums);
    case 12:
      return sum_rows<T, 12>(x, stride, w, units, sums);
#endif
  }
}

template <class T>
struct VectorTiles {
  static constexpr int64_t ROWS = MOST_ROWS;
  void sums(int64_t rows, const T* x, int64_t stride, const uint32_t* w, int64_t units, bool, float* out) {
    sum_some<T>(rows, x, stride, w, units, out);
  }
};

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "product_amx.hpp"
#endif

namespace quire {

constexpr int64_t BLOCK_BYTES = 1 << 20;  // of x, kept in a core's second-level cache while panels stream past

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
                   const Target& to) {
  if (rows == 0) return;
  const int64_t inputs = padded(w.inputs, INPUT_STEP), units = inputs / PER_UNIT<T>;
  const int64_t panels = w.halves ? (w.outputs / 2 + LANES - 1) / LANES : (w.outputs + PANEL - 1) / PANEL;
  const int64_t most = std::max<int64_t>(1, BLOCK_BYTES / (inputs * static_cast<int64_t>(sizeof(T))) / Tiles::ROWS);
  const int64_t tiles_all = (rows + Tiles::ROWS - 1) / Tiles::ROWS, blocks = (tiles_all + most - 1) / most;
  const int64_t block = (tiles_all + blocks - 1) / blocks * Tiles::ROWS;
  alignas(64) float sums[Tiles::ROWS * PANEL];
  // with many rows two panels at a time: rows are read half as often, and a line of y is written at once
  const int64_t width = rows > Tiles::ROWS ? 2 : 1, groups = (panels + width - 1) / width;
  worker.each(blocks * groups, [&](int64_t item) {
    const int64_t first = item % groups * width, last = std::min(panels, first + width);
    const int64_t begin = item / groups * block, end = std::min(rows, begin + block);
    for (int64_t row = begin; row < end; row += Tiles::ROWS) {
      const int64_t count = std::min<int64_t>(Tiles::ROWS, end - row);
      const bool exact = inputs == w.inputs;
      const T* some = exact ? x + row * stride : widened(x + row * stride, stride, count, w.inputs, inputs);
      for (int64_t panel = first; panel < last; panel++) {
        tiles.sums(count, some, exact ? stride : inputs, w.units + panel * units * PANEL, units, row == begin, sums);
        finish<T>(w, to, panel, row, count, sums);
      }
    }
  });
}

template <class T>
void multiply(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const Target& to) {
  multiply_with<T>(worker, VectorTiles<T>{}, x, stride, rows, w, to);
}

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
template <>
inline void multiply<bf16>(Worker& worker, const bf16* x, int64_t stride, int64_t rows, const Packed& w,
                           const Target& to) {
  if (rows == 1) return multiply_with<bf16>(worker, SingleRow{}, x, stride, rows, w, to);
  multiply_with<bf16>(worker, AmxTiles{}, x, stride, rows, w, to);
  _tile_release();
}
#endif

// w [outputs, inputs], row after row, into panels; `units` has room for all of them.
template <class T>
void pack(Worker& worker, const T* w, int64_t outputs, int64_t inputs, int halves, uint32_t* units) {
  const int64_t all = padded(inputs, INPUT_STEP), per_panel = all / PER_UNIT<T>;
  const int64_t half = outputs / 2;
  const int64_t panels = halves ? (half + LANES - 1) / LANES : (outputs + PANEL - 1) / PANEL;
  worker.each(panels, [&](int64_t panel) {
    T* out = reinterpret_cast<T*>(units + panel * per_panel * PANEL);
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t at = halves ? panel * LANES + lane % LANES : panel * PANEL + lane;
      const bool there = at < (halves ? half : outputs);
      const T* row = w + (halves && lane >= LANES ? half + at : at) * inputs;
      for (int64_t i = 0; i < all; i++)
        out[(i / PER_UNIT<T> * PANEL + lane) * PER_UNIT<T> + i % PER_UNIT<T>] = there && i < inputs ? row[i] : T{};
    }
  });
}

// One row of the matrix that was packed, [inputs].
template <class T>
void unpack_row(const Packed& w, int64_t output, T* row) {
  const int64_t per_panel = padded(w.inputs, INPUT_STEP) / PER_UNIT<T>, half = w.outputs / 2;
  const bool second = w.halves && output >= half;
  const int64_t at = second ? output - half : output;
  const int64_t panel = w.halves ? at / LANES : at / PANEL;
  const int64_t lane = w.halves ? at % LANES + (second ? LANES : 0) : at % PANEL;
  constexpr int P = PER_UNIT<T>;
  const uint32_t* from = w.units + panel * per_panel * PANEL + lane;
  for (int64_t u = 0; u < w.inputs / P; u++) std::memcpy(row + u * P, from + u * PANEL, 4);
  const int64_t rest = w.inputs % P;
  if (rest) std::memcpy(row + w.inputs - rest, from + w.inputs / P * PANEL, rest * sizeof(T));
}

}  // namespace quire
