// Inputs of attention, the scratch memory of a thread, and the block of positions that lines are computed with.
#pragma once
#include <algorithm>
#include <utility>
#include <vector>

#include "attention/pages.hpp"
#include "gemm/gemm.hpp"
#include "scratch.hpp"
#include "tile_heights.hpp"

namespace quire {

constexpr int BLOCK = 64;  // positions
constexpr int GROUPS = BLOCK / GROUP;
constexpr int64_t STRIP = 32;  // lines that are processed together in a block
constexpr int64_t STRIP_BLOCKS = 8;  // that a strip passes in turn, where its kernel takes several
constexpr int64_t FEW_LINES = 8;  // up to so many lines, reading keys and values takes nearly all the time
#if defined(__AMX_TILE__)
constexpr int64_t MAX_LINES = 512, MAX_TILE_TOKENS = 128;  // values are copied for each tile
constexpr bool DIVIDES_HEADS = true;  // of tiles of many lines, so that there are enough items for all threads
#else
constexpr int64_t MAX_LINES = 256, MAX_TILE_TOKENS = 32;
constexpr bool DIVIDES_HEADS = false;
#endif

// The rows of a step, as in `quire_kernels.ops.AttentionMetadata`.
struct StepRows {
  const int32_t *query_starts, *contexts, *pages;
  int64_t count, pages_stride;
  const int32_t* ends;  // end of the visible positions of each token; null: every token attends up to itself
};

// Block-sparse attention: the struct `quire_kernels.attention.Stripes`.
struct Stripes {
  int64_t block, local, stride, step, first;

  bool sees(int64_t position, int64_t head, int64_t at) const {
    return position / block - at / block < local || (at / block + 1 + (first + head) * step) % stride == 0;
  }

  // Whether the token at `position`, or one after it, may see the BLOCK positions from `begin` on, by any of the heads.
  bool may_see(int64_t position, int64_t head, int64_t heads, int64_t begin) const {
    if (block % BLOCK) return true;
    for (int64_t h = head; h < head + heads; h++)
      if (sees(position, h, begin)) return true;
    return false;
  }

  // Marks which of the positions begin + from … begin + to - 1 are hidden, by what is added to their scores. Returns
  // whether any is visible.
  bool mark(int64_t position, int64_t head, int64_t begin, int from, int to, float hidden, float* added) const {
    bool any = false;
    for (int i = from, end; i < to; i = end) {
      end = static_cast<int>(std::min<int64_t>(to, ((begin + i) / block + 1) * block - begin));
      const bool seen = sees(position, head, begin + i);
      std::fill(added + i, added + end, seen ? 0.0f : hidden);
      any |= seen;
    }
    return any;
  }
};

constexpr int64_t WITHOUT_END = int64_t{1} << 40;  // positions

struct AttentionArgs {
  Pool k, v;
  int64_t heads;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  int64_t ahead = 0;     // number of stream positions that a token attends to
  int64_t chunk = 0;     // a token attends to the positions of its own chunk; 0: to all before it
  const float* sinks = nullptr;   // a score for each head that has no value; null: none
  const float* slopes = nullptr;  // for each head, what a score loses with each position of distance; null: nothing
  bool latent = false;            // values are the first v.dim elements of the keys
  const float* biases = nullptr;  // for each head, what is added to scores by relative position; null: nothing
  const Stripes* stripes = nullptr;
  int64_t reach = 0;              // … of a row of biases: relative positions from -reach - BLOCK to reach + BLOCK
  int64_t group = 0;              // query heads of a key-value head; 0: heads / k.heads
  int64_t before = 0;             // number of query heads of the first key-value head that are not here
  bool exact = false;             // the bits of a token's result depend on no other token, whatever kernels there are

  // The query heads that use a key-value head: the first of them, and their number.
  int64_t first_query(int64_t kv_head) const { return std::max<int64_t>(0, kv_head * group - before); }
  int64_t queries(int64_t kv_head) const {
    return std::min(heads, (kv_head + 1) * group - before) - first_query(kv_head);
  }

  // The first position that a token at `position` attends to.
  int64_t oldest(int64_t position) const {
    if (window) return std::max<int64_t>(0, position - window + 1);
    return chunk ? position / chunk * chunk : 0;
  }

