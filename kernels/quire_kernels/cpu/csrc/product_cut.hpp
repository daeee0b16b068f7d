// How a product of several rows is cut into items, and these into tiles.
#pragma once
#include <algorithm>
#include <vector>

#include "packed.hpp"

namespace quire {

// What a kind of sums wants of rows of so many bytes: its `shape`, a function because variables of templates are one in a
// process, also where it has loaded these ops for several instruction sets.
struct TileShape {
  int64_t rows;         // of a tile, at most
  bool even;            // tiles about as high as each other: one of few rows takes longer than its share of the time
  int64_t block_bytes;  // of x, kept in a core's second-level cache while panels stream past
  int64_t wide_from;    // with more rows two panels at a time: rows are read half as often, a line of y is written at once
};

// Memory that is read later, asked for while something else is summed: `step` bytes further with every unit.
struct Later {
  const char* at;
  int64_t step;
};

// Stretches of memory that the thread reads after the product: asked for in order, spread over its tiles (vectors only;
// AMX tiles take no part in it).
class Soon {
 public:
  void clear() { stretches_.clear(), at_ = 0, all_ = 0; }
  void add(const void* begin, int64_t bytes) {
    stretches_.push_back({static_cast<const char*>(begin), bytes});
    all_ += bytes;
  }

  // Spread over so many units: who asks for more than memory gives waits for what is needed first.
  void spread(int64_t units) { pace_ = std::min(LINE, all_ / units + 1); }

  // What to ask for in the next `units` units, of one stretch.
  Later next(int64_t units) {
    if (at_ == stretches_.size()) return {reinterpret_cast<const char*>(this), 0};  // a line that is there already
    Stretch& stretch = stretches_[at_];
    const int64_t bytes = std::min(stretch.bytes, units * pace_);
    const Later later{stretch.at, (bytes + units - 1) / units};
    stretch.at += bytes, stretch.bytes -= bytes;
    if (stretch.bytes <= 0) at_++;
    return later;
  }

 private:
  struct Stretch {
    const char* at;
    int64_t bytes;
  };
  static constexpr int64_t LINE = 64;
  std::vector<Stretch> stretches_;
  size_t at_ = 0;
  int64_t all_ = 0, pace_ = LINE;  // bytes; bytes with each unit
};

// Rows row … row+count-1, to be summed with the panels first … last-1. fresh: the first ones of their item, which has so
// many tiles.
struct ProductTile {
  int64_t row, count, first, last;
  bool fresh;
  int64_t tiles;
  Later later;  // beside the first panel
  int64_t panel_bytes;

  Later beside(int64_t panel) const { return {later.at + (panel - first) * panel_bytes, later.step}; }
};

// An item is a block of rows and a group of neighbouring panels. Its tiles, each a part, ask for the panels that lie
// behind it, which nearly always are those of the thread's next item: else memory would rest while a core multiplies.
class ProductCut {
 public:
  ProductCut(const Worker& worker, const TileShape& shape, int64_t rows, int64_t row_bytes, const Packed& w, int64_t units)
      : shape_(shape), rows_(rows), panels_(w.panels()), units_(units), w_(w) {
    const int64_t tiles = pieces(rows, shape.rows), most = std::max<int64_t>(1, shape.block_bytes / row_bytes / shape.rows);
    blocks_ = pieces(tiles, most);
    block_ = pieces(tiles, blocks_) * shape.rows;
    const int64_t pairs = pieces(panels_, 2) * blocks_;
    const bool even = pairs % worker.size == 0 || pairs >= FEW_PAIRS * worker.size;  // as much for one thread as for another
    width_ = rows > shape.wide_from && even ? 2 : 1;
    groups_ = pieces(panels_, width_);
  }

  // Units that a thread goes through in all its tiles, about.
  int64_t units_of_each(const Worker& worker) const {
    return std::max<int64_t>(1, pieces(rows_, shape_.rows) * panels_ / worker.size) * units_;
  }

  template <class Work>
  void each_tile(Worker& worker, Work&& work) const {
    const int64_t panel_bytes = w_.panel_bytes(units_);
    worker.each(blocks_ * groups_, [&](int64_t item) {
      const int64_t first = item % groups_ * width_, last = std::min(panels_, first + width_);
      const int64_t begin = item / groups_ * block_, end = std::min(rows_, begin + block_);
      const int64_t tiles = pieces(end - begin, shape_.rows);
      const int64_t height = shape_.even ? pieces(end - begin, tiles) : shape_.rows;
      const char* behind = reinterpret_cast<const char*>(w_.panel(last, units_));
      Later later{behind, (panel_bytes + units_ * tiles - 1) / (units_ * tiles)};
      for (int64_t row = begin; row < end; row += height, later.at += later.step * units_)
        work(ProductTile{row, std::min(height, end - row), first, last, row == begin, tiles, later, panel_bytes});
    });
  }

 private:
  static constexpr int64_t FEW_PAIRS = 16;  // of a thread: half of one more or less would be felt
  static int64_t pieces(int64_t all, int64_t size) { return (all + size - 1) / size; }

  TileShape shape_;
  int64_t rows_, panels_, units_;
  const Packed& w_;
  int64_t blocks_, block_, width_, groups_;
};

}  // namespace quire
