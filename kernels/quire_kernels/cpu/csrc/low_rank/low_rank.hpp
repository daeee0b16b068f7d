// Applies adapters to the outputs of one projection: y += (x · aᵀ) · bᵀ, each for the tokens that use it.
//
// An adapter's weights for a projection are contiguous: the matrices a of all its slices as one, [panel][unit][16],
// then b of each slice, [panel][unit][16], in bfloat16 usually compressed (`gemm/bf16_compressed.hpp`). A unit is
// four bytes of neighboring inputs (of a) or ranks (of b). Ranks are padded to a unit (to 32 elements if there are
// more), their sum to 16, inputs to 32. A thread takes some tokens of one segment from x to y, so threads exchange
// nothing within a phase, and in a pass no two threads write the same row. Sums are in a fixed order, as in
// `gemm/gemm.hpp`.
#pragma once
#include "gemm/gemm.hpp"
#include "low_rank/adapter_slots.hpp"
#include "scratch.hpp"
#include "rowwise.hpp"
#include "thread_team.hpp"

namespace quire {

// Some entries of a segment: tokens that use one adapter.
template <class Y>
struct Entries {
  const int32_t* tokens;
  const float* weights;
  int64_t count;
  Rows<Y> y;
};

// y · (1 + w · (scale - 1)) + w · shift for `n` ≤ 16 outputs of a slice, starting at `at`.
template <class Y>
inline F16 rescaled(const Slice& slice, const Y* y, int64_t at, int n, float weight) {
  F16 value = get(y + at, n);
  const F16 w = set1(weight);
  if (slice.scale) value = value * fma(w, get(slice.scale + at, n) - set1(1.0f), set1(1.0f));
  if (slice.shift) value = fma(w, get(slice.shift + at, n), value);
  return value;
}

}  // namespace quire

#include "low_rank/low_rank_vector.hpp"
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "low_rank/low_rank_amx.hpp"
#include "low_rank/shrink.hpp"
#endif

namespace quire {

// Pointers to the tokens' rows of x, padded to the width of a's panels and widened.
template <class T, class Y>
void gather_rows(const AdapterSlots& slots, const Entries<Y>& entries, Rows<T> x, const RowElement<T>** rows) {
  static thread_local ScratchBuffer<RowElement<T>> copies;
  const int64_t inputs = padded(slots.inputs, INPUT_STEP);
  const bool copied = FACTORS<T> > 1 || slots.inputs != inputs;
  if (copied) copies.fit(entries.count * inputs);
  for (int64_t r = 0; r < entries.count; r++) {
    const T* row = x.row(entries.tokens[r], 0);
    if constexpr (FACTORS<T> == 1) rows[r] = row;
    if (!copied) continue;
    RowElement<T>* copy = copies.data() + r * inputs;
    widen_row(row, slots.inputs, inputs, copy);
    rows[r] = copy;
  }
}

// The sums with a are weighted, and rounded if products take them so, [count][panels of a · 16], before they are multiplied with b.
template <class T, class Y, class Kernel>
void apply_to_entries(Kernel&& kernel, const AdapterSlots& slots, const PackedWeights& adapter,
                      const Entries<Y>& entries, Rows<T> x) {
  static thread_local ScratchBuffer<RowElement<T>> middle;
  const int64_t width = adapter.panels * LANES, units = padded(slots.inputs, INPUT_STEP) / PER_UNIT<T>;
  if (adapter.panels) {
    const RowElement<T>* rows[TOKENS_PER_ITEM];
    gather_rows(slots, entries, x, rows);
    middle.fit(entries.count * width);
    kernel.shrink(rows, entries.weights, entries.count, adapter, units, middle.data());
  }
  for (int32_t i = 0; i < adapter.num_slices; i++) {
    const Slice& slice = adapter.slices[i];
    if (slice.units || slice.scale || slice.shift) kernel.expand(slice, entries, middle.data(), width);
  }
}

// Writes the rows of w [rows, columns] as lanes first, first + 1, … of panels [panel][unit][16]; other lanes are
// unchanged.
template <class From, class T>
void pack_lanes(const From* w, int64_t rows, int64_t columns, int64_t first, int64_t units, T* panels) {
  constexpr int64_t P = PER_UNIT<T>;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t lane = first + r;
    T* out = panels + (lane / LANES * units * LANES + lane % LANES) * P;
    for (int64_t c = 0; c < columns; c++) convert(w[r * columns + c], out[c / P * LANES * P + c % P]);
  }
}

// Queues the weights of the adapters with which this thread will begin.
inline void queue_adapters(const Worker& worker, const AdapterSlots& slots, const StepSegments& segments,
                           PrefetchQueue& queue) {
  for (int64_t pass = 0; pass < segments.num_passes; pass++) {
    const int64_t first = segments.passes[pass], count = segments.passes[pass + 1] - first;
    const PackedWeights* before = nullptr;
    for (int64_t i = count * worker.id / worker.size; i < count * (worker.id + 1) / worker.size; i++) {
      const PackedWeights* adapter = slots.at(segments.items[3 * (first + i)]);
      if (adapter && adapter != before) queue.add(adapter->begin, adapter->bytes);
      before = adapter;
    }
  }
}

// Implements `quire_kernels.low_rank.LowRank`; x and y must be completely written before the call.
template <class T, class Y>
void low_rank(Worker& worker, const AdapterSlots& slots, const StepSegments& segments, Rows<T> x, Rows<Y> y) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  [[maybe_unused]] TileRow row;
  [[maybe_unused]] Tiles tiles;
#endif
  for (int64_t pass = 0; pass < segments.num_passes; pass++) {
    if (pass) worker.barrier();
    const int64_t first = segments.passes[pass];
    worker.each(segments.passes[pass + 1] - first, [&](int64_t i) {
      const int32_t* item = segments.items + 3 * (first + i);
      const PackedWeights* adapter = slots.at(item[0]);
      if (!adapter) return;
      const Entries<Y> entries{segments.tokens + item[1], segments.weights + item[1], item[2], y};
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
      if constexpr (sizeof(T) == 2) {
        if (entries.count == 1) return apply_to_entries<T>(BySums<TileRow>{row}, slots, *adapter, entries, x);
        return apply_to_entries<T>(BySums<Tiles>{tiles}, slots, *adapter, entries, x);
      }
#endif
      apply_to_entries<T>(Vectors<T>{}, slots, *adapter, entries, x);
    });
  }
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) _tile_release();
#endif
}

}  // namespace quire
