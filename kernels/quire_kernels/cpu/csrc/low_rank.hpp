// What adapters add to the outputs of one projection: y += (x · aᵀ) · bᵀ, each for the tokens that use it.
//
// An adapter's share in a projection is one stretch of memory: the matrices a of all its slices as one, [panel][unit][16],
// then for each slice b, [panel][unit][16]; a unit is four bytes of neighbouring inputs (of a) or ranks (of b). Ranks are
// padded to a unit (to 32 elements if there are more), their sum to 16, inputs to 32. A thread does some tokens of one
// segment from x to y, so nothing is handed over within a phase, and in a turn no two write the same row. Every sum is in
// an order that depends on nothing else, as in `product.hpp`.
#pragma once
#include <algorithm>

#include "product.hpp"
#include "room.hpp"
#include "rowwise.hpp"
#include "team.hpp"

namespace quire {

constexpr int64_t SOME_TOKENS = 32;  // of a segment, that are done together
constexpr int64_t TILE_UNITS = 16;
constexpr int64_t BYTES_AHEAD = 4096;

// One matrix of the projection: outputs start … stop-1. scale and shift may be null; without units there is no b.
struct Slice {
  const uint32_t* b;
  const float *scale, *shift;
  int64_t start, stop;
  int32_t first, units;  // where its ranks begin in the sums with a (elements), and how many there are
};

struct Share {
  const uint32_t* a;
  const Slice* slices;
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

// y = y · (1 + w · (scale - 1)) + w · shift + sums, for `n` ≤ 16 outputs of a slice from `at` on.
template <class Y>
inline void change(const Slice& slice, Y* y, int64_t at, int n, float weight, F16 sums) {
  F16 value = get(y + at, n);
  const F16 w = set1(weight);
  if (slice.scale) value = value * fma(w, get(slice.scale + at, n) - set1(1.0f), set1(1.0f));
  if (slice.shift) value = fma(w, get(slice.shift + at, n), value);
  set(y + at, value + sums, n);
}

// As that for all outputs of a panel group: sums [count][groups of 16].
template <class Y>
void change_rows(const Slice& slice, const Users<Y>& users, int64_t at, int64_t width, const float* sums, int64_t stride) {
  const bool plain = !slice.scale && !slice.shift;
  for (int64_t r = 0; r < users.count; r++) {
    Y* y = users.y.row(users.tokens[r], 0) + slice.start;
    const float* row = sums + r * stride;
    if (plain && width % (2 * LANES) == 0) {
      for (int64_t i = 0; i < width; i += 2 * LANES)
        store(y + at + i, load(y + at + i) + load(row + i), load(y + at + i + LANES) + load(row + i + LANES));
      continue;
    }
    lanes(width, [&](int64_t i, int n) { change(slice, y, at + i, n, users.weights[r], load(row + i)); });
  }
}

// A share is too short for the processor to notice the stream in time. What is asked for beyond its end is the share of
// the same adapter in the next projection.
inline void ask_ahead(const uint32_t* panel) {
  _mm_prefetch(reinterpret_cast<const char*>(panel) + BYTES_AHEAD, _MM_HINT_T1);
}

// Rows and panels that vectors sum at once.
#if defined(__AVX512F__)
constexpr int VECTOR_ROWS = 4, VECTOR_PANELS = 4;
#else
constexpr int VECTOR_ROWS = 1, VECTOR_PANELS = 2;
#endif

// out[r][p] = x[r] · panel p, for ROWS rows and PANELS panels of `units` units.
template <class T, int ROWS, int PANELS>
inline void dots(const T* const* x, const uint32_t* panels, int64_t units, float* out, int64_t stride) {
  F16 acc[ROWS][PANELS];
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PANELS; p++) acc[r][p] = zero();
  for (int64_t u = 0; u < units; u++) {
    U16 w[PANELS];
#pragma GCC unroll 4
    for (int p = 0; p < PANELS; p++) {
      ask_ahead(panels + (p * units + u) * LANES);
      w[p] = load_units(panels + (p * units + u) * LANES);
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++) {
      const U16 a = same_unit(x[r] + u * PER_UNIT<T>);
#pragma GCC unroll 4
      for (int p = 0; p < PANELS; p++) acc[r][p] = dot(acc[r][p], a, w[p], T{});
    }
  }
  for (int r = 0; r < ROWS; r++)
    for (int p = 0; p < PANELS; p++) store(out + r * stride + p * LANES, acc[r][p]);
}

template <class T>
struct Vectors {
  static constexpr int64_t GROUP = 8;  // panels of b whose sums are kept before they change y

