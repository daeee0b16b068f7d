// The first product of adapters that are terms of another product's sums: middle = weight · x · aᵀ.
#pragma once
#include "low_rank/low_rank_amx.hpp"
#include "low_rank/low_rank_terms.hpp"

namespace quire {

constexpr int64_t FEW_USES = 4;  // of each thread: with fewer, their slices are divided among the threads

// Rounds and weights sums [users][width] of the ranks of a slice.
inline void write_tile(const TileUse& use, const Slice& slice, const float* sums, int64_t width, bf16* to) {
  const int64_t ranks = slice.units * PER_UNIT<bf16>;
  for (int64_t block = 0; block < ranks; block += INPUT_STEP, to += AmxTiles::ROWS * INPUT_STEP) {
    const int left = static_cast<int>(std::min<int64_t>(LANES, ranks - block));
    const int right = static_cast<int>(std::clamp<int64_t>(ranks - block - LANES, 0, LANES));
    const float* from = sums + block;
    for (int64_t r = 0; r < use.count; r++) {
      F16 first = zero(), second = zero();
      if (use.rows >> r & 1) {
        first = load(from, left) * set1(use.weights[r]);
        if (right) second = load(from + LANES, right) * set1(use.weights[r]);
        from += width;
      }
      store(to + r * INPUT_STEP, first, second);
    }
  }
}
inline void write_rows(const TileUse& use, const Slice& slice, const float* sums, int64_t width, float* to) {
  const int64_t ranks = slice.units * PER_UNIT<bf16>;
  for (uint32_t rows = use.rows; rows; rows &= rows - 1, sums += width, to += ranks) {
    const F16 weight = set1(use.weights[__builtin_ctz(rows)]);
    lanes(ranks, [&](int64_t i, int n) { set(to + i, rounded<bf16>(get(sums + i, n) * weight), n); });
  }
}

// The second product for all users and outputs of a slice: added [user][outputs].
inline void expand_rows(const Slice& slice, int64_t users, const float* ranks, int64_t outputs, float* added) {
  float* rows[AmxTiles::ROWS];
  for (int64_t i = 0; i < slice.stop - slice.start; i += LANES) {
    for (int64_t r = 0; r < users; r++) rows[r] = added + r * outputs + slice.start + i, store(rows[r], zero());
    if (slice.units) add_products(users, ranks, slice.b.units() + i * slice.units, slice.units, rows);
  }
}

// x [tokens, inputs]. Rows that do not use the slot are left out of the product.
inline void shrink(Worker& worker, const AdapterSlots& slots, const TileUses& uses, Rows<bf16> x, const ShrinkBuffers& to) {
  static thread_local ScratchBuffer<float> sums, ranks;
  const TileRow row;
  Tiles tiles;
  const int64_t units = padded(slots.inputs, INPUT_STEP) / PER_UNIT<bf16>;
  const int64_t parts = uses.count() < FEW_USES * worker.size ? slots.num_slices : 1;  // of a use
  worker.each(uses.count() * parts, [&](int64_t i) {
    const TileUse& use = uses[i / parts];
    const PackedWeights* adapter = slots.at(use.slot);
    if (!adapter) return;
    const Slice *begin = adapter->slices + slots.num_slices * (i % parts) / parts, *end = adapter->slices + slots.num_slices * (i % parts + 1) / parts;
    const int64_t first = begin->first / LANES, last = ((end - 1)->first + (end - 1)->units * PER_UNIT<bf16> + LANES - 1) / LANES;
    const auto some = tile_rows<bf16>(x.row(use.row, 0), x.stride, use.count, slots.inputs);
    const bf16* rows[AmxTiles::ROWS];
    int64_t users = 0;
    for (uint32_t left = use.rows; left; left &= left - 1) rows[users++] = some.base + __builtin_ctz(left) * some.stride;
    const int64_t width = (last - first) * LANES;
    sums.fit(AmxTiles::ROWS * width);
    const uint32_t* a = adapter->a.units() + first * units * LANES;
    if (users == 1)
      row.multiply(rows, 1, a, last - first, units, sums.data(), width);
    else if (first < last)
      tiles.multiply(rows, users, a, last - first, units, sums.data(), width);
    for (const Slice* slice = begin; slice < end; slice++) {
      const float* from = sums.data() + slice->first - first * LANES;
      float* middle = to.middle_of(slots, i / parts, slice - adapter->slices);
      const AddedBy by = uses.added_by(use, *adapter);
      if (by == AddedBy::tiles) write_tile(use, *slice, from, width, reinterpret_cast<bf16*>(middle));
      if (by == AddedBy::vectors) write_rows(use, *slice, from, width, middle);
      if (by != AddedBy::shrink) continue;
      ranks.fit(AmxTiles::ROWS * slice->units * PER_UNIT<bf16>);
      write_rows(use, *slice, from, width, ranks.data());
      expand_rows(*slice, users, ranks.data(), slots.outputs, to.added_of(slots, use));
    }
  });
  _tile_release();
}

// Queues the weights with which this thread will begin.
inline void queue_shrink(const Worker& worker, const AdapterSlots& slots, const TileUses& uses, PrefetchQueue& queue) {
  const PackedWeights* before = nullptr;
  for (int64_t i = uses.count() * worker.id / worker.size; i < uses.count() * (worker.id + 1) / worker.size; i++) {
    const PackedWeights* adapter = slots.at(uses[i].slot);
    if (adapter && adapter != before) queue.add(adapter->begin, adapter->bytes);
    before = adapter;
  }
}

}  // namespace quire
