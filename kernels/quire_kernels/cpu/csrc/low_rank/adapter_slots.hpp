// The adapters of a projection, and which tokens of a step use them.
#pragma once
#include <algorithm>

#include "gemm/compress.hpp"

namespace quire {

constexpr int64_t TOKENS_PER_ITEM = 32;  // maximum tokens of a segment in one work item
constexpr int64_t TILE_UNITS = 16;
constexpr int64_t PANEL_BLOCK_BYTES = 8192;  // of b, decompressed at once

// One fused matrix of the projection: outputs start … stop-1. scale and shift may be null; units is 0 without b.
struct Slice {
  Compressed b;
  const float *scale, *shift;
  int64_t start, stop;
  int32_t first, units;  // index of its first rank in the sums with a (elements), and number of units

  // Number of outputs to decompress before they are used.
  int64_t outputs_at_once() const {
    if (!b.book) return stop - start;
    return std::max<int64_t>(1, PANEL_BLOCK_BYTES / (2 * LANES * 4 * units)) * 2 * LANES;
  }
};

struct PackedWeights {
  Compressed a;
  const Slice* slices;
  const void* begin;  // start of its memory
  int64_t bytes;
  int32_t panels, num_slices;  // panels of a
  int32_t finite;              // whether b is so, and no slice has scale or shift: 0 · b is 0
  int32_t most_units;          // of a slice
};

struct AdapterSlots {
  const PackedWeights* const* adapters;  // null: the slot is empty
  int64_t count, inputs;
  int64_t num_slices, outputs;
  int64_t most_units;  // of a slice, of the adapters that were in the slots until now

  const PackedWeights* at(int32_t slot) const { return slot < count ? adapters[slot] : nullptr; }
};

// A step's segments, split into items of at most TOKENS_PER_ITEM entries: (slot, first entry, number of entries).
// Items passes[i] … passes[i+1]-1 may run in any order.
struct StepSegments {
  const int32_t* tokens;
  const float* weights;
  const int32_t* items;
  const int64_t* passes;
  int64_t num_passes;
};

}  // namespace quire
