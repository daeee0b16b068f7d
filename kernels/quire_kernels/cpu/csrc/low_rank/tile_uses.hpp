// Which rows of each tile of a product with AMX use which adapters.
#pragma once
#include <vector>

#include "gemm/amx/tiles.hpp"
#include "low_rank/adapter_slots.hpp"

namespace quire {

// Some rows of a tile that use one slot.
struct TileUse {
  int64_t row, count;  // of the tile
  int32_t slot;
  uint32_t rows = 0;   // bit r: row r of the tile uses the slot
  float weights[AmxTiles::ROWS];
  int64_t before = 0;  // users of all uses before it that have few

  int users() const { return __builtin_popcount(rows); }
};

// How 32 rows of sums get what a use adds to them, always the same numbers.
// tiles: as further products of tiles; rows that do not use the slot have zeros, so b must be finite.
// shrink: for few users, `shrink` computes both products with vectors, as it reads a and b; what it makes is added.
// vectors: the second product is computed with vectors, for each row. So a row with several uses gets them in order.
enum class AddedBy : char { none, tiles, shrink, vectors };

// The uses of a step, sorted by tiles, and those of a tile by passes.
class TileUses {
 public:
  // segments: of the rows. alone: whether the step has no others.
  TileUses(const StepSegments& segments, int64_t rows, bool alone)
      : rows_(rows), single_(alone && segments.num_passes <= 1), latest_(amx_tiles(rows)) {
    for (int64_t pass = 0; pass < segments.num_passes; pass++) {
      latest_.assign(latest_.size(), -1);
      for (int64_t i = segments.passes[pass]; i < segments.passes[pass + 1]; i++) add(segments, segments.items + 3 * i);
    }
    std::stable_sort(uses_.begin(), uses_.end(), [](const TileUse& a, const TileUse& b) { return a.row < b.row; });
    for (TileUse& use : uses_) use.before = few_, few_ += has_few(use) ? use.users() : 0;
    starts_.assign(1, 0);
    for (int64_t tile = 0, at = 0; tile < amx_tiles(rows); tile++) {
      while (at < count() && uses_[at].row < amx_tile_row(rows, tile + 1)) at++;
      starts_.push_back(at);
    }
  }

  int64_t count() const { return static_cast<int64_t>(uses_.size()); }
  const TileUse& operator[](int64_t i) const { return uses_[i]; }
  // Those of a tile: first, end.
  std::pair<int64_t, int64_t> of_tile(int64_t tile) const { return {starts_[tile], starts_[tile + 1]}; }
  AddedBy added_by(const TileUse& use, const PackedWeights& adapter) const {
    if (!adapter.finite || !single_) return AddedBy::vectors;
    if (has_few(use) && adapter.most_units <= TILE_UNITS) return AddedBy::shrink;
    return use.count == 1 ? AddedBy::vectors : AddedBy::tiles;
  }
  // Number of users of uses that have few.
  int64_t few() const { return few_; }

 private:
  static constexpr int FEW_USERS = 8;
  bool has_few(const TileUse& use) const { return single_ && use.users() <= FEW_USERS; }

  // item: (slot, first entry, number of entries)
  void add(const StepSegments& segments, const int32_t* item) {
    for (int64_t at = item[1]; at < item[1] + item[2]; at++) {
      const int64_t row = segments.tokens[at];
      const int64_t tile = amx_tile_of(rows_, row);
      int64_t& latest = latest_[tile];
      if (latest < 0 || uses_[latest].slot != item[0]) {
        const int64_t first = amx_tile_row(rows_, tile);
        latest = count();
        uses_.push_back({first, amx_tile_row(rows_, tile + 1) - first, item[0]});
      }
      TileUse& use = uses_[latest];
      use.rows |= 1u << (row - use.row);
      use.weights[row - use.row] = segments.weights[at];
    }
  }

  int64_t rows_;
  bool single_;  // whether a row has at most one use
  int64_t few_ = 0;
  std::vector<TileUse> uses_;
  std::vector<int64_t> starts_, latest_;  // of each tile: its first use; in this pass, its latest one
};

}  // namespace quire
