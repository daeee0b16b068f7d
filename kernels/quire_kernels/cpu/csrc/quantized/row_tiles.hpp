// Products of several rows of bytes with matrices of few bits, whose sums and totals stay in registers (AVX-512 VNNI).
//
// A tile of rows is multiplied with a whole panel. Codes are moved to units once for all rows of a tile, by instructions
// that run beside those that multiply. A step of 32 inputs takes, for a row and 16 outputs, eight products, one
// multiplication by the scale of x and one, fused with an addition, by the scale of the group (two with offsets). Zen 5
// begins two of these each cycle: at most 102 (93) products of a code and a byte a cycle. Six rows take 62 cycles for a
// step and 32 outputs, of 60, and some 100 more for each panel.
#pragma once
#include "gemm/gemm_groups.hpp"
#include "gemm/gemm_vector.hpp"
#include "quantized/kernels.hpp"

namespace quire {

constexpr int64_t TILE_HEIGHT = 6;  // rows, each of which takes four of the 32 registers

// Rows of a tile: columns and steps of the first one, `stride` bytes apart from those of the next one.
struct PreparedTile {
  const int8_t* x;
  const StepOfRow* steps;
  int64_t stride;
};

// Prefetches the bytes of one step of a stream: usually no more than two lines.
inline void prefetch_step(const PrefetchStream& stream) {
  prefetch_l1(stream.at);
  prefetch_l1(stream.at + LINE_BYTES);
  for (int64_t line = 2 * LINE_BYTES; line < stream.step; line += LINE_BYTES) prefetch_l1(stream.at + line);
}

// The products of ROWS rows with a panel times `factors`, [ROWS][32]. next, queue: prefetched beside each step.
template <class Sums, int BITS, bool TABLE, int STEP, int ROWS>
void multiply_tile(const Quantized& q, const uint8_t* at, PreparedTile rows, const float* factors, PrefetchStream next,
                   PrefetchStream queue, float* out) {
  constexpr int64_t STEP_BYTES = STEP / CODE_BLOCK * BITS * LINE_BYTES;
  const U16 table = byte_table(q.bytes);
  const int64_t steps_of_group = q.group / STEP, scale_bytes = q.scale_bytes();
  const bool wide = q.wide, has_offsets = q.has_offsets;
  F16 totals[ROWS][2], scale0 = zero(), scale1 = zero();
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) totals[r][0] = totals[r][1] = zero();
  RowPositions<ROWS> columns(rows.x, rows.stride), steps(rows.steps, rows.stride);
  const auto step_of = [&](int r) -> const StepOfRow& { return *reinterpret_cast<const StepOfRow*>(steps[r]); };
  const uint8_t* offsets = at;
  // One loop of all steps: compilers keep what two nested loops need in vector registers, and wait for those.
  for (int64_t count = q.steps(), left = 0; count > 0; count--, left--) {
    if (left == 0) {
      load_scales(at, wide, scale0, scale1);
      at += scale_bytes;
      if (has_offsets) offsets = at, at += scale_bytes;
      left = steps_of_group;
    }
    S16 sums[ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) sums[r][0] = sums[r][1] = starting(step_of(r).start);
    for_each_unit<STEP / 4>([&](auto number) {
      constexpr int U = decltype(number)::value;
      U16 w0, w1;
      read_unit<BITS, U % 4>(at + U / 4 * BITS * LINE_BYTES, w0, w1);
      if constexpr (TABLE) w0 = looked_up(table, w0), w1 = looked_up(table, w1);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const U16 unit = same_unit(columns[r] + 4 * U);
        sums[r][0] = Sums::add(sums[r][0], w0, unit), sums[r][1] = Sums::add(sums[r][1], w1, unit);
      }
    });
    prefetch_step(next);
    prefetch_l2(queue.at);
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      const F16 x_scale = set1(step_of(r).scale);
      totals[r][0] = added_step<Sums>(totals[r][0], sums[r][0], x_scale, scale0);
      totals[r][1] = added_step<Sums>(totals[r][1], sums[r][1], x_scale, scale1);
    }
    if (has_offsets) {
      F16 offset0, offset1;
      load_scales(offsets, wide, offset0, offset1);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++) {
        const F16 x_sum = set1(step_of(r).sum);
        totals[r][0] = fma(offset0, x_sum, totals[r][0]), totals[r][1] = fma(offset1, x_sum, totals[r][1]);
      }
    }
    columns.advance(STEP), steps.advance(sizeof(StepOfRow));
    at += STEP_BYTES, next.at += next.step, queue.at += queue.step;
  }
  const F16 factor0 = load(factors), factor1 = load(factors + LANES);
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; r++) store(out + r * PANEL, totals[r][0] * factor0, totals[r][1] * factor1);
}

