// Products of many rows in AMX tiles, in blocks of the caches' sizes: a tile of rows and a part of its inputs stay in the
// first level while they are multiplied with a group of panels, and the group stays in the second level while the rows of an
// item pass by. Weights are loaded with a hint (TILELOADDT1) that keeps them from replacing the rows in the first level.
#pragma once
#include "gemm/amx/tiles.hpp"
#include "gemm/gemm_epilogue.hpp"
#include "gemm/gemm_groups.hpp"
#include "scratch.hpp"

namespace quire {

// How a product is split into items (tiles of rows, and a group of panels), and the inputs of an item into parts.
class AmxBlocks {
 public:
  struct Item {
    int64_t block, from, to, first, last;  // tiles from … to-1, panels first … last-1
  };

  AmxBlocks(const Worker& worker, int64_t rows, int64_t panels, int64_t units)
      : rows_(rows), panels_(panels), units_(units), tiles_(amx_tiles(rows)) {
    // with few rows, each core reads its own half of the weights, with many its own half of the rows
    sides_ = tiles_ >= MANY_TILES * worker.size ? worker.size : 1;
    const int64_t space = second_level_cache() * std::clamp(tiles_, FEWEST_TILES, MOST_TILES) / (2 * MOST_TILES);
    by_parts_ = units > LONG_UNITS;
    const int64_t fitting = by_parts_ ? PARTS_PANELS : std::max<int64_t>(1, space / (units * UNIT_BYTES));
    part_ = units <= MOST_UNITS || fitting < FEWEST_PANELS ? units : split(units, PART_UNITS);
    groups_ = ceil_div(panels, fitting);
    if (sides_ == 1 && panels >= worker.size) groups_ = std::min(panels, ceil_div(groups_, worker.size) * worker.size);
    const int64_t own = ceil_div(tiles_, sides_), least = by_parts_ ? ceil_div(own, PARTS_TILES) : 1;
    blocks_ = std::clamp(ceil_div(ITEMS * worker.size, sides_ * groups_), least, std::max(least, own / FEWEST_TILES));
  }

  int64_t items() const { return sides_ * groups_ * blocks_; }
  Item item(int64_t i) const {
    const int64_t block = i % blocks_, group = i / blocks_ % groups_, side = i / blocks_ / groups_;
    const int64_t begin = tiles_ * side / sides_, own = tiles_ * (side + 1) / sides_ - begin;
    return {block, begin + own * block / blocks_, begin + own * (block + 1) / blocks_, panels_ * group / groups_,
            panels_ * (group + 1) / groups_};
  }
  int64_t row(int64_t tile) const { return amx_tile_row(rows_, tile); }  // the first of a tile

  int64_t part() const { return part_; }  // units of a row that stay in the first level
  // Whether all tiles of an item pass by for a part of the inputs before they do for the next.
  bool by_parts() const { return by_parts_; }
  // The first group of a thread.
  std::pair<int64_t, int64_t> first_group(const Worker& worker) const {
    const Item first = item(items() * worker.id / worker.size);
    return {first.first, first.last};
  }
  // Whether the group of an item is the last of a thread.
  bool is_last(const Item& some, const Worker& worker) const {
    return some.last == item(std::max<int64_t>(1, items() * (worker.id + 1) / worker.size) - 1).last;
  }
  // An item's part of some panels, to be prefetched beside all its units: not faster than memory delivers.
  PrefetchStream share(const Item& item, const Packed& w, std::pair<int64_t, int64_t> panels) const {
    const int64_t units = padded(w.inputs, INPUT_STEP) / PER_UNIT<bf16>, bytes = (panels.second - panels.first) * w.panel_bytes(units) / blocks_;
    const int64_t all = (item.last - item.first) * (item.to - item.from) * units_;
    return {reinterpret_cast<const char*>(w.panel(panels.first, units)) + bytes * item.block, std::min(FASTEST, ceil_div(bytes, all))};
  }

 private:
  static constexpr int64_t MOST_UNITS = 320;     // 32 rows of 640 inputs have 40 KiB
  static constexpr int64_t PART_UNITS = 224;     // of longer rows, beside sums that are loaded and stored
  static constexpr int64_t FEWEST_PANELS = 3;    // with fewer, loading rows again costs less than sums that are loaded and stored
  static constexpr int64_t LONG_UNITS = 2048;    // with more, too few whole panels fit into the second level
  static constexpr int64_t PARTS_PANELS = 10, PARTS_TILES = 12;  // their parts and sums fit
  static constexpr int64_t MANY_TILES = 8;       // of each thread
  // With few tiles of rows a group is small: the first of each thread is read before anything prefetches it.
  static constexpr int64_t MOST_TILES = 48;
  static constexpr int64_t ITEMS = 6;            // of each thread: they end at about the same time
  static constexpr int64_t FEWEST_TILES = 4;     // of an item
  static constexpr int64_t UNIT_BYTES = PANEL * 4;
  static constexpr int64_t FASTEST = 64;         // bytes per unit

  static int64_t ceil_div(int64_t all, int64_t size) { return (all + size - 1) / size; }
  // The size of parts of at most `most` units, of about equal size.
  static int64_t split(int64_t units, int64_t most) { return padded(ceil_div(units, ceil_div(units, most)), LANES); }

  int64_t rows_, panels_, units_, tiles_, part_, sides_, groups_, blocks_;
  bool by_parts_;
};

// The panels of an item, decompressed to memory of the thread by the first tile that reads them.
class CompressedBlock {
 public:
  CompressedBlock(const Packed& w, int64_t units) : w_(w), units_(units) {}

