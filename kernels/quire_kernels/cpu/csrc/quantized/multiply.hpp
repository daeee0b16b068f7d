// Products with matrices of few bits: y = x · wᵀ + bias, for one row or thousands.
#pragma once
#include "gemm/gemm_epilogue.hpp"
#include "quantized/kernels.hpp"

#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
#include "quantized/tiles.hpp"
#endif
#if defined(__AVX512VNNI__)
#include "quantized/row_tiles.hpp"
#endif

namespace quire {

constexpr int64_t BLOCK_ROWS = 64;  // whose totals stay in a core's first-level cache while a panel streams through
constexpr int64_t ROWS_PER_PREFETCH = 4;  // of memory that is read after the product

// Multiplies totals [rows][32] by the factors of their outputs.
inline void apply_factors(const float* factors, int64_t rows, float* totals) {
  const F16 left = load(factors), right = load(factors + LANES);
  for (int64_t r = 0; r < rows; r++, totals += PANEL) store(totals, load(totals) * left, load(totals + LANES) * right);
}

// The products of rows first … first+count-1 with a panel, [count][32].
template <class Products>
void multiply_panel(const Quantized& q, StepReader& reader, const uint8_t* at, const PreparedRows& x, int64_t first,
                    int64_t count, PrefetchStream queue, float* totals) {
  alignas(64) float scales[PANEL], offsets[PANEL];
  F16 left, right;
  std::fill_n(totals, count * PANEL, 0.0f);
  const int64_t element = q.multiplies_floats() ? 4 : 1;
  RowsOfStep rows{x.row(first), reinterpret_cast<const uint8_t*>(x.steps(first)), x.stride(), q.step, scales,
                  q.has_offsets ? offsets : nullptr, totals};
  for (int64_t group = 0; group < q.groups; group++) {
    prefetch_block(at, q.head_bytes());
    load_scales(at, q.wide, left, right);
    store(scales, left, right);
    if (q.has_offsets) {
      load_scales(at + q.scale_bytes(), q.wide, left, right);
      store(offsets, left, right);
    }
    at += q.head_bytes();
    for (int64_t step = 0; step < q.group / q.step; step++, at += q.step_bytes()) {
      prefetch_block(at, q.step_bytes());
      const void* w = reader.read(at);
      add_products<Products>(rows, 0, count, w);
      rows.x += q.step * element, rows.steps += sizeof(StepOfRow);
      for (int64_t line = 0; line < count; line += ROWS_PER_PREFETCH, queue.at += queue.step)
        prefetch_l2(queue.at);
    }
  }
}

using PanelKernel = decltype(&multiply_panel<FloatProducts>);

inline PanelKernel panel_kernel([[maybe_unused]] const Quantized& q) {
#if !defined(__AVX512VNNI__)  // bytes: `row_tiles.hpp`
  if (!q.multiplies_floats() && q.kind == CodeKind::codes)
    return q.step == 32 ? multiply_panel<ByteProducts<CodeSums, 8>> : multiply_panel<ByteProducts<CodeSums, 4>>;
  if (!q.multiplies_floats())
    return q.step == 32 ? multiply_panel<ByteProducts<ByteSums, 8>> : multiply_panel<ByteProducts<ByteSums, 4>>;
#endif
  return multiply_panel<FloatProducts>;
}

template <class T>
void multiply_blocks(Worker& worker, const PreparedRows& x, int64_t rows, const Packed& w, const Quantized& q,
                     const GemmOutput& to, PrefetchQueue& queue) {
  alignas(64) float totals[BLOCK_ROWS * PANEL];
  StepReader reader(q);
  const PanelKernel kernel = panel_kernel(q);
  const int64_t blocks = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS;
  const int64_t height = padded((rows + blocks - 1) / blocks, QUANTIZED_ROWS), panels = w.panels();
  const int64_t units = q.steps() * ((height + ROWS_PER_PREFETCH - 1) / ROWS_PER_PREFETCH);  // prefetches of an item
  queue.spread(std::max<int64_t>(1, panels * blocks / worker.size) * units);
  worker.each(panels * blocks, [&](int64_t item) {
    const int64_t panel = item % panels, first = item / panels * height, count = std::min(height, rows - first);
    const uint8_t* at = reinterpret_cast<const uint8_t*>(w.panel(panel, 0));
    kernel(q, reader, at, x, first, count, queue.next(units), totals);
    apply_factors(q.factors + panel * PANEL, count, totals);
    apply_epilogue<T>(w, to, panel, first, count, totals);
  });
}

// x [rows, inputs] with `stride` elements between rows. shared: memory for `rows` prepared rows.
template <class T>
void multiply_quantized(Worker& worker, const T* x, int64_t stride, int64_t rows, const Packed& w, const Quantized& q,
                        void* shared, const GemmOutput& to, PrefetchQueue& queue) {
  if (rows == 0) return;
  const PreparedRows prepared = prepare_rows(worker, x, stride, rows, w.inputs, q, shared);
#if defined(__AVX512VNNI__)
  if (rows > 1 && !q.multiplies_floats()) {
    const auto finish = [&](int64_t panel, int64_t first, int64_t count, const float* products) {
      apply_epilogue<T>(w, to, panel, first, count, products);
    };
#if defined(__AMX_TILE__) && defined(__AMX_INT8__)
    if (rows >= MIN_TILE_ROWS)
      return multiply_by_tiles(worker, prepared, rows, w, q, [&](int64_t panel, int64_t first, int64_t count, float* totals) {
        apply_factors(q.factors + panel * PANEL, count, totals);
        finish(panel, first, count, totals);
      });
#endif
    return multiply_row_tiles(worker, prepared, rows, w, q, queue, finish);
  }
#endif
  if (rows > 1 || q.multiplies_floats()) return multiply_blocks<T>(worker, prepared, rows, w, q, to, queue);
  alignas(64) float totals[PANEL];
  const RowKernel kernel = row_kernel(q);
  worker.each(w.panels(), [&](int64_t panel) {
    kernel(q, reinterpret_cast<const uint8_t*>(w.panel(panel, 0)), reinterpret_cast<const int8_t*>(prepared.row(0)),
           prepared.steps(0), totals);
    apply_factors(q.factors + panel * PANEL, 1, totals);
    apply_epilogue<T>(w, to, panel, 0, 1, totals);
  });
}

}  // namespace quire
