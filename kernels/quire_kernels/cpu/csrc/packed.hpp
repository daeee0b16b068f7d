// Matrices as products read them.
//
// A matrix w [outputs, inputs] is packed in panels of 32 outputs: [panel][unit][32], a unit being four bytes of
// neighbouring inputs. So a panel is read as one stream, and one load feeds sixteen outputs. Inputs are padded with
// zeros to a multiple of 32 elements, outputs to 32.
#pragma once
#include <algorithm>
#include <cstring>

#include "team.hpp"
#include "vec.hpp"

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

  int64_t panels() const { return halves ? (outputs / 2 + LANES - 1) / LANES : (outputs + PANEL - 1) / PANEL; }
};

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
