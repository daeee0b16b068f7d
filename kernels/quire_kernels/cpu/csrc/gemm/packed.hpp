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

// Writes a unit of each of 16 lanes side by side: `units` of each lane, at `lanes`, to rows of PANEL units.
inline void interleave(const uint32_t (*lanes)[LANES], uint32_t* to) {
#if defined(__AVX512F__)
  // a transposition by halves: in each step, element j of row i and element j ^ bit of row i ^ bit change places
  alignas(64) static constexpr int32_t NUMBERS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  constexpr __mmask16 WITH_BIT[] = {0xAAAA, 0xCCCC, 0xF0F0, 0xFF00};  // of bits 1, 2, 4 and 8
  __m512i rows[LANES];
  const __m512i number = _mm512_loadu_si512(NUMBERS), of_second = _mm512_set1_epi32(LANES);
  for (int i = 0; i < LANES; i++) rows[i] = _mm512_loadu_si512(lanes[i]);
#pragma GCC unroll 4
  for (int step = 0; step < 4; step++) {
    const int bit = 1 << step;
    const __m512i other = _mm512_xor_si512(number, _mm512_set1_epi32(bit));
    const __m512i first = _mm512_mask_blend_epi32(WITH_BIT[step], number, _mm512_or_si512(other, of_second));
    const __m512i second = _mm512_mask_blend_epi32(WITH_BIT[step], other, _mm512_or_si512(number, of_second));
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
      if (!(i & bit)) {
        const __m512i a = rows[i], b = rows[i | bit];
        rows[i] = _mm512_permutex2var_epi32(a, first, b), rows[i | bit] = _mm512_permutex2var_epi32(a, second, b);
      }
  }
  for (int u = 0; u < LANES; u++) _mm512_storeu_si512(to + u * PANEL, rows[u]);
#else
  for (int u = 0; u < LANES; u++)
    for (int lane = 0; lane < LANES; lane++) to[u * PANEL + lane] = lanes[lane][u];
#endif
}

// Packs one panel of a matrix: [unit][32]. from: the address of each row [inputs] of the matrix.
template <class T>
void pack_panel(const T* const* from, const Packed& shape, int64_t panel, T* out) {
  constexpr int64_t STEP = LANES * PER_UNIT<T>;  // inputs at a time, so that what is written stays in the L1 cache
  const T* rows[PANEL];
  for (int lane = 0; lane < PANEL; lane++) {
    const int64_t output = shape.output(panel, lane);
    rows[lane] = output < 0 ? nullptr : from[output];
  }
  for (int64_t first = 0; first < padded(shape.inputs, INPUT_STEP); first += STEP) {
    const int64_t count = std::clamp<int64_t>(shape.inputs - first, 0, STEP);
    uint32_t* to = reinterpret_cast<uint32_t*>(out) + first / PER_UNIT<T> * PANEL;
    for (int64_t half = 0; half < PANEL; half += LANES) {
      alignas(64) uint32_t lanes[LANES][LANES];
      for (int lane = 0; lane < LANES; lane++) {
        const T* row = rows[half + lane];
        if (row && count == STEP) {
          prefetch_l1(row + first + 4 * STEP);  // too many rows for hardware
          std::memcpy(lanes[lane], row + first, sizeof lanes[lane]);
        } else {
          std::memset(lanes[lane], 0, sizeof lanes[lane]);
          if (row) std::memcpy(lanes[lane], row + first, count * sizeof(T));
        }
      }
      interleave(lanes, to + half);
    }
  }
}

// Packs a matrix of these rows; `units` has space for all panels.
template <class T>
void pack(Worker& worker, const T* const* rows, int64_t outputs, int64_t inputs, int halves, uint32_t* units) {
  const Packed to{units, outputs, inputs, halves, nullptr};
  const int64_t count = padded(inputs, INPUT_STEP) / PER_UNIT<T>;
  worker.each(to.panels(), [&](int64_t panel) {
    pack_panel(rows, to, panel, reinterpret_cast<T*>(units + panel * count * PANEL));
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
