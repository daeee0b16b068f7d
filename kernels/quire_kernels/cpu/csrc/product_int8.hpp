// Products in whole numbers: y = x · wᵀ + bias with w in bytes, a scale for each output, and x made bytes row by row.
//
// w ≈ scale · q, q from -127 to 127. Bytes hold q + 128, because the instructions multiply unsigned bytes by signed ones:
// Σ (q + 128) · x = Σ q · x + 128 · Σ x, and what is too much depends on the row alone. Sums are exact, so their order
// does not matter: a row's result is the same to the last bit, whatever computes it and whatever stands beside it.
#pragma once
#include "product.hpp"
#include "room.hpp"
#include "rowwise.hpp"
#include "vec_int8.hpp"

namespace quire {

constexpr int64_t BYTE_STEP = 64;  // inputs are padded to this
constexpr uint8_t BYTE_ZERO = 128;

// A row as it is multiplied: `width` bytes, padded with zeros, then its scale and 128 · their sum.
struct ByteRows {
  int8_t* base;
  int64_t width;
  int64_t stride() const { return width + BYTE_STEP; }
  int8_t* row(int64_t r) const { return base + r * stride(); }
  float scale(int64_t r) const {
    float x;
    std::memcpy(&x, row(r) + width, 4);
    return x;
  }
  int32_t excess(int64_t r) const {
    int32_t x;
    std::memcpy(&x, row(r) + width + 4, 4);
    return x;
  }
};

template <class T>
void quantise_row(const T* x, int64_t inputs, const ByteRows& to, int64_t r) {
  int8_t* row = to.row(r);
  const Steps step = steps_of(x, inputs);
  to_bytes(x, inputs, step.inverse, row);
  std::memset(row + inputs, 0, to.width - inputs);
  const U16 zeros = same_unit("\x80\x80\x80\x80");
  S16 sums = no_sums();
  for (int64_t i = 0; i < to.width; i += 4 * LANES) sums = dot_bytes(sums, zeros, load_units(row + i));
  const int32_t excess = sum(sums);
  std::memcpy(row + to.width, &step.scale, 4);
  std::memcpy(row + to.width + 4, &excess, 4);
}

// Sums of ROWS rows and one panel. Few rows sum several units apart: an instruction waits for its own sum.
template <int ROWS>
inline void byte_sums(const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums, Later later,
                      Later soon) {
  constexpr int WAYS = ROWS == 1 ? 4 : ROWS <= 3 ? 2 : 1;
  S16 acc[ROWS * WAYS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS * WAYS; r++) acc[r][0] = acc[r][1] = no_sums();
  for (int64_t u = 0; u < units; u += WAYS) {
#pragma GCC unroll 4
    for (int k = 0; k < WAYS; k++, later.at += later.step, soon.at += soon.step) {
      ask_for_lines(later.at);
      _mm_prefetch(soon.at, _MM_HINT_T1);
      const U16 w0 = load_units(w + (u + k) * PANEL), w1 = load_units(w + (u + k) * PANEL + LANES);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const U16 a = same_unit(x + r * stride + (u + k) * 4);
        acc[r * WAYS + k][0] = dot_bytes(acc[r * WAYS + k][0], w0, a);
        acc[r * WAYS + k][1] = dot_bytes(acc[r * WAYS + k][1], w1, a);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 4
    for (int k = 1; k < WAYS; k++) {
      acc[r * WAYS][0] = added(acc[r * WAYS][0], acc[r * WAYS + k][0]);
      acc[r * WAYS][1] = added(acc[r * WAYS][1], acc[r * WAYS + k][1]);
    }
    store(sums + r * PANEL, acc[r * WAYS][0]);
    store(sums + r * PANEL + LANES, acc[r * WAYS][1]);
  }
}

#if defined(__AVX512F__)
constexpr int64_t BYTE_ROWS = 12;
#else
constexpr int64_t BYTE_ROWS = 2;
#endif

template <int MOST = BYTE_ROWS>
inline void byte_sums_of(int64_t rows, const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums,
                         Later later, Later soon) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return byte_sums_of<MOST - 1>(rows, x, stride, w, units, sums, later, soon);
  }
  byte_sums<MOST>(x, stride, w, units, sums, later, soon);
}

struct VectorBytes {
  static constexpr int64_t ROWS = BYTE_ROWS;
  static constexpr TileShape shape(int64_t) { return {ROWS, true, 1 << 18, 64}; }
  void sums(const ProductTile& tile, int64_t panel, const int8_t* x, int64_t stride, const uint32_t* w, int64_t units,
            Soon& soon, int32_t* out) {
    byte_sums_of(tile.count, x, stride, w, units, out, tile.beside(panel), soon.next(units));
  }
};

