// Int8 products: y = x · wᵀ + bias with w as int8 with a scale for each output, and x quantized row by row.
//
// w ≈ scale · q, q from -127 to 127. Stored bytes are q + BYTE_BIAS (`vec_int8.hpp`): Σ (q + bias) · x = Σ q · x +
// bias · Σ x, and the excess depends only on the row. Sums are exact, so their order does not matter: a row's result is
// bit-identical on every path and in any batch.
#pragma once
#include "gemm/gemm.hpp"
#include "scratch.hpp"
#include "rowwise.hpp"
#include "vec_int8.hpp"

namespace quire {

constexpr int64_t BYTE_STEP = 64;  // inputs are padded to this

// Quantized rows: `width` bytes, padded with zeros, then the scale and BYTE_BIAS · the sum of the bytes.
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
void quantize_row(const T* x, int64_t inputs, const ByteRows& to, int64_t r) {
  int8_t* row = to.row(r);
  const QuantScale step = quant_scale_of(x, inputs);
  to_bytes(x, inputs, step.inverse, row);
  std::memset(row + inputs, 0, to.width - inputs);
  int32_t excess = 0;
  if constexpr (BYTE_BIAS != 0) {
    const uint8_t zero = stored_byte(0), unit[4] = {zero, zero, zero, zero};
    S16 sums = no_sums();
    for (int64_t i = 0; i < to.width; i += 4 * LANES) sums = dot_bytes(sums, same_unit(unit), load_units(row + i));
    excess = sum(sums);
  }
  std::memcpy(row + to.width, &step.scale, 4);
  std::memcpy(row + to.width + 4, &excess, 4);
}

#if defined(__AVX512F__)
constexpr int64_t BYTE_ROWS = 12;
constexpr int MAX_WAYS = 4;
#else  // eight registers of sums
constexpr int64_t BYTE_ROWS = 2;
constexpr int MAX_WAYS = 2;
#endif

// Sums of ROWS rows and one panel. With few rows, several units are summed separately, because an instruction waits
// for its own sum.
template <int ROWS>
inline void byte_sums(const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums,
                      PrefetchStream stream, PrefetchStream queue) {
  constexpr int WAYS = ROWS == 1 ? MAX_WAYS : ROWS <= MAX_WAYS - 1 ? 2 : 1;
  S16 acc[ROWS * WAYS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS * WAYS; r++) acc[r][0] = acc[r][1] = no_sums();
  for (int64_t u = 0; u < units; u += WAYS) {
#pragma GCC unroll 4
    for (int k = 0; k < WAYS; k++, stream.at += stream.step, queue.at += queue.step) {
      prefetch_lines(stream.at);
      _mm_prefetch(queue.at, _MM_HINT_T1);
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

template <int MAX = BYTE_ROWS>
inline void byte_sums_of(int64_t rows, const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums,
                         PrefetchStream stream, PrefetchStream queue) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return byte_sums_of<MAX - 1>(rows, x, stride, w, units, sums, stream, queue);
  }
  byte_sums<MAX>(x, stride, w, units, sums, stream, queue);
}

struct VectorBytes {
  static constexpr int64_t ROWS = BYTE_ROWS;
  static constexpr TileShape shape(int64_t) { return {ROWS, true, 1 << 18, 64}; }
  void sums(const GemmTile& tile, int64_t panel, const int8_t* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue& queue, int32_t* out) {
    byte_sums_of(tile.count, x, stride, w, units, out, tile.beside(panel), queue.next(units));
  }
};

// Dequantizes the sums [count][PANEL] of rows starting at `row`; scales: those of the panel (of [panels · PANEL],
// in the order of the outputs in panels).
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
                    const GemmOutput& to, PrefetchQueue& queue) {
  if (rows == 0) return;
  const int64_t units = x.width / 4;
  alignas(64) int32_t sums[Tiles::ROWS * PANEL];
  alignas(64) float scaled[Tiles::ROWS * PANEL];
  const GemmTiling tiling(worker, Tiles::shape(x.stride()), rows, x.stride(), w, units);
  queue.spread(tiling.units_of_each(worker));
  tiling.each_tile(worker, [&](const GemmTile& tile) {
    for (int64_t panel = tile.first; panel < tile.last; panel++) {
      tiles.sums(tile, panel, x.row(tile.row), x.stride(), w.units + panel * units * PANEL, units, queue, sums);
      scale_sums(x, tile.row, tile.count, sums, scales + panel * PANEL, scaled);
      apply_epilogue<T>(w, to, panel, tile.row, tile.count, scaled);
    }
  });
}

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "gemm/gemm_int8_amx.hpp"
#endif

namespace quire {

constexpr int64_t FEW_ROWS = 4;  // that each thread quantizes for itself instead of waiting for another

// x [rows, inputs] with `stride` elements between rows. shared: memory for `rows` quantized rows.
template <class T>
void multiply_int8(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const float* scales,
                   void* shared, const GemmOutput& to, PrefetchQueue& queue) {
  const int64_t width = padded(w.inputs, BYTE_STEP);
  ByteRows bytes{static_cast<int8_t*>(shared), width};
  if (rows <= FEW_ROWS) {
    static thread_local ScratchBuffer<int8_t> mine;
    mine.fit(rows * bytes.stride());
    bytes.base = mine.data();
    for (int64_t r = 0; r < rows; r++) quantize_row(x + r * stride, w.inputs, bytes, r);
  } else {
    each_row_block(worker, rows, w.inputs, [&](int64_t first, int64_t count) {
      for (int64_t r = first; r < first + count; r++) quantize_row(x + r * stride, w.inputs, bytes, r);
    });
    worker.barrier();
  }
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
  if (rows >= MIN_AMX_ROWS) {
    multiply_bytes<T>(worker, AmxByteTiles{}, bytes, rows, w, scales, to, queue);
    return _tile_release();
  }
#endif
  multiply_bytes<T>(worker, VectorBytes{}, bytes, rows, w, scales, to, queue);
}

// Quantizes and packs w [outputs, inputs] into panels of bytes and their scales.
template <class T>
void pack_int8(Worker& worker, const T* w, int64_t outputs, int64_t inputs, int halves, uint32_t* units, float* scales) {
  const int64_t width = padded(inputs, BYTE_STEP);
  const Packed to{units, outputs, inputs, halves, nullptr};
  worker.each(to.panels(), [&](int64_t panel) {
    static thread_local ScratchBuffer<int8_t> bytes;
    bytes.fit(width);
    uint8_t* out = reinterpret_cast<uint8_t*>(units + panel * width / 4 * PANEL);
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t output = to.output(panel, lane);
      const bool there = output >= 0;
      const T* row = there ? w + output * inputs : w;
      const QuantScale step = there ? quant_scale_of(row, inputs) : QuantScale{0.0f, 0.0f};
      scales[panel * PANEL + lane] = step.scale;
      if (there) to_bytes(row, inputs, step.inverse, bytes.data());
      for (int64_t i = 0; i < width; i++)
        out[(i / 4 * PANEL + lane) * 4 + i % 4] = stored_byte(there && i < inputs ? bytes[i] : 0);
    }
  });
}

// One dequantized row of the packed matrix, [inputs].
template <class T>
void unpack_row_int8(const Packed& w, const float* scales, int64_t output, T* row) {
  const int64_t width = padded(w.inputs, BYTE_STEP);
  const auto [panel, lane] = w.position(output);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(w.units + panel * width / 4 * PANEL + lane);
  const float scale = scales[panel * PANEL + lane];
  for (int64_t i = 0; i < w.inputs; i++)
    put(row + i, static_cast<float>(byte_value(from[i / 4 * PANEL * 4 + i % 4])) * scale);
}

}  // namespace quire
