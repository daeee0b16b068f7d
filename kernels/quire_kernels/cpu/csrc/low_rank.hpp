// What adapters add to the outputs of one projection: y += (x · aᵀ) · bᵀ, each for the tokens that use it.
//
// An adapter's share in a projection is one stretch of memory: the matrices a of all its slices as one, [panel][unit][16],
// then for each slice b, [panel][unit][16], in bfloat16 as a rule compact (`compact.hpp`); a unit is four bytes of
// neighbouring inputs (of a) or ranks (of b). Ranks are padded to a unit (to 32 elements if there are more), their sum to
// 16, inputs to 32. A thread does some tokens of one segment from x to y, so nothing is handed over within a phase, and in
// a turn no two write the same row. Every sum is in an order that depends on nothing else, as in `product.hpp`.
#pragma once
#include <algorithm>

#include "compact.hpp"
#include "product.hpp"
#include "room.hpp"
#include "rowwise.hpp"
#include "team.hpp"

namespace quire {

constexpr int64_t SOME_TOKENS = 32;  // of a segment, that are done together
constexpr int64_t TILE_UNITS = 16;
constexpr int64_t PIECE_BYTES = 8192;  // of b, made plain at once

// One matrix of the projection: outputs start … stop-1. scale and shift may be null; without units there is no b.
struct Slice {
  Stored b;
  const float *scale, *shift;
  int64_t start, stop;
  int32_t first, units;  // where its ranks begin in the sums with a (elements), and how many there are

  // Outputs that are worth making plain before they are used again.
  int64_t outputs_at_once() const {
    if (!b.book) return stop - start;
    return std::max<int64_t>(1, PIECE_BYTES / (2 * LANES * 4 * units)) * 2 * LANES;
  }
};

struct Share {
  Stored a;
  const Slice* slices;
  const void* begin;  // of its memory
  int64_t bytes;
  int32_t panels, num_slices;  // panels of a
};

struct Seats {
  const Share* const* shares;  // null: nobody sits there
  int64_t count, inputs;
};

// A step's segments, cut into items of at most SOME_TOKENS entries: (seat, first entry, number of entries). Items
// turns[i] … turns[i+1]-1 may be done in any order.
struct StepSegments {
  const int32_t* tokens;
  const float* weights;
  const int32_t* items;
  const int64_t* turns;
  int64_t num_turns;
};

// Some tokens that use one share.
template <class Y>
struct Users {
  const int32_t* tokens;
  const float* weights;
  int64_t count;
  Rows<Y> y;
};

// y · (1 + w · (scale - 1)) + w · shift, for `n` ≤ 16 outputs of a slice from `at` on.
template <class Y>
inline F16 rescaled(const Slice& slice, const Y* y, int64_t at, int n, float weight) {
  F16 value = get(y + at, n);
  const F16 w = set1(weight);
  if (slice.scale) value = value * fma(w, get(slice.scale + at, n) - set1(1.0f), set1(1.0f));
  if (slice.shift) value = fma(w, get(slice.shift + at, n), value);
  return value;
}

}  // namespace quire

#include "low_rank_vector.hpp"
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "low_rank_amx.hpp"
#endif

namespace quire {

// The rows of x that some tokens have, as wide as the panels of a are.
template <class T, class Y>
void find_rows(const Seats& seats, const Users<Y>& users, Rows<T> x, const T** rows) {
  static thread_local Room<T> copies;
  const int64_t inputs = padded(seats.inputs, INPUT_STEP);
  const bool exact = seats.inputs == inputs;
  if (!exact) copies.fit(users.count * inputs);
  for (int64_t r = 0; r < users.count; r++) {
    rows[r] = x.row(users.tokens[r], 0);
    if (exact) continue;
    T* copy = copies.data() + r * inputs;
    std::memcpy(copy, rows[r], seats.inputs * sizeof(T));
    std::fill(copy + seats.inputs, copy + inputs, T{});
    rows[r] = copy;
  }
}

// The sums with a are weighted and rounded, [count][panels of a · 16], as they are multiplied with b.
template <class T, class Y, class Kernel>
void change_users(Kernel&& kernel, const Seats& seats, const Share& share, const Users<Y>& users, Rows<T> x) {
  static thread_local Room<T> middle;
  const int64_t width = share.panels * LANES, units = padded(seats.inputs, INPUT_STEP) / PER_UNIT<T>;
  if (share.panels) {
    const T* rows[SOME_TOKENS];
    find_rows(seats, users, x, rows);
    middle.fit(users.count * width);
    kernel.shrink(rows, users.weights, users.count, share, units, middle.data());
  }
  for (int32_t i = 0; i < share.num_slices; i++) {
    const Slice& slice = share.slices[i];
    if (slice.units || slice.scale || slice.shift) kernel.expand(slice, users, middle.data(), width);
  }
}

// Rows of w [rows, columns] as lanes first, first + 1, … of panels [panel][unit][16]; the rest of these stays as it is.
template <class From, class T>
void pack_lanes(const From* w, int64_t rows, int64_t columns, int64_t first, int64_t units, T* panels) {
  constexpr int64_t P = PER_UNIT<T>;
  for (int64_t r = 0; r < rows; r++) {
    const int64_t lane = first + r;
    T* out = panels + (lane / LANES * units * LANES + lane % LANES) * P;
    for (int64_t c = 0; c < columns; c++) convert(w[r * columns + c], out[c / P * LANES * P + c % P]);
  }
}

// The shares that a thread will begin with, to be asked for before.
inline void announce_shares(const Worker& worker, const Seats& seats, const StepSegments& segments, Soon& soon) {
  for (int64_t turn = 0; turn < segments.num_turns; turn++) {
    const int64_t first = segments.turns[turn], count = segments.turns[turn + 1] - first;
    const Share* before = nullptr;
    for (int64_t i = count * worker.id / worker.size; i < count * (worker.id + 1) / worker.size; i++) {
      const int32_t seat = segments.items[3 * (first + i)];
      const Share* share = seat < seats.count ? seats.shares[seat] : nullptr;
      if (share && share != before) soon.add(share->begin, share->bytes);
      before = share;
    }
  }
}

// See `quire_kernels.low_rank.LowRank`; nobody may still be writing x or y.
template <class T, class Y>
void low_rank(Worker& worker, const Seats& seats, const StepSegments& segments, Rows<T> x, Rows<Y> y) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  [[maybe_unused]] TileRow row;
  [[maybe_unused]] Tiles tiles;
#endif
  for (int64_t turn = 0; turn < segments.num_turns; turn++) {
    if (turn) worker.barrier();
    const int64_t first = segments.turns[turn];
    worker.each(segments.turns[turn + 1] - first, [&](int64_t i) {
      const int32_t* item = segments.items + 3 * (first + i);
      const Share* share = item[0] < seats.count ? seats.shares[item[0]] : nullptr;
      if (!share) return;
      const Users<Y> users{segments.tokens + item[1], segments.weights + item[1], item[2], y};
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
      if constexpr (sizeof(T) == 2) {
        if (users.count == 1) return change_users<T>(BySums<TileRow>{row}, seats, *share, users, x);
        return change_users<T>(BySums<Tiles>{tiles}, seats, *share, users, x);
      }
#endif
      change_users<T>(Vectors<T>{}, seats, *share, users, x);
    });
  }
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) _tile_release();
#endif
}

}  // namespace quire
