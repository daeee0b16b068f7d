// Adapters as further terms of a product's sums with AMX: x · wᵀ + middle · bᵀ, where middle = x · aᵀ (`low_rank/shrink.hpp`).
//
// So activations stay fused, and y is rounded and written once. An output is one sum in a fixed order.
#pragma once
#include <vector>

#include "gemm/packed.hpp"
#include "low_rank/tile_uses.hpp"

namespace quire {

// Memory of what `shrink` makes of one projection's adapters.
// middle: of a use and a slice, as many floats as the largest needs. For tiles as `LowRankTerm` says, in bfloat16, with zeros
// where a row does not use the slot or a rank does not exist; for vectors [user][rank], rounded to bfloat16.
// added: [user][output], of uses with few users.
struct ShrinkBuffers {
  float *middle, *added;

  static int64_t middle_size(const AdapterSlots& slots) { return padded(slots.most_units, TILE_UNITS) * PER_UNIT<bf16> * AmxTiles::ROWS; }
  static int64_t middle_sizes(const AdapterSlots& slots, const TileUses& uses) {
    return uses.count() * slots.num_slices * middle_size(slots);
  }
  static int64_t added_size(const AdapterSlots& slots, const TileUses& uses) { return uses.few() * slots.outputs; }

  float* middle_of(const AdapterSlots& slots, int64_t use, int64_t slice) const {
    return middle + (use * slots.num_slices + slice) * middle_size(slots);
  }
  float* added_of(const AdapterSlots& slots, const TileUse& use) const { return added + use.before * slots.outputs; }
};

// sums[r] += x[r] · bᵀ for ROWS rows x, [2 units], and 16 outputs b, [unit][16]. As tiles do: products of even and of odd ranks
// are summed separately over TILE_UNITS units, from zero, and then both are added.
template <int ROWS>
inline void add_products(const float* x, const uint32_t* b, int64_t units, float* const* sums) {
  F16 totals[ROWS];
  for (int r = 0; r < ROWS; r++) totals[r] = load(sums[r]);
  for (int64_t u = 0; u < units; u += TILE_UNITS) {
    F16 evens[ROWS], odds[ROWS];
    for (int r = 0; r < ROWS; r++) evens[r] = odds[r] = zero();
    for (int64_t k = u; k < std::min(units, u + TILE_UNITS); k++) {
      prefetch_ahead(b + k * LANES);
      const U16 weights = load_units(b + k * LANES);
      const F16 even = SingleRow::even(weights), odd = SingleRow::odd(weights);
#pragma GCC unroll 4
      for (int r = 0; r < ROWS; r++) {
        evens[r] = fma(set1(x[2 * (r * units + k)]), even, evens[r]);
        odds[r] = fma(set1(x[2 * (r * units + k) + 1]), odd, odds[r]);
      }
    }
    for (int r = 0; r < ROWS; r++) totals[r] = totals[r] + (evens[r] + odds[r]);
  }
  for (int r = 0; r < ROWS; r++) store(sums[r], totals[r]);
}
inline void add_products(int64_t rows, const float* x, const uint32_t* b, int64_t units, float* const* sums) {
  for (; rows > 4; rows -= 4, x += 4 * 2 * units, sums += 4) add_products<4>(x, b, units, sums);
  if (rows == 4) return add_products<4>(x, b, units, sums);
  if (rows == 3) return add_products<3>(x, b, units, sums);
  if (rows == 2) return add_products<2>(x, b, units, sums);
  add_products<1>(x, b, units, sums);
}

// The uses of one adapter runtime.
class RuntimeTerms {
 public:
  // bias: of the product; may be null.
  RuntimeTerms(const AdapterSlots& slots, const TileUses& uses, const ShrinkBuffers& made, const Packed& w, const bf16* bias)
      : num_slices_(slots.num_slices), uses_(&uses), w_(&w), bias_(bias), terms_(uses.count() * num_slices_), by_(uses.count(), AddedBy::none) {
    for (int64_t i = 0; i < uses.count(); i++) {
      const PackedWeights* adapter = slots.at(uses[i].slot);
      if (!adapter) continue;
      slices_ = adapter->slices;
      by_[i] = uses.added_by(uses[i], *adapter);
      any_[static_cast<int>(by_[i])] = true;
      for (int64_t s = 0; s < num_slices_; s++) {
        const bool added = by_[i] == AddedBy::shrink;
        terms_[i * num_slices_ + s] = {added ? made.added_of(slots, uses[i]) : made.middle_of(slots, i, s), &slices_[s]};
      }
    }
  }
  bool any(AddedBy by) const { return any_[static_cast<int>(by)]; }

  // Appends the terms of a tile and a panel that tiles add.
  void append(int64_t tile, int64_t panel, std::vector<PanelTerm>& to) const {
    const auto [first, end] = uses_->of_tile(tile);
    if (first == end || !slices_) return;
    const Half left = half(panel, 0), right = half(panel, 1);
    for (int64_t i = first; i < end; i++)
      if (by_[i] == AddedBy::tiles) to.push_back({term(i, left), term(i, right)});
  }

