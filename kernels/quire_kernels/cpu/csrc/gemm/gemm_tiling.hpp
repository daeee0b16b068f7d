// How a product of several rows is split into items, and items into tiles.
#pragma once
#include <algorithm>
#include <vector>

#include "gemm/packed.hpp"
#include "scratch.hpp"

namespace quire {

// Rows of x as kernels take them, with `stride` elements between them.
template <class X>
struct TileRows {
  const X* base;
  int64_t stride;
};

// A row as kernels take it: padded with zeros to the width of the panels, and widened.
template <class X, class T>
inline void widen_row(const T* from, int64_t inputs, int64_t width, X* to) {
  if constexpr (sizeof(X) == sizeof(T)) {
    std::memcpy(to, from, inputs * sizeof(T));
    std::fill_n(to + inputs, width - inputs, X{});
  } else {
    int64_t i = 0;
    for (; i + LANES <= inputs; i += LANES) store(to + i, load(from + i));
    for (; i < width; i += LANES) store(to + i, load(from + i, static_cast<int>(std::max<int64_t>(0, inputs - i))));
  }
}

// `rows` rows of x as kernels take them: x itself if it is so already.
template <class X, class T>
TileRows<X> tile_rows(const T* x, int64_t stride, int64_t rows, int64_t inputs) {
  const int64_t width = padded(inputs, INPUT_STEP);
  if constexpr (sizeof(X) == sizeof(T))
    if (width == inputs) return {x, stride};
  static thread_local ScratchBuffer<X> copy;
  copy.fit(rows * width);
  for (int64_t r = 0; r < rows; r++) widen_row(x + r * stride, inputs, width, copy.data() + r * width);
  return {copy.data(), width};
}

// The rows of a block of x as kernels take them: a thread copies or widens them once for all panels.
template <class X, class T>
class KernelRows {
 public:
  // block: maximum rows of a block.
  KernelRows(const T* x, int64_t stride, int64_t inputs, int64_t block)
      : x_(x), stride_(stride), inputs_(inputs), width_(padded(inputs, INPUT_STEP)) {
    if (!is_direct()) copy().fit(block * width_);
  }
  // Those of a tile. fresh: the first tile of a block.
  TileRows<X> of(int64_t row, int64_t count, bool fresh) {
    if constexpr (sizeof(X) == sizeof(T))
      if (is_direct()) return {x_ + row * stride_, stride_};
    if (fresh && row != first_) first_ = end_ = row;
    for (; end_ < row + count; end_++) widen_row(x_ + end_ * stride_, inputs_, width_, copy().data() + (end_ - first_) * width_);
    return {copy().data() + (row - first_) * width_, width_};
  }

 private:
  bool is_direct() const { return sizeof(X) == sizeof(T) && width_ == inputs_; }
  static ScratchBuffer<X>& copy() {
    static thread_local ScratchBuffer<X> rows;
    return rows;
  }

  const T* x_;
  const int64_t stride_, inputs_, width_;
  int64_t first_ = -1, end_ = -1;  // of the copied rows
};

// What a kernel needs for rows of a given number of bytes.
struct TileShape {
  int64_t rows;         // maximum rows of a tile
  bool even;            // tiles of about equal height: a tile of few rows takes longer than its share of the time
  int64_t block_bytes;  // of x, to stay in a core's second-level cache while panels stream through
  // with more rows, two panels at a time: rows are read half as often, and whole cache lines of y are written
  int64_t wide_from;
};

// Memory to prefetch beside a sum: `step` bytes per unit.
struct PrefetchStream {
  const char* at;
  int64_t step;
  // The same beside units of which there are twice as many.
  PrefetchStream halved() const { return {at, (step + 1) / 2}; }
};

// Memory ranges that the thread reads later: prefetched in order, spread over its tiles (with AMX only beside 17 to 48 rows).
// A tile prefetches a line in each unit or nothing: with less than a line in each unit, it would prefetch every line several
// times.
class PrefetchQueue {
 public:
  void clear() { ranges_.clear(), at_ = 0, all_ = 0, due_ = 0, after_ = nullptr; }
  // The matrix that is multiplied next, if it is known.
  void set_after(const Packed* matrix) { after_ = matrix; }
  const Packed* after() const { return after_; }
  void add(const void* begin, int64_t bytes) {
    ranges_.push_back({static_cast<const char*>(begin), bytes});
    all_ += bytes;
  }