using TileKernel = decltype(&multiply_tile<ByteSums, 8, false, 32, 1>);

// Kernels for 1 … TILE_HEIGHT rows.
struct TileKernels {
  TileKernel of[TILE_HEIGHT];
};

template <class Sums, int BITS, bool TABLE, int STEP>
TileKernels kernels_of_heights() {
  TileKernels kernels;
  for_each_unit<TILE_HEIGHT>([&](auto number) {
    constexpr int R = decltype(number)::value;
    kernels.of[R] = multiply_tile<Sums, BITS, TABLE, STEP, R + 1>;
  });
  return kernels;
}

template <class Sums, int BITS, bool TABLE = false>
TileKernels tile_kernels_of(const Quantized& q) {
  return q.step == 32 ? kernels_of_heights<Sums, BITS, TABLE, 32>() : kernels_of_heights<Sums, BITS, TABLE, 16>();
}

inline TileKernels tile_kernels(const Quantized& q) {
  if (q.kind == CodeKind::bytes) return tile_kernels_of<ByteSums, 8>(q);
  if (q.kind == CodeKind::byte_table) return tile_kernels_of<ByteSums, 4, true>(q);
  switch (q.bits) {
    case 2: return tile_kernels_of<CodeSums, 2>(q);
    case 3: return tile_kernels_of<CodeSums, 3>(q);
    case 4: return tile_kernels_of<CodeSums, 4>(q);
    case 5: return tile_kernels_of<CodeSums, 5>(q);
    default: return tile_kernels_of<CodeSums, 6>(q);
  }
}

// At least one row of bytes. finish(panel, first row, rows, their products).
template <class Finish>
void multiply_row_tiles(Worker& worker, const PreparedRows& x, int64_t rows, const Packed& w, const Quantized& q,
                        PrefetchQueue& queue, Finish&& finish) {
  alignas(64) float products[TILE_HEIGHT * PANEL];
  const TileKernels kernels = tile_kernels(q);
  const int64_t units = q.steps();
  const auto multiply = [&](int64_t row, int64_t count, int64_t panel, PrefetchStream next, PrefetchStream beside) {
    const PreparedTile some{reinterpret_cast<const int8_t*>(x.row(row)), x.steps(row), x.stride()};
    kernels.of[count - 1](q, reinterpret_cast<const uint8_t*>(w.panel(panel, 0)), some, q.factors + panel * PANEL, next, beside, products);
    finish(panel, row, count, products);
  };
  if (rows >= MANY_ROWS) {
    const GemmGroups groups(worker, rows, TILE_HEIGHT, w, units, w.bytes);
    queue.spread(groups.units_of_each(worker), groups.pace_of_panels());
    return groups.each_tile(worker, [](int64_t, int64_t) {}, [&](const GroupTile& tile) {
      const int64_t bytes = tile.count * x.stride();
      each_panel(tile, x.row(tile.row) + bytes, bytes, units, queue, [&](int64_t panel, PrefetchStream next, PrefetchStream later) {
        multiply(tile.row, tile.count, panel, next, later);
      });
    });
  }
  const GemmTiling tiling(worker, {TILE_HEIGHT, true, 1 << 18, 64}, rows, x.stride(), w, units);
  queue.spread(tiling.units_of_each(worker));
  tiling.each_tile(worker, [&](const GemmTile& tile) {
    for (int64_t panel = tile.first; panel < tile.last; panel++)
      multiply(tile.row, tile.count, panel, tile.beside(panel), queue.next(units));
  });
}

}  // namespace quire