  // Adds the other uses to the sums of the tile, [rows][PANEL].
  void add_rows(int64_t tile, int64_t panel, float* sums) const {
    const auto [first, end] = uses_->of_tile(tile);
    if (first == end || !slices_) return;
    const Half left = half(panel, 0), right = half(panel, 1);
    for (int64_t i = first; i < end; i++) {
      if (by_[i] == AddedBy::shrink) add_made((*uses_)[i], terms_[i * num_slices_].made, left, right, sums);
      if (by_[i] != AddedBy::vectors) continue;
      if (left.slice >= 0) add_half(i, left, sums);
      if (right.slice >= 0) add_half(i, right, sums + LANES);
    }
  }

 private:
  // 16 outputs: the first is number `at` of a slice. slice: -1 without outputs.
  struct Half {
    int64_t slice, at, output;
  };
  Half half(int64_t panel, int64_t h) const {
    const int64_t output = w_->halves ? h * (w_->outputs / 2) + panel * LANES : panel * PANEL + h * LANES;
    for (int64_t s = 0; s < num_slices_; s++)
      if (output >= slices_[s].start && output < slices_[s].stop) return {s, output - slices_[s].start, output};
    return {-1, 0, 0};
  }

  struct SliceTerm {
    const float* made;  // by `shrink`: the middle, or what is added to all outputs
    const Slice* slice;
  };
  LowRankTerm term(int64_t use, const Half& half) const {
    if (half.slice < 0) return {nullptr, nullptr, 0, 0};
    const auto& [made, slice] = terms_[use * num_slices_ + half.slice];
    return {reinterpret_cast<const bf16*>(made), slice->b.units() + half.at * slice->units, slice->units, slice->units * (w_->halves ? LANES : PANEL)};
  }

  void add_made(const TileUse& use, const float* made, const Half& left, const Half& right, float* sums) const {
    const int64_t outputs = w_->outputs;
    const float *first = made + left.output, *second = made + right.output;
    for (uint32_t rows = use.rows; rows; rows &= rows - 1, first += outputs, second += outputs) {
      float* row = sums + __builtin_ctz(rows) * PANEL;
      if (left.slice >= 0) store(row, load(row) + load(first));
      if (right.slice >= 0) store(row + LANES, load(row + LANES) + load(second));
    }
  }

  void add_half(int64_t number, const Half& half, float* sums) const {
    const TileUse& use = (*uses_)[number];
    const auto& [middle, slice] = terms_[number * num_slices_ + half.slice];
    float* rows[AmxTiles::ROWS];
    int64_t users = 0;
    for (uint32_t left = use.rows; left; left &= left - 1) {
      const int r = __builtin_ctz(left);
      rows[users++] = sums + r * PANEL;
      if (slice->scale || slice->shift) rescale(*slice, half.at, use.weights[r], sums + r * PANEL);
    }
    if (slice->units) add_products(users, middle, slice->b.units() + half.at * slice->units, slice->units, rows);
  }

  // (sum + bias) · (1 + w · (scale - 1)) + w · shift for outputs of a slice from `at` on, less the bias, which the epilogue
  // adds.
  void rescale(const Slice& slice, int64_t at, float weight, float* sums) const {
    const int n = static_cast<int>(std::min<int64_t>(LANES, slice.stop - slice.start - at));
    const F16 w = set1(weight);
    F16 sum = load(sums);
    if (slice.scale) {
      const F16 change = w * (load(slice.scale + at, n) - set1(1.0f));
      sum = fma(bias_ ? sum + load(bias_ + slice.start + at, n) : sum, change, sum);
    }
    store(sums, slice.shift ? fma(w, load(slice.shift + at, n), sum) : sum);
  }

  int64_t num_slices_;
  const TileUses* uses_;
  const Packed* w_;
  const bf16* bias_;
  const Slice* slices_ = nullptr;  // of any adapter: start and stop are those of the projection
  std::vector<SliceTerm> terms_;   // of each use and slice
  std::vector<AddedBy> by_;        // of each use
  bool any_[4] = {};
};

// The uses of all runtimes.
class LowRankTerms {
 public:
  void add(RuntimeTerms&& terms) {
    any_by_tiles_ |= terms.any(AddedBy::tiles);
    any_by_rows_ |= terms.any(AddedBy::shrink) || terms.any(AddedBy::vectors);
    runtimes_.push_back(std::move(terms));
  }
  bool any() const { return !runtimes_.empty(); }

  // The terms of a tile and a panel that tiles add; until the next call.
  PanelTerms of(int64_t tile, int64_t panel) const { return any_by_tiles_ ? found(tile, panel) : PanelTerms{}; }
  // Adds the others to the sums of the tile, [rows][PANEL].
  void add_rows(int64_t tile, int64_t panel, float* sums) const {
    if (any_by_rows_) add_found(tile, panel, sums);
  }

 private:
  [[gnu::noinline]] PanelTerms found(int64_t tile, int64_t panel) const {
    static thread_local std::vector<PanelTerm> found;
    found.clear();
    for (const RuntimeTerms& runtime : runtimes_) runtime.append(tile, panel, found);
    return {found.data(), found.data() + found.size()};
  }

  [[gnu::noinline]] void add_found(int64_t tile, int64_t panel, float* sums) const {
    for (const RuntimeTerms& runtime : runtimes_) runtime.add_rows(tile, panel, sums);
  }

  bool any_by_tiles_ = false, any_by_rows_ = false;
  std::vector<RuntimeTerms> runtimes_;
};

}  // namespace quire
