// How a product of many rows is split, so that a core multiplies what is in its own caches: a group of panels stays in
// the second-level cache while all rows pass by, and a tile of rows stays in the first-level cache while it is multiplied
// with the panels of the group. What comes next, and the lines of y, are prefetched.
#pragma once
#include <unistd.h>

#include <algorithm>

#include "gemm/gemm_tiling.hpp"

namespace quire {

constexpr int64_t MANY_ROWS = 49;  // from which on groups are faster than the items of `GemmTiling`

// Bytes of a core's second-level cache.
inline int64_t second_level_cache() {
  constexpr int64_t USUAL = 1 << 20;
  static const long found = sysconf(_SC_LEVEL2_CACHE_SIZE);
  return found > 0 ? found : USUAL;
}

// Rows `row` … row+count-1, to be multiplied with the panels first … last-1. behind: the stored panels that the thread
// probably needs next.
struct GroupTile {
  int64_t row, count, first, last;
  PrefetchQueue* behind;
};

// Calls sums(panel, next, later) for each panel of a tile: `next` is a part of the `bytes` at `after`, the rows of the next
// tile, and `later` of what is read after this group or after the product.
template <class Sums>
void each_panel(const GroupTile& tile, const void* after, int64_t bytes, int64_t units, PrefetchQueue& queue, Sums&& sums) {
  const int64_t steps = (tile.last - tile.first) * units;
  PrefetchStream next{static_cast<const char*>(after), (bytes + steps - 1) / steps};
  for (int64_t panel = tile.first; panel < tile.last; panel++) {
    const PrefetchStream queued = queue.next(units);
    if (queued.step) tile.behind->pass(units);
    sums(panel, next, queued.step ? queued : tile.behind->next(units));
    next.at += next.step * units;
  }
}

class GemmGroups {
 public:
  // most_rows: maximum rows of a tile. panel_bytes: of a panel while it is multiplied.
  GemmGroups(const Worker& worker, int64_t rows, int64_t most_rows, const Packed& w, int64_t units, int64_t panel_bytes)
      : w_(w), units_(units), rows_(rows), panels_(w.panels()), tiles_(ceil_div(rows, most_rows)) {
    const int64_t items = ITEMS * worker.size, most_blocks = ceil_div(tiles_, FEWEST_TILES);
    const int64_t fitting = ceil_div(panels_ * panel_bytes, second_level_cache() / 2);
    groups_ = std::max(fitting, std::min(items / most_blocks, panels_ / 2));
    if (panels_ >= 2 * worker.size) groups_ = ceil_div(groups_, worker.size) * worker.size;
    groups_ = std::clamp<int64_t>(groups_, 1, std::max<int64_t>(1, panels_ / FEWEST_PANELS));
    blocks_ = std::clamp<int64_t>(items / groups_, 1, most_blocks);
    if (groups_ % worker.size && blocks_ > 1) blocks_ = std::min(ceil_div(blocks_, worker.size) * worker.size, tiles_);
  }

  // Bytes of panels that are prefetched per unit.
  int64_t pace_of_panels() const { return ceil_div(w_.panel_bytes(units_), tiles_ * units_); }
  // Approximate number of units that a thread processes in all its tiles.
  int64_t units_of_each(const Worker& worker) const { return ceil_div(tiles_ * panels_, worker.size) * units_; }

  // Calls begin(first, last) when a thread starts with a group of panels, and work(tile) for each tile.
  template <class Begin, class Work>
  void each_tile(Worker& worker, Begin&& begin, Work&& work) const {
    int64_t current = -1;
    PrefetchQueue behind;
    worker.each(groups_ * blocks_, [&](int64_t item) {
      const int64_t group = item / blocks_, block = item % blocks_;
      const int64_t first = first_panel(group), last = first_panel(group + 1), width = last - first;
      if (group != current) begin(first, last);
      current = group;
      const int64_t stored = width * w_.panel_bytes(units_), from = tiles_ * block / blocks_, to = tiles_ * (block + 1) / blocks_;
      behind.clear();
      behind.add(reinterpret_cast<const char*>(w_.panel(last, units_)) + stored * block / blocks_, stored / blocks_);
      behind.spread((to - from) * width * units_);
      for (int64_t t = from; t < to; t++) {
        const int64_t row = rows_ * t / tiles_;
        work(GroupTile{row, rows_ * (t + 1) / tiles_ - row, first, last, &behind});
      }
    });
  }

 private:
  static constexpr int64_t ITEMS = 6;          // of each thread, if there are enough rows: they end at about the same time
  static constexpr int64_t FEWEST_TILES = 8;   // of an item, which may begin with decompressing its panels
#if defined(__AVX512F__)
  static constexpr int64_t FEWEST_PANELS = 1;  // of a group
#else
  static constexpr int64_t FEWEST_PANELS = 2;  // of a group: rows are widened again for each
#endif
  static int64_t ceil_div(int64_t all, int64_t size) { return (all + size - 1) / size; }

  int64_t first_panel(int64_t group) const { return panels_ * group / groups_; }

  const Packed& w_;
  int64_t units_, rows_, panels_, tiles_, groups_, blocks_;
};

}  // namespace quire
