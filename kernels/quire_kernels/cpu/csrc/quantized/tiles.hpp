// AMX kernel of products with matrices of few bits, for nine rows and more (Intel SDM vol. 1, ch. 18).
//
// A tile of sums, 16 rows by 16 outputs, holds the products of one step of inputs, because every step has scales of its
// own; so tiles of x and of w are 32 (16) bytes of inputs deep. Sums of integers are exact, and the floats that follow
// have the order of the vector kernels: a row has the same bits here and there, so that the number of rows may choose.
//
// What 16 rows, 16 outputs and 32 inputs (8192 products) take, at two loads, two vector instructions and one store a
// cycle: the tile instruction 16 cycles; 24 loads for its tiles, 32 for sums and scales of x: 28; 16 stores of sums:
// 16; 3 vector instructions a row (4 with offsets): 24 (32). These overlap: 28 to 32 cycles, some 270 products a cycle.
// VPDPBUSD takes 64 instructions of 8 rows and 3 vector instructions a row, 44 cycles for half of it: 93 a cycle.
#pragma once
#include "gemm/amx/tiles.hpp"
#include "quantized/kernels.hpp"

namespace quire {

constexpr int64_t MIN_TILE_ROWS = 9;     // fewer read weights faster with vectors
constexpr int64_t TILE_ROWS = 16, LOW_TILE_ROWS = 8;
constexpr int64_t TILE_BLOCK_ROWS = 128;  // that a panel's codes are widened for
constexpr int64_t CHUNK_STEPS = 16;       // whose bytes (16 KiB) stay in the first-level cache beside 16 rows of x

// Some steps of a panel: signed bytes in units, [step][unit][32][4], and the scales of each step.
struct TileChunk {
  alignas(64) int8_t codes[CHUNK_STEPS * MAX_STEP * PANEL];
  alignas(64) float scales[CHUNK_STEPS * PANEL], offsets[CHUNK_STEPS * PANEL];
};

// Reads the steps of a panel one chunk after the other.
class ChunkReader {
 public:
  ChunkReader(const Quantized& q, StepReader& reader, const uint8_t* panel)
      : q_(q), reader_(reader), at_(panel), zero_(q.kind == CodeKind::codes ? q.zero : BYTE_BIAS) {}

  void read(int64_t steps, TileChunk& to) {
    for (int64_t step = 0; step < steps; step++) {
      if (left_ == 0) read_scales();
      left_--;
      store(to.scales + step * PANEL, scale_[0], scale_[1]);
      if (q_.has_offsets) store(to.offsets + step * PANEL, offset_[0], offset_[1]);
      prefetch_block(at_, q_.step_bytes());
      const uint8_t* codes = static_cast<const uint8_t*>(reader_.read(at_));
      for (int64_t i = 0; i < q_.step * PANEL; i += LINE_BYTES)
        store_units(to.codes + step * q_.step * PANEL + i, less(load_units(codes + i)));
      at_ += q_.step_bytes();
    }
    write_memory(to.codes);
  }
  const char* behind() const { return reinterpret_cast<const char*>(at_); }

 private:
  U16 less(U16 codes) const { return _mm512_sub_epi8(codes, _mm512_set1_epi8(static_cast<char>(zero_))); }
  void read_scales() {
    left_ = q_.group / q_.step;
    load_scales(at_, q_.wide, scale_[0], scale_[1]);
    if (q_.has_offsets) load_scales(at_ + q_.scale_bytes(), q_.wide, offset_[0], offset_[1]);
    at_ += q_.head_bytes();
  }

