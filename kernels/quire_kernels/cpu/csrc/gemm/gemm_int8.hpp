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

// Rows of a tile, panels that one row is multiplied with at once, halves of a panel that are summed at once, and
// neighboring units whose sums are separate because an instruction waits for its own sum: as many as there are
// registers for.
#if defined(__AVX512F__)
constexpr int64_t BYTE_ROWS = 12, BYTE_PANELS = 1;
constexpr int byte_halves(int) { return 2; }
constexpr int byte_ways(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }
#else
constexpr int64_t BYTE_ROWS = 4, BYTE_PANELS = 3;
constexpr int byte_halves(int rows) { return rows <= 2 ? 2 : 1; }
constexpr int byte_ways(int rows) { return rows == 1 ? 2 : 1; }
#endif

// Sums of ROWS rows and HALVES halves of a panel.
template <int ROWS, int HALVES, int WAYS>
[[gnu::noinline]] void sum_halves(const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums,
                       PrefetchStream stream, PrefetchStream queue) {
  S16 acc[ROWS][WAYS][HALVES];
  for (auto& row : acc)
    for (auto& way : row)
      for (S16& half : way) half = no_sums();
  RowPositions<ROWS> rows(x, stride);
  for (const uint32_t* end = w + units * PANEL; w < end; w += UNITS_AT_ONCE * PANEL, rows.advance(4 * UNITS_AT_ONCE)) {
#pragma GCC unroll 4
    for (int k = 0; k < UNITS_AT_ONCE; k++, stream.at += stream.step, queue.at += queue.step) {
      asm("" : "+r"(stream.at), "+r"(queue.at));  // or compilers keep the positions of all units
      U16 unit[HALVES];
#pragma GCC unroll 2
      for (int h = 0; h < HALVES; h++) {
        prefetch_l1(stream.at + h * 4 * LANES);
        unit[h] = load_units(w + k * PANEL + h * LANES);
      }
      prefetch_l2(queue.at);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const U16 a = same_unit(rows[r] + 4 * k);
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) acc[r][k % WAYS][h] = dot_bytes(acc[r][k % WAYS][h], unit[h], a);
      }
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) {
#pragma GCC unroll 4
      for (int k = 1; k < WAYS; k++) acc[r][0][h] = added(acc[r][0][h], acc[r][k][h]);
      store(sums + r * PANEL + h * LANES, acc[r][0][h]);
    }
}

// Sums of ROWS rows and one panel.
template <int ROWS>
inline void byte_sums(const int8_t* x, int64_t stride, const uint32_t* w, int64_t units, int32_t* sums,
                      PrefetchStream stream, PrefetchStream queue) {
  constexpr int HALVES = byte_halves(ROWS);
  for (int64_t lane = 0; lane < PANEL; lane += HALVES * LANES, stream.at += HALVES * 4 * LANES, queue.step = 0)
    sum_halves<ROWS, HALVES, byte_ways(ROWS)>(x, stride, w + lane, units, sums + lane, stream, queue);
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

// One row and PANELS panels, [panel][32].
template <int PANELS>
inline void row_byte_sums(const int8_t* x, const uint32_t* w, int64_t units, int32_t* sums) {
  S16 acc[PANELS][2];
  for (auto& panel : acc) panel[0] = panel[1] = no_sums();
  for (int64_t u = 0; u < units; u++) {
    const U16 a = same_unit(x + 4 * u);
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      const uint32_t* at = w + (p * units + u) * PANEL;
      acc[p][0] = dot_bytes(acc[p][0], load_units(at), a);
      acc[p][1] = dot_bytes(acc[p][1], load_units(at + LANES), a);
    }
  }
  for (int p = 0; p < PANELS; p++) {
    store(sums + p * PANEL, acc[p][0]);
    store(sums + p * PANEL + LANES, acc[p][1]);
  }
}

// The product of one row, for which reading the weights takes all the time: each thread reads several panels at once,
// because several streams get more bandwidth than one.
template <class T>
void multiply_byte_row(Worker& worker, const ByteRows& x, const Packed& w, const float* scales, const GemmOutput& to) {
  const int64_t units = x.width / 4;
  alignas(64) int32_t sums[BYTE_PANELS * PANEL];
  alignas(64) float scaled[PANEL];
  worker.each_few(w.panels(), BYTE_PANELS, [&](int64_t first, int64_t panels) {
    const uint32_t* at = w.units + first * units * PANEL;
    if (panels == BYTE_PANELS)
      row_byte_sums<BYTE_PANELS>(x.row(0), at, units, sums);
    else
      for (int64_t i = 0; i < panels; i++) row_byte_sums<1>(x.row(0), at + i * units * PANEL, units, sums + i * PANEL);
    for (int64_t i = 0; i < panels; i++) {
      scale_sums(x, 0, 1, sums + i * PANEL, scales + (first + i) * PANEL, scaled);
      apply_epilogue<T>(w, to, first + i, 0, 1, scaled);
    }
  });
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

// `multiply_bytes` for many rows.
template <class T>
void multiply_many_bytes(Worker& worker, const ByteRows& x, int64_t rows, const Packed& w, const float* scales,
                         const GemmOutput& to, PrefetchQueue& queue) {
  const int64_t units = x.width / 4;
  alignas(64) int32_t sums[BYTE_ROWS * PANEL];
  alignas(64) float scaled[BYTE_ROWS * PANEL];
  const GemmGroups groups(worker, rows, BYTE_ROWS, w, units, w.panel_bytes(units));
  queue.spread(groups.units_of_each(worker), groups.pace_of_panels());
  groups.each_tile(worker, [](int64_t, int64_t) {}, [&](const GroupTile& tile) {
    const int8_t *some = x.row(tile.row), *after = x.row(tile.row + tile.count);
    each_panel(tile, after, after - some, units, queue, [&](int64_t panel, PrefetchStream next, PrefetchStream later) {
      prefetch_outputs<T>(w, to, panel, tile.row, tile.count);
      byte_sums_of(tile.count, some, x.stride(), w.panel(panel, units), units, sums, next, later);
      scale_sums(x, tile.row, tile.count, sums, scales + panel * PANEL, scaled);
      apply_epilogue<T>(w, to, panel, tile.row, tile.count, scaled);
    });
  });
}

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "gemm/amx/int8_tiles.hpp"
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
  if constexpr (BYTE_PANELS > 1)
    if (rows == 1) return multiply_byte_row<T>(worker, bytes, w, scales, to);
#if defined(__AVX512F__)
  if (rows >= MANY_ROWS) return multiply_many_bytes<T>(worker, bytes, rows, w, scales, to, queue);
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