  // sums [count][stride] = x · panelsᵀ
  template <int PANELS>
  static void some(const T* const* x, int64_t count, const uint32_t* panels, int64_t units, float* sums, int64_t stride) {
    int64_t r = 0;
    for (; r + VECTOR_ROWS <= count; r += VECTOR_ROWS)
      dots<T, VECTOR_ROWS, PANELS>(x + r, panels, units, sums + r * stride, stride);
    for (; r < count; r++) dots<T, 1, PANELS>(x + r, panels, units, sums + r * stride, stride);
  }
  void multiply(const T* const* x, int64_t count, const uint32_t* w, int64_t panels, int64_t units, float* sums,
                int64_t stride) const {
    int64_t p = 0;
    for (; p + VECTOR_PANELS <= panels; p += VECTOR_PANELS)
      some<VECTOR_PANELS>(x, count, w + p * units * LANES, units, sums + p * LANES, stride);
    for (; p < panels; p++) some<1>(x, count, w + p * units * LANES, units, sums + p * LANES, stride);
  }
};

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "low_rank_amx.hpp"
#endif

namespace quire {

// The sums with a, weighted and rounded, as they are multiplied with b: [count][panels of a · 16].
template <class T, class Y, class Kernel>
const T* shrink(Kernel& kernel, const Seats& seats, const Share& share, const Users<Y>& users, Rows<T> x) {
  static thread_local Room<float> sums;
  static thread_local Room<T> middle, copies;
  const int64_t width = share.panels * LANES, inputs = padded(seats.inputs, INPUT_STEP);
  sums.fit(users.count * width);
  middle.fit(users.count * width);
  const T* rows[SOME_TOKENS];
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
  kernel.multiply(rows, users.count, share.a, share.panels, inputs / PER_UNIT<T>, sums.data(), width);
  for (int64_t r = 0; r < users.count; r++) {
    const F16 weight = set1(users.weights[r]);
    for (int64_t i = r * width; i < (r + 1) * width; i += LANES) store(&middle[i], load(&sums[i]) * weight);
  }
  return middle.data();
}

template <class T, class Y, class Kernel>
void expand(Kernel& kernel, const Slice& slice, const Users<Y>& users, const T* middle, int64_t width) {
  constexpr int64_t stride = Kernel::GROUP * LANES;
  alignas(64) float sums[SOME_TOKENS * stride];
  const T* rows[SOME_TOKENS];
  for (int64_t r = 0; r < users.count; r++) rows[r] = middle + r * width + slice.first;
  const int64_t outputs = slice.stop - slice.start;
  if (!slice.units) std::fill_n(sums, users.count * stride, 0.0f);
  for (int64_t at = 0; at < outputs; at += stride) {
    const int64_t some = std::min(stride, outputs - at);
    if (slice.units)
      kernel.multiply(rows, users.count, slice.b + at * slice.units, (some + LANES - 1) / LANES, slice.units, sums, stride);
    change_rows(slice, users, at, some, sums, stride);
  }
}

template <class T, class Y, class Kernel>
void change_users(Kernel& kernel, const Seats& seats, const Share& share, const Users<Y>& users, Rows<T> x) {
  const T* middle = share.panels ? shrink<T>(kernel, seats, share, users, x) : nullptr;
  for (int32_t i = 0; i < share.num_slices; i++) {
    const Slice& slice = share.slices[i];
    if (slice.units || slice.scale || slice.shift) expand<T>(kernel, slice, users, middle, share.panels * LANES);
  }
}

inline void convert(float from, float& to) { to = from; }
inline void convert(bf16 from, float& to) { to = to_float(from); }
inline void convert(bf16 from, bf16& to) { to = from; }
inline void convert(float from, bf16& to) {  // to the nearest, as finite numbers are
  uint32_t bits;
  std::memcpy(&bits, &from, 4);
  to.bits = static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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

// See `quire_kernels.low_rank.LowRank`; nobody may still be writing x or y.
template <class T, class Y>
void low_rank(Worker& worker, const Seats& seats, const StepSegments& segments, Rows<T> x, Rows<Y> y) {
  [[maybe_unused]] Vectors<T> vectors;
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
        if (users.count == 1) return change_users<T>(row, seats, *share, users, x);
        return change_users<T>(tiles, seats, *share, users, x);
      }
#endif
      change_users<T>(vectors, seats, *share, users, x);
    });
  }
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) _tile_release();
#endif
}

}  // namespace quire