  // Before the panels first … last-1. part: units of which there is memory at a time.
  void begin(int64_t first, int64_t last, int64_t part) {
    fresh_ = first != first_ || last != last_ || part != units_;  // else the same for the rows of another item
    if (!fresh_) return;
    first_ = first, last_ = last, part_ = part;
    memory().fit((last - first) * part * PANEL);
    readers_.clear();
    for (int64_t panel = first; panel < last; panel++) readers_.emplace_back(*w_.book, w_.panel(panel, units_));
  }
  // Units from `unit` on. is_first: of the tiles that read them.
  CompressedSteps steps(int64_t panel, int64_t unit, int64_t units, bool is_first) const {
    return {readers_[panel - first_], units, memory().data() + ((panel - first_) * part_ + unit % part_) * PANEL, false, !(fresh_ && is_first)};
  }
  // After a tile has read these.
  void end(int64_t panel, const CompressedSteps& steps) { readers_[panel - first_] = steps.reader(); }

 private:
  const Packed& w_;
  const int64_t units_;
  int64_t first_ = -1, last_ = -1, part_ = 0;
  bool fresh_ = true;
  std::vector<CompressedPanelReader> readers_;

  static ScratchBuffer<uint32_t>& memory() {
    static thread_local ScratchBuffer<uint32_t> units;
    return units;
  }
};

// x [rows, inputs] with `stride` elements between rows; rows ≥ MANY_TILE_ROWS, so that each tile has more than 16. next: the
// matrix that will be multiplied next, whose first panels are prefetched beside the last ones of this product; or null.
template <class Terms>
void multiply_blocks(Worker& worker, const bf16* x, int64_t stride, int64_t rows, const Packed& w, const GemmOutput& to,
                     const Packed* next, const Terms& terms) {
  static thread_local ScratchBuffer<float> kept;  // sums of earlier parts of the inputs
  constexpr int64_t SUMS = AmxTiles::ROWS * PANEL;
  const int64_t units = padded(w.inputs, INPUT_STEP) / PER_UNIT<bf16>;
  const AmxBlocks blocks(worker, rows, w.panels(), units);
  const Packed& after = next ? *next : w;
  const AmxBlocks following(worker, rows, after.panels(), padded(after.inputs, INPUT_STEP) / PER_UNIT<bf16>);
  alignas(64) float sums[2][SUMS];
  AmxTiles tiles;
  CompressedBlock compressed(w, units);
  Epilogue<bf16> epilogue;  // of the previous sums
  int current = 0;
  worker.each(blocks.items(), [&](int64_t number) {
    const AmxBlocks::Item item = blocks.item(number);
    const int64_t width = item.last - item.first;
    PrefetchStream behind = blocks.share(item, w, {item.last, std::min(w.panels(), item.last + width)});
    if (next && !following.by_parts() && blocks.is_last(item, worker)) behind = blocks.share(item, *next, following.first_group(worker));
    if (w.book) compressed.begin(item.first, item.last, blocks.by_parts() ? blocks.part() : units);
    const int64_t tiles_kept = blocks.by_parts() ? item.to - item.from : 1;
    if (blocks.part() < units) kept.fit(tiles_kept * width * SUMS);
    const auto multiply_part = [&](int64_t tile, int64_t unit) {
      const int64_t row = blocks.row(tile), count = blocks.row(tile + 1) - row;
      const auto some = tile_rows<bf16>(x + row * stride, stride, count, w.inputs);
      const int64_t here = std::min(blocks.part(), units - unit), epilogue_rows = AmxTiles::ROWS * LANES / here + 1;
      const bool last = unit + here == units;
      float* before = kept.data() + (tile - item.from) % tiles_kept * width * SUMS;
      for (int64_t panel = item.first; panel < item.last; panel++, before += SUMS) {
        if (blocks.by_parts()) {  // the same panel's next part
          const int64_t step = w.panel_bytes(units) / units / (item.to - item.from) + 1;
          const char* from = reinterpret_cast<const char*>(w.panel(panel, units)) + (unit + here) * w.panel_bytes(units) / units;
          behind = {from + (tile - item.from) * step * here, last ? 0 : step};
        }
        const auto add = [&](auto& steps) {
          tiles.add(count, some.base + 2 * unit, some.stride, steps, here, unit ? before : nullptr,
                    last ? sums[current] : before, behind, [&] { epilogue.some(epilogue_rows); },
                    last ? terms.of(tile, panel) : decltype(terms.of(0, 0)){});
        };
        if (w.book) {
          CompressedSteps steps = compressed.steps(panel, unit, here, tile == item.from);
          add(steps), compressed.end(panel, steps);
        } else {
          PlainSteps steps(w.panel(panel, units) + unit * PANEL);
          add(steps);
        }
        behind.at += behind.step * here;
        if (!last) continue;
        terms.add_rows(tile, panel, sums[current]);
        epilogue.rest();
        epilogue = Epilogue<bf16>(w, to, panel, row, count, sums[current]);
        current = 1 - current;
      }
    };
    if (blocks.by_parts()) {
      for (int64_t unit = 0; unit < units; unit += blocks.part())
        for (int64_t tile = item.from; tile < item.to; tile++) multiply_part(tile, unit);
    } else {
      for (int64_t tile = item.from; tile < item.to; tile++)
        for (int64_t unit = 0; unit < units; unit += blocks.part()) multiply_part(tile, unit);
    }
  });
  epilogue.rest();
}

}  // namespace quire
