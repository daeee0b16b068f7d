// Matrices as products read them.
//
// A matrix w [outputs, inputs] is packed in panels of 32 outputs: [panel][unit][32], a unit being four bytes of
// neighbouring inputs. So a panel is read as one stream, and one load feeds sixteen outputs. Inputs are padded with
// zeros to a multiple of 32 elements, outputs to 32.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>

#include "team.hpp"
#include "vec.hpp"

namespace quire {

constexpr int PANEL = 32;
constexpr int INPUT_STEP = 32;

inline int64_t padded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// What compact panels have in common: their upper bytes, and the bytes before the groups of each.
struct PanelBook {
  uint8_t upper[16];
  int64_t head;
};

// halves: a panel holds 16 outputs of the first half of the matrix and the 16 that stand as far in the second,
// so that whatever joins the two finds both (gate and up of a gated MLP).
// book: of compact panels (`packed_compact.hpp`); null if they are as they are.
struct Packed {
  const uint32_t* units;
  int64_t outputs, inputs;
  int32_t halves;
  const PanelBook* book;

  int64_t panels() const { return halves ? (outputs / 2 + LANES - 1) / LANES : (outputs + PANEL - 1) / PANEL; }
  // Of a panel of so many units.
  int64_t panel_bytes(int64_t count) const { return book ? book->head + count * PANEL * 3 : count * PANEL * 4; }
  const uint32_t* panel(int64_t i, int64_t count) const { return units + i * (panel_bytes(count) / 4); }

  // Which output stands in a lane of a panel; -1: none does.
  int64_t output(int64_t panel, int64_t lane) const {
    const int64_t half = outputs / 2, at = halves ? panel * LANES + lane % LANES : panel * PANEL + lane;
    if (at >= (halves ? half : outputs)) return -1;
    return halves && lane >= LANES ? half + at : at;
  }
  // In which panel and lane an output stands.
  std::pair<int64_t, int64_t> place(int64_t output) const {
    if (!halves) return {output / PANEL, output % PANEL};
    const bool second = output >= outputs / 2;
    const int64_t at = second ? output - outputs / 2 : output;
    return {at / LANES, at % LANES + (second ? LANES : 0)};
  }
};

// One panel of w [outputs, inputs], row after row: [unit][32].
template <class T>
void pack_panel(const T* w, const Packed& shape, int64_t panel, T* out) {
  const int64_t all = padded(shape.inputs, INPUT_STEP);
  for (int lane = 0; lane < PANEL; lane++) {
    const int64_t output = shape.output(panel, lane);
    const T* row = output < 0 ? w : w + output * shape.inputs;
    for (int64_t i = 0; i < all; i++)
      out[(i / PER_UNIT<T> * PANEL + lane) * PER_UNIT<T> + i % PER_UNIT<T>] = output >= 0 && i < shape.inputs ? row[i] : T{};
  }
}

// w into panels; `units` has room for all of them.
template <class T>
void pack(Worker& worker, const T* w, int64_t outputs, int64_t inputs, int halves, uint32_t* units) {
  const Packed to{units, outputs, inputs, halves, nullptr};
  const int64_t count = padded(inputs, INPUT_STEP) / PER_UNIT<T>;
  worker.each(to.panels(), [&](int64_t panel) {
    pack_panel(w, to, panel, reinterpret_cast<T*>(units + panel * count * PANEL));
  });
}

// One row of the matrix that was packed, [inputs].
template <class T>
void unpack_row(const Packed& w, int64_t output, T* row) {
  constexpr int P = PER_UNIT<T>;
  const auto [panel, lane] = w.place(output);
  const uint32_t* from = w.panel(panel, padded(w.inputs, INPUT_STEP) / P) + lane;
  for (int64_t u = 0; u < w.inputs / P; u++) std::memcpy(row + u * P, from + u * PANEL, 4);
  const int64_t rest = w.inputs % P;
  if (rest) std::memcpy(row + w.inputs - rest, from + w.inputs / P * PANEL, rest * sizeof(T));
}

}  // namespace quire
