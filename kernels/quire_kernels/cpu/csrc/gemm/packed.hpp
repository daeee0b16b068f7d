// Layout of the matrices that products read.
//
// A matrix w [outputs, inputs] is packed in panels of 32 outputs: [panel][unit][32], a unit being four bytes of
// neighboring inputs. So a panel is read as one stream, and one load feeds sixteen outputs. Inputs are padded with
// zeros to a multiple of 32 elements, outputs to 32.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>

#include "thread_team.hpp"
#include "vec.hpp"

namespace quire {

constexpr int PANEL = 32;
constexpr int INPUT_STEP = 32;

inline int64_t padded(int64_t n, int64_t step) { return (n + step - 1) / step * step; }

// Data shared by all compressed panels: their upper bytes, and the number of bytes before the groups of each panel.
struct PanelCodebook {
  uint8_t upper[16];
  int64_t head;
};

// halves: a panel holds 16 outputs of the first half of the matrix and the corresponding 16 of the second half, so
// that an epilogue that joins them (gate and up of a gated MLP) has both. book: of compressed panels
// (`gemm/packed_compressed.hpp`); null if they are not compressed. bytes: of a panel whose size does not follow from the
// units, else 0.
struct Packed {
  const uint32_t* units;
  int64_t outputs, inputs;
  int32_t halves;
  const PanelCodebook* book;
  int64_t bytes = 0;

  int64_t panels() const { return halves ? (outputs / 2 + LANES - 1) / LANES : (outputs + PANEL - 1) / PANEL; }
  // Bytes of a panel of `count` units.
  int64_t panel_bytes(int64_t count) const {
    if (bytes) return bytes;
    return book ? book->head + count * PANEL * 3 : count * PANEL * 4;
  }
  const uint32_t* panel(int64_t i, int64_t count) const { return units + i * (panel_bytes(count) / 4); }

  // The output in a lane of a panel; -1: none.
  int64_t output(int64_t panel, int64_t lane) const {
    const int64_t half = outputs / 2, at = halves ? panel * LANES + lane % LANES : panel * PANEL + lane;
    if (at >= (halves ? half : outputs)) return -1;
    return halves && lane >= LANES ? half + at : at;
  }
  // The panel and lane of an output.
  std::pair<int64_t, int64_t> position(int64_t output) const {
    if (!halves) return {output / PANEL, output % PANEL};
    const bool second = output >= outputs / 2;
    const int64_t at = second ? output - outputs / 2 : output;
    return {at / LANES, at % LANES + (second ? LANES : 0)};
  }
};

// Packs one panel of w [outputs, inputs]: [unit][32].
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

// Packs w; `units` has space for all panels.
template <class T>
void pack(Worker& worker, const T* w, int64_t outputs, int64_t inputs, int halves, uint32_t* units) {
  const Packed to{units, outputs, inputs, halves, nullptr};
  const int64_t count = padded(inputs, INPUT_STEP) / PER_UNIT<T>;
  worker.each(to.panels(), [&](int64_t panel) {
    pack_panel(w, to, panel, reinterpret_cast<T*>(units + panel * count * PANEL));
  });
}

// One row of the packed matrix, [inputs].
template <class T>
void unpack_row(const Packed& w, int64_t output, T* row) {
  constexpr int P = PER_UNIT<T>;
  const auto [panel, lane] = w.position(output);
  const uint32_t* from = w.panel(panel, padded(w.inputs, INPUT_STEP) / P) + lane;
  for (int64_t u = 0; u < w.inputs / P; u++) std::memcpy(row + u * P, from + u * PANEL, 4);
  const int64_t rest = w.inputs % P;
  if (rest) std::memcpy(row + w.inputs - rest, from + w.inputs / P * PANEL, rest * sizeof(T));
}

}  // namespace quire
