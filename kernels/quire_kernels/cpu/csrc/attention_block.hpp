// What attention is told of a step, the memory of a thread, and a block of positions: what lines are computed with.
#pragma once
#include <utility>
#include <vector>

#include "pages.hpp"
#include "product.hpp"
#include "room.hpp"

namespace quire {

constexpr int BLOCK = 64;  // positions
constexpr int GROUPS = BLOCK / GROUP;
constexpr int64_t STRIP = 32;  // lines that go through a block together
constexpr int64_t FEW_LINES = 8;  // reading keys and values takes nearly all the time
constexpr int64_t MOST_LINES = 256, MOST_TOKENS = 32;

// The rows of a step, as in `quire_kernels.ops.Rows`.
struct StepRows {
  const int32_t *query_starts, *contexts, *pages;
  int64_t count, pages_stride;
  const int32_t* ends;  // of what each token of the step sees; null: of each its own position is the last
};

constexpr int64_t WITHOUT_END = int64_t{1} << 40;  // positions

struct AttentionArgs {
  Pool k, v;
  int64_t heads;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
  int64_t ahead = 0;     // how many positions after its own a token sees
};

// shared: blocks at the beginning that all tokens see on the same pages; then each token is of a row of its own, the
// first of row `row`. Otherwise all are of that row, the first one at `position`.
struct Tile {
  int64_t row, token, tokens, position, shared;
};

// A query as whole numbers, whose halves are bytes: scale · (256 · high + low).
struct Halved {
  float scale;
  int32_t high, low;  // sums of those bytes
};

// Memory of one thread, kept between calls.
template <class T>
struct Scratch {
  Room<T> q, values, weights;
  Room<int8_t> halves;  // of q, where attention multiplies bytes: [line][high, low][dim]
  Room<Halved> halved;
  Room<float> out, top, totals, scores, steps;
  std::vector<Tile> tiles;

  void fit(int64_t lines, int64_t dim) {
    q.fit(lines * dim), out.fit(lines * dim), values.fit(BLOCK * dim);
    top.fit(lines), totals.fit(lines * LANES);
    weights.fit(2 * STRIP * BLOCK), scores.fit(2 * STRIP * BLOCK), steps.fit(2 * STRIP);
    if constexpr (MULTIPLIES_BYTES<T>) halves.fit(lines * 2 * dim), halved.fit(lines);
  }
};

template <class T>
inline Scratch<T>& scratch() {
  static thread_local Scratch<T> mine;
  return mine;
}

// Where the groups of a block lie: in which page, and which group of the page it is.
struct Places {
  int64_t page[GROUPS], at[GROUPS];
};

// The keys and values of up to 64 positions of one head.
template <class T>
struct Block {
  int64_t begin;  // position of the first
  int count;      // how many there are
  const T* keys[GROUPS];
  const T* values[GROUPS];  // rows of `stride` units: [8 or 16 position units][stride]
  const T* next_keys[GROUPS];  // as much of what comes next in memory, to be asked for in time
  const T* next_values[GROUPS];
  const int8_t *key_bytes[GROUPS], *value_bytes[GROUPS];  // instead, where bytes are multiplied
  const int8_t* next_key_bytes[GROUPS];                   // and where pages hold bytes
  const int8_t* next_value_bytes[GROUPS];
  bool has_scales = false;  // for each position, that its score and its weight are multiplied by
  bool finite = true;       // whether those of values are numbers
  alignas(64) float key_scales[BLOCK], value_scales[BLOCK];
  int groups() const { return (count + GROUP - 1) / GROUP; }
};

template <class Four, class Three, class Two, class One>
void by_four(int64_t lines, Four&& four, Three&& three, Two&& two, One&& one) {
  int64_t l = 0;
  for (; l + 4 <= lines; l += 4) four(l);
  if (lines - l == 3) three(l);
  if (lines - l == 2) two(l);
  if (lines - l == 1) one(l);
}

// `there` positions of a group of values, rows padded to `stride`; the positions that are not there become zero,
// whatever their slots hold: 0 · NaN would be NaN.
template <class T>
void copy_values(const T* values, int there, int64_t dim, int64_t stride, T* copy) {
  constexpr int P = PER_UNIT<T>;
  for (int u = 0; u < GROUP / P; u++) {
    T* row = copy + u * stride * P;
    std::memcpy(row, values + u * dim * P, dim * P * sizeof(T));
    if (stride > dim) std::memset(static_cast<void*>(row + dim * P), 0, (stride - dim) * P * sizeof(T));
    for (int p = 0; p < P; p++)
      if (u * P + p >= there)
        for (int64_t d = 0; d < dim; d++) row[d * P + p] = T{};
  }
}

}  // namespace quire