  // Spread the prefetches over this many units: prefetching faster than the memory delivers would delay needed
  // data. other: bytes per unit that are prefetched beside them.
  void spread(int64_t units, int64_t other = 0) { pace_ = std::min(std::max(LINE / 2, LINE - other), all_ / units + 1); }

  // What to prefetch in the next `units` units, of one range; the step is 0 if it is nothing.
  PrefetchStream next(int64_t units) {
    pass(units);
    const PrefetchStream nothing{reinterpret_cast<const char*>(this), 0};  // a line that is cached already
    if (at_ == ranges_.size()) return nothing;
    Range& range = ranges_[at_];
    const int64_t bytes = std::min(range.bytes, units * LINE);
    if (due_ < bytes) return nothing;
    const PrefetchStream stream{range.at, (bytes + units - 1) / units};
    range.at += bytes, range.bytes -= bytes, due_ -= bytes;
    if (range.bytes <= 0) at_++;
    return stream;
  }
  // Prefetches nothing in the next `units` units, but more in those after them.
  void pass(int64_t units) { due_ += units * pace_; }

 private:
  struct Range {
    const char* at;
    int64_t bytes;
  };
  static constexpr int64_t LINE = 64;
  std::vector<Range> ranges_;
  size_t at_ = 0;
  int64_t all_ = 0, pace_ = LINE, due_ = 0;  // bytes; bytes per unit; bytes
  const Packed* after_ = nullptr;
};

// Rows row … row+count-1, to be summed with the panels first … last-1. fresh: the first tile of its item, which has
// `tiles` tiles.
struct GemmTile {
  int64_t row, count, first, last;
  bool fresh;
  int64_t tiles;
  PrefetchStream stream;  // prefetched beside the first panel
  int64_t panel_bytes;

  PrefetchStream beside(int64_t panel) const { return {stream.at + (panel - first) * panel_bytes, stream.step}; }
};

// An item is a block of rows and a group of neighboring panels. Each of its tiles prefetches a part of the panels
// behind the item, which are usually those of the thread's next item, so that the memory is busy while a core
// multiplies.
class GemmTiling {
 public:
  GemmTiling(const Worker& worker, const TileShape& shape, int64_t rows, int64_t row_bytes, const Packed& w, int64_t units)
      : shape_(shape), rows_(rows), panels_(w.panels()), units_(units), w_(w) {
    const int64_t tiles = ceil_div(rows, shape.rows), most = std::max<int64_t>(1, shape.block_bytes / row_bytes / shape.rows);
    blocks_ = ceil_div(tiles, most);
    block_ = ceil_div(tiles, blocks_) * shape.rows;
    const int64_t pairs = ceil_div(panels_, 2) * blocks_;
    const bool even = pairs % worker.size == 0 || pairs >= FEW_PAIRS * worker.size;  // equal work for all threads
    width_ = rows > shape.wide_from && even ? 2 : 1;
    groups_ = ceil_div(panels_, width_);
  }

  int64_t block_rows() const { return std::min(rows_, block_); }
  // Approximate number of units that a thread processes in all its tiles.
  int64_t units_of_each(const Worker& worker) const {
    return std::max<int64_t>(1, ceil_div(rows_, shape_.rows) * panels_ / worker.size) * units_;
  }

  template <class Work>
  void each_tile(Worker& worker, Work&& work) const {
    const int64_t panel_bytes = w_.panel_bytes(units_);
    worker.each(blocks_ * groups_, [&](int64_t item) {
      const int64_t first = item % groups_ * width_, last = std::min(panels_, first + width_);
      const int64_t begin = item / groups_ * block_, end = std::min(rows_, begin + block_);
      const int64_t tiles = ceil_div(end - begin, shape_.rows);
      const char* behind = reinterpret_cast<const char*>(w_.panel(last, units_));
      PrefetchStream stream{behind, (panel_bytes + units_ * tiles - 1) / (units_ * tiles)};
      for (int64_t row = begin, left = tiles; left > 0; left--, stream.at += stream.step * units_) {
        const int64_t height = shape_.even ? ceil_div(end - row, left) : std::min(shape_.rows, end - row);
        work(GemmTile{row, height, first, last, row == begin, tiles, stream, panel_bytes});
        row += height;
      }
    });
  }

 private:
  // per thread; with fewer, an uneven split by half a pair would be noticeable
  static constexpr int64_t FEW_PAIRS = 16;
  static int64_t ceil_div(int64_t all, int64_t size) { return (all + size - 1) / size; }

  TileShape shape_;
  int64_t rows_, panels_, units_;
  const Packed& w_;
  int64_t blocks_, block_, width_, groups_;
};

}  // namespace quire
