// Sums of products with compact panels, by vectors, in the order of `product_vector.hpp`. Panels are restored in registers,
// beside the products; where an item has many tiles its first one restores a panel for all of them.
#pragma once
#include "packed_compact.hpp"
#include "product_cut.hpp"
#include "product_vector.hpp"

namespace quire {

constexpr int64_t STREAM_AHEAD = 4096;
constexpr int64_t FEW_TILES = 5;  // which restore what they read each for itself, beside their products

// A compact panel, read from its first unit to its last.
class CompactReader {
 public:
  CompactReader(const PanelBook& book, const uint32_t* panel)
      : upper_(book.upper),
        from_(reinterpret_cast<const uint8_t*>(panel) + book.head),
        rare_(reinterpret_cast<const Rare*>(panel)) {}

  // The vectors of the next two units.
  void next(U16 (&group)[GROUP_VECTORS]) {
    upper_.restore(from_, group);
    from_ += GROUP_BYTES, done_ += GROUP_ELEMENTS;
    if (rare_->place < done_) put_rare(group);
  }

 private:
  UpperBytes upper_;
  const uint8_t* from_;
  const Rare* rare_;  // the last one stands behind all elements
  uint32_t done_ = 0;  // elements

  void put_rare(U16 (&group)[GROUP_VECTORS]) {
    alignas(64) bf16 elements[GROUP_ELEMENTS];
    for (int i = 0; i < GROUP_VECTORS; i++) store_units(elements + i * 2 * LANES, group[i]);
    bf16* at = elements - (done_ - GROUP_ELEMENTS);
    for (; rare_->place < done_; rare_++) at[rare_->place].bits = static_cast<uint16_t>(rare_->bits);
    for (int i = 0; i < GROUP_VECTORS; i++) group[i] = load_units(elements + i * 2 * LANES);
  }
};

// Sums of ROWS rows and one panel.
template <int ROWS>
inline void sum_compact_rows(const bf16* x, int64_t stride, CompactReader reader, int64_t units, float* sums, Later later,
                             Later soon) {
  F16 acc[ROWS][2];
  for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = zero();
  for (int64_t u = 0; u < units; u += 2, later.at += 2 * later.step, soon.at += 2 * soon.step) {
    for (int64_t line = 0; line < 2 * later.step; line += 64) _mm_prefetch(later.at + line, _MM_HINT_T0);
    _mm_prefetch(soon.at, _MM_HINT_T1);
    _mm_prefetch(soon.at + soon.step, _MM_HINT_T1);
    U16 w[GROUP_VECTORS];
    reader.next(w);
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        const U16 a = same_unit(x + r * stride + (u + k) * PER_UNIT<bf16>);
        acc[r][0] = dot(acc[r][0], a, w[2 * k], bf16{});
        acc[r][1] = dot(acc[r][1], a, w[2 * k + 1], bf16{});
      }
  }
  for (int r = 0; r < ROWS; r++) {
    store(sums + r * PANEL, acc[r][0]);
    store(sums + r * PANEL + LANES, acc[r][1]);
  }
}

template <int MOST = MOST_ROWS>
inline void sum_some_compact(int64_t rows, const bf16* x, int64_t stride, const CompactReader& reader, int64_t count,
                             float* sums, Later later, Later soon) {
  if constexpr (MOST > 1) {
    if (rows < MOST) return sum_some_compact<MOST - 1>(rows, x, stride, reader, count, sums, later, soon);
  }
  sum_compact_rows<MOST>(x, stride, reader, count, sums, later, soon);
}

struct CompactTiles {
  static constexpr int64_t ROWS = MOST_ROWS;
  // A block is so many rows that restoring a panel for each of them costs little.
  static constexpr TileShape shape(int64_t row_bytes) { return {ROWS, true, 900 * row_bytes, 64}; }
  const PanelBook& book;

  template <class Between>
  void sums(const ProductTile& tile, int64_t panel, const bf16* x, int64_t stride, const uint32_t* w, int64_t units,
            Soon& soon, float* out, Between&&) {
    CompactReader reader(book, w);
    if (tile.tiles <= FEW_TILES) {
      const Later stream{reinterpret_cast<const char*>(w) + STREAM_AHEAD, COMPACT_UNIT_BYTES};
      return sum_some_compact(tile.count, x, stride, reader, units, out, tile.tiles == 1 ? stream : tile.beside(panel),
                              soon.next(units));
    }
    static thread_local Room<uint32_t> plain;
    plain.fit((tile.last - tile.first) * units * PANEL);
    uint32_t* mine = plain.data() + (panel - tile.first) * units * PANEL;
    for (int64_t u = 0; tile.fresh && u < units; u += 2) {
      U16 group[GROUP_VECTORS];
      reader.next(group);
      for (int i = 0; i < GROUP_VECTORS; i++) store_units(mine + u * PANEL + i * LANES, group[i]);
    }
    sum_some<bf16>(tile.count, x, stride, mine, units, out, tile.beside(panel), soon.next(units));
  }
};

}  // namespace quire