  const Quantized& q_;
  StepReader& reader_;
  const uint8_t* at_;
  int32_t zero_;
  int64_t left_ = 0;  // steps of the group
  F16 scale_[2], offset_[2];
};

// Tiles of 16 rows: 0, 1: sums; 4: x. Tiles of 8 rows: 2, 3: sums; 5: x. 6, 7: w.
inline void configure_tiles(int64_t step) {
  const uint8_t heights[8] = {TILE_ROWS, TILE_ROWS, LOW_TILE_ROWS, LOW_TILE_ROWS, TILE_ROWS, LOW_TILE_ROWS,
                              static_cast<uint8_t>(step / 4), static_cast<uint8_t>(step / 4)};
  TileConfig config;
  for (int i = 0; i < 8; i++) {
    config.rows[i] = heights[i];
    config.row_bytes[i] = static_cast<uint16_t>(i == 4 || i == 5 ? step : LINE_BYTES);
  }
  load_config(config);
}

// Sums of one step and 16 outputs, [ROWS][16]. Tiles of even and odd steps differ, so that they need not wait for
// each other.
template <int64_t ROWS>
inline void tile_sums(bool odd, const uint8_t* x, int64_t stride, const int8_t* codes, int32_t* sums) {
#define QUIRE_TILE_SUMS(SUMS, X, W)         \
  _tile_zero(SUMS);                         \
  _tile_loadd(X, x, stride);                \
  _tile_loadd(W, codes, UNIT_BYTES);        \
  _tile_dpbssd(SUMS, X, W);                 \
  _tile_stored(SUMS, sums, LANES * 4)
  if constexpr (ROWS == TILE_ROWS) {
    if (odd) {
      QUIRE_TILE_SUMS(1, 4, 7);
    } else {
      QUIRE_TILE_SUMS(0, 4, 6);
    }
  } else {
    if (odd) {
      QUIRE_TILE_SUMS(3, 5, 7);
    } else {
      QUIRE_TILE_SUMS(2, 5, 6);
    }
  }
#undef QUIRE_TILE_SUMS
}

inline F16 tile_floats(const int32_t* sums) { return as_floats(_mm512_loadu_si512(sums)); }

// ROWS rows of x at the columns of a chunk, and their totals, [rows][32].
struct RowsOfChunk {
  const uint8_t *x, *steps;  // `stride` bytes apart
  int64_t stride, step;
  float* totals;
};

// Adds the products of a chunk's steps, half a panel at a time. While a tile multiplies a step, vectors scale the sums
// of the step before the last one.
template <int64_t ROWS, bool OFFSETS>
void add_chunk(const RowsOfChunk& rows, int64_t steps, const TileChunk& chunk, PrefetchStream& stream) {
  constexpr int64_t BEHIND = 2, SLOTS = 4;
  alignas(64) int32_t sums[SLOTS][ROWS * LANES];
  for (int64_t lane = 0; lane < PANEL; lane += LANES) {
    F16 totals[ROWS];
#pragma GCC unroll 16
    for (int64_t r = 0; r < ROWS; r++) totals[r] = load(rows.totals + r * PANEL + lane);
    for (int64_t step = 0; step < steps + BEHIND; step++, stream.at += stream.step) {
      for (int64_t line = 0; line < stream.step; line += LINE_BYTES) prefetch_l2(stream.at + line);
      if (step < steps)
        tile_sums<ROWS>(step % 2, rows.x + step * rows.step, rows.stride,
                        chunk.codes + step * rows.step * PANEL + lane * 4, sums[step % SLOTS]);
      const int64_t done = step - BEHIND;
      if (done < 0) continue;
      const F16 scale = load(chunk.scales + done * PANEL + lane);
      const F16 offset = OFFSETS ? load(chunk.offsets + done * PANEL + lane) : zero();
      const uint8_t* at = rows.steps + done * sizeof(StepOfRow);
#pragma GCC unroll 16
      for (int64_t r = 0; r < ROWS; r++, at += rows.stride) {
        const StepOfRow& of_row = *reinterpret_cast<const StepOfRow*>(at);
        const F16 products = tile_floats(sums[done % SLOTS] + r * LANES) * set1(of_row.scale);
        totals[r] = fma(products, scale, totals[r]);
        if constexpr (OFFSETS) totals[r] = fma(offset, set1(of_row.sum), totals[r]);
      }
    }
#pragma GCC unroll 16
    for (int64_t r = 0; r < ROWS; r++) store(rows.totals + r * PANEL + lane, totals[r]);
  }
}

// Rows of an item that are multiplied together, and the first of them that the tile before does not have.
struct CodeTile {
  int64_t first, fresh, rows;
};

// Divides rows into tiles of 16 and 8. The last one begins further up, so that it reads no row beyond the end.
struct CodeTiles {
  static constexpr int64_t MAX = TILE_BLOCK_ROWS / TILE_ROWS + 1;
  CodeTile tiles[MAX];
  int64_t count = 0;