  // What a head adds to the scores of a block, whose first position is `first` positions after the token's.
  const float* biases_of(int64_t head, int64_t first) const {
    const int64_t from = std::clamp(first, -reach - BLOCK, reach + 1);  // beyond the reach all biases are equal
    return biases + head * (2 * (reach + BLOCK) + 1) + from + reach + BLOCK;
  }
};

// shared: number of leading blocks that all tokens read from the same pages; then each token belongs to a row of
// its own, the first to row `row`. Otherwise all tokens belong to that row, the first at `position`.
struct Tile {
  int64_t row, token, tokens, position, shared;
};

// A tile, or one of its splits (`attention/attention_splits.hpp`): positions begin … end-1. stored: the first line of
// its sums in the memory that threads share, -1 for a whole tile.
struct Part {
  int64_t tile, begin, end, stored;
};

// A query as 16-bit integers, split into bytes: scale · (256 · high + low).
struct Halved {
  float scale;
  int32_t high, low;  // sums of these bytes
};

// Page of each group of a block, and the group's index in that page.
struct GroupOffsets {
  int64_t page[GROUPS], at[GROUPS];
};

// The keys and values of up to 64 positions of one head.
template <class T>
struct Block {
  int64_t begin;  // first position
  int count;      // number of positions
  int64_t head = 0, queries = 0;  // the first query head, and the number of query heads
  const T* keys[GROUPS];
  const T* values[GROUPS];  // rows of `stride` units: [8 or 16 position units][stride]
  const T* next_keys[GROUPS];  // memory of the same size that is read next, to be prefetched
  const T* next_values[GROUPS];
  const int8_t *key_bytes[GROUPS], *value_bytes[GROUPS];  // instead of keys and values, where bytes are multiplied
  const int8_t* next_key_bytes[GROUPS];                   // and where pages are int8 or int4
  const int8_t* next_value_bytes[GROUPS];
  CodeGroup key_codes[GROUPS], value_codes[GROUPS];  // where pages are int4
  const float* value_steps;                          // [dim / 32][scales, offsets][BLOCK]
  bool has_scales = false;  // whether scores and weights are multiplied by a scale for each position
  bool finite = true;       // whether the scales of values are finite
  alignas(64) float key_scales[BLOCK], value_scales[BLOCK];
  int groups() const { return (count + GROUP - 1) / GROUP; }
};

// Scratch memory of one thread, reused between calls.
template <class T>
struct Scratch {
  ScratchBuffer<RowElement<T>> q, weights;
  ScratchBuffer<T> values;
  ScratchBuffer<int8_t> halves;  // of q, if attention multiplies bytes: [line][high, low][dim]
  ScratchBuffer<Halved> halved;
  ScratchBuffer<float> out, top, totals, scores, steps;
  ScratchBuffer<float> earlier;  // sums of the splits before the current one, as `LineSums` has them
  ScratchBuffer<float> stored;   // sums of splits that threads exchange
  std::vector<Tile> tiles;
  std::vector<Part> parts;
  Block<T> blocks[STRIP_BLOCKS];

  // dim: of queries, width: of values, both padded.
  void fit(int64_t lines, int64_t dim, int64_t width) {
    q.fit(lines * dim), out.fit(lines * width), values.fit(STRIP_BLOCKS * BLOCK * width);
    top.fit(lines), totals.fit(lines * LANES), earlier.fit(lines * (width + 2 * LANES));
    weights.fit(2 * STRIP * BLOCK), scores.fit(STRIP * BLOCK), steps.fit(STRIP);  // weights of two bands
    if constexpr (MULTIPLIES_BYTES<T>) halves.fit(lines * 2 * dim), halved.fit(lines);
  }
};

template <class T>
inline Scratch<T>& scratch() {
  static thread_local Scratch<T> mine;
  return mine;
}

// Copies `present` positions of a group of values, rows padded to `stride`. Missing positions become zero, because
// their slots may hold NaN, and 0 · NaN is NaN.
template <class T>
void copy_values(const T* values, int present, int64_t dim, int64_t stride, T* copy) {
  constexpr int P = PER_UNIT<T>;
  if (present == GROUP && dim == stride) {
    std::memcpy(copy, values, GROUP * dim * sizeof(T));
    return;
  }
  for (int u = 0; u < GROUP / P; u++) {
    const T* from = values + u * dim * P;
    T* row = copy + u * stride * P;
    const int here = std::clamp(present - u * P, 0, P);
    const int64_t filled = here == P ? dim : 0;
    std::memcpy(row, from, filled * P * sizeof(T));
    std::memset(static_cast<void*>(row + filled * P), 0, (stride - filled) * P * sizeof(T));
    if (0 < here && here < P)  // one of two
      for (int64_t d = 0; d < dim; d++) row[d * P] = from[d * P];
  }
}

// The first `dim` elements of a group of keys as values, [position unit][stride], likewise.
template <class T>
void transpose_keys(const T* keys, int present, int64_t dim, int64_t stride, T* copy) {
  constexpr int P = PER_UNIT<T>;
  int64_t d = 0;
#if defined(__AVX512F__)
  if constexpr (P == 1)
    for (; d + LANES <= dim; d += LANES) {
      U16 units[LANES];
      for (int i = 0; i < LANES; i++) units[i] = load_units(keys + (d + i) * GROUP);
      transpose(units);
      for (int i = 0; i < LANES; i++) store_units(copy + i * stride + d, units[i]);
    }
#endif
  for (; d < dim; d += P)
    for (int p = 0; p < GROUP; p += P)
      for (int i = 0; i < P; i++)
        for (int j = 0; j < P; j++) copy[(p / P * stride + d + i) * P + j] = keys[(d / P * GROUP + p + j) * P + i];
  for (int p = 0; p < GROUP; p++) {
    T* row = copy + p / P * stride * P + p % P;
    for (int64_t i = p < present ? dim : 0; i < stride; i++) row[i * P] = T{};
  }
}

}  // namespace quire