// Sums [count][PANEL] of rows from `row` on, as what they are sums of; scales: those of the panel ([panels · PANEL] in
// all, which lie as the outputs in panels do).
inline void scale_sums(const ByteRows& x, int64_t row, int64_t count, const int32_t* sums, const float* scales, float* to) {
  const F16 left = load(scales), right = load(scales + LANES);
  for (int64_t r = 0; r < count; r++, sums += PANEL, to += PANEL) {
    const int32_t excess = x.excess(row + r);
    const F16 scale = set1(x.scale(row + r));
    store(to, to_floats(sums, excess) * scale * left);
    store(to + LANES, to_floats(sums + LANES, excess) * scale * right);
  }
}

template <class T, class Tiles>
void multiply_bytes(Worker& worker, Tiles tiles, const ByteRows& x, int64_t rows, const Packed& w, const float* scales,
                    const Target& to, Soon& soon) {
  if (rows == 0) return;
  const int64_t units = x.width / 4;
  alignas(64) int32_t sums[Tiles::ROWS * PANEL];
  alignas(64) float scaled[Tiles::ROWS * PANEL];
  const ProductCut cut(worker, Tiles::shape(x.stride()), rows, x.stride(), w, units);
  soon.spread(cut.units_of_each(worker));
  cut.each_tile(worker, [&](const ProductTile& tile) {
    for (int64_t panel = tile.first; panel < tile.last; panel++) {
      tiles.sums(tile, panel, x.row(tile.row), x.stride(), w.units + panel * units * PANEL, units, soon, sums);
      scale_sums(x, tile.row, tile.count, sums, scales + panel * PANEL, scaled);
      finish<T>(w, to, panel, tile.row, tile.count, scaled);
    }
  });
}

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "product_int8_amx.hpp"
#endif

namespace quire {

constexpr int64_t FEW_ROWS = 4;  // that each thread makes bytes of for itself, rather than wait for another

// x [rows, inputs] with `stride` elements between rows. shared: memory for `rows` rows as bytes.
template <class T>
void multiply_int8(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const float* scales,
                   void* shared, const Target& to, Soon& soon) {
  const int64_t width = padded(w.inputs, BYTE_STEP);
  ByteRows bytes{static_cast<int8_t*>(shared), width};
  if (rows <= FEW_ROWS) {
    static thread_local Room<int8_t> mine;
    mine.fit(rows * bytes.stride());
    bytes.base = mine.data();
    for (int64_t r = 0; r < rows; r++) quantise_row(x + r * stride, w.inputs, bytes, r);
  } else {
    stretches(worker, rows, w.inputs, [&](int64_t first, int64_t count) {
      for (int64_t r = first; r < first + count; r++) quantise_row(x + r * stride, w.inputs, bytes, r);
    });
    worker.barrier();
  }
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
  if (rows >= FEWEST_AMX_ROWS) {
    multiply_bytes<T>(worker, AmxByteTiles{}, bytes, rows, w, scales, to, soon);
    return _tile_release();
  }
#endif
  multiply_bytes<T>(worker, VectorBytes{}, bytes, rows, w, scales, to, soon);
}

// w [outputs, inputs], row after row, into panels of bytes and their scales.
template <class T>
void pack_int8(Worker& worker, const T* w, int64_t outputs, int64_t inputs, int halves, uint32_t* units, float* scales) {
  const int64_t width = padded(inputs, BYTE_STEP);
  const Packed to{units, outputs, inputs, halves, nullptr};
  worker.each(to.panels(), [&](int64_t panel) {
    static thread_local Room<int8_t> bytes;
    bytes.fit(width);
    uint8_t* out = reinterpret_cast<uint8_t*>(units + panel * width / 4 * PANEL);
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t output = to.output(panel, lane);
      const bool there = output >= 0;
      const T* row = there ? w + output * inputs : w;
      const Steps step = there ? steps_of(row, inputs) : Steps{0.0f, 0.0f};
      scales[panel * PANEL + lane] = step.scale;
      if (there) to_bytes(row, inputs, step.inverse, bytes.data());
      for (int64_t i = 0; i < width; i++)
        out[(i / 4 * PANEL + lane) * 4 + i % 4] = static_cast<uint8_t>((there && i < inputs ? bytes[i] : 0) + BYTE_ZERO);
    }
  });
}

// One row of the matrix that was packed, [inputs].
template <class T>
void unpack_row_int8(const Packed& w, const float* scales, int64_t output, T* row) {
  const int64_t width = padded(w.inputs, BYTE_STEP);
  const auto [panel, lane] = w.place(output);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(w.units + panel * width / 4 * PANEL + lane);
  const float scale = scales[panel * PANEL + lane];
  for (int64_t i = 0; i < w.inputs; i++)
    put(row + i, static_cast<float>(from[i / 4 * PANEL * 4 + i % 4] - BYTE_ZERO) * scale);
}

}  // namespace quire