  explicit CodeTiles(int64_t all) {
    for (int64_t row = 0; row < all; count++) {
      const int64_t rows = all - row > LOW_TILE_ROWS && all >= TILE_ROWS ? TILE_ROWS : LOW_TILE_ROWS;
      tiles[count] = {std::min(row, all - rows), row, rows};
      row = tiles[count].first + rows;
    }
  }
};

// The products of rows first … with a panel; those of each tile stand 16 rows apart in `totals`.
template <bool OFFSETS>
void multiply_panel_by_tiles(const Quantized& q, StepReader& reader, const uint8_t* panel, const PreparedRows& x,
                             int64_t first, const CodeTiles& rows, float* totals) {
  TileChunk chunk;
  ChunkReader from(q, reader, panel);
  std::fill_n(totals, rows.count * TILE_ROWS * PANEL, 0.0f);
  for (int64_t step = 0; step < q.steps(); step += CHUNK_STEPS) {
    const int64_t steps = std::min(CHUNK_STEPS, q.steps() - step);
    from.read(steps, chunk);
    // What the next chunk reads is prefetched evenly beside the tiles.
    const int64_t bytes = steps * (q.step_bytes() + q.head_bytes()), units = rows.count * 2 * steps;
    PrefetchStream stream{from.behind(), (bytes + units - 1) / units};
    for (int64_t i = 0; i < rows.count; i++) {
      const CodeTile& tile = rows.tiles[i];
      const RowsOfChunk some{x.row(first + tile.first) + step * q.step,
                             reinterpret_cast<const uint8_t*>(x.steps(first + tile.first) + step), x.stride(), q.step,
                             totals + i * TILE_ROWS * PANEL};
      if (tile.rows == TILE_ROWS)
        add_chunk<TILE_ROWS, OFFSETS>(some, steps, chunk, stream);
      else
        add_chunk<LOW_TILE_ROWS, OFFSETS>(some, steps, chunk, stream);
    }
  }
}

// At least MIN_TILE_ROWS rows of bytes. finish(panel, first row, rows, their totals).
template <class Finish>
void multiply_by_tiles(Worker& worker, const PreparedRows& x, int64_t rows, const Packed& w, const Quantized& q,
                       Finish&& finish) {
  alignas(64) float totals[CodeTiles::MAX * TILE_ROWS * PANEL];
  StepReader reader(q);
  configure_tiles(q.step);
  const int64_t blocks = (rows + TILE_BLOCK_ROWS - 1) / TILE_BLOCK_ROWS, panels = w.panels();
  worker.each(panels * blocks, [&](int64_t item) {
    const int64_t panel = item % panels, block = item / panels;
    const int64_t first = rows * block / blocks, end = rows * (block + 1) / blocks;
    const CodeTiles tiles(end - first);
    const uint8_t* at = reinterpret_cast<const uint8_t*>(w.panel(panel, 0));
    if (q.has_offsets)
      multiply_panel_by_tiles<true>(q, reader, at, x, first, tiles, totals);
    else
      multiply_panel_by_tiles<false>(q, reader, at, x, first, tiles, totals);
    for (int64_t i = 0; i < tiles.count; i++) {
      const CodeTile& tile = tiles.tiles[i];
      finish(panel, first + tile.fresh, tile.first + tile.rows - tile.fresh,
             totals + (i * TILE_ROWS + tile.fresh - tile.first) * PANEL);
    }
  });
  _tile_release();
}

}  // namespace quire
