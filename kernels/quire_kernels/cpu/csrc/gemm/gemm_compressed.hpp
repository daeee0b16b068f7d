// Vector kernels of products with compressed panels, with sums in the order of `gemm/gemm_vector.hpp`. Few rows
// decompress panels in registers beside the products; of more, the first tile of an item decompresses a panel for all.
#pragma once
#include "gemm/packed_compressed.hpp"
#include "gemm/gemm_groups.hpp"
#include "gemm/gemm_vector.hpp"
#if defined(__AVX2__) && !defined(__AVX512F__)
#include "gemm/compressed_parts.hpp"
#endif

namespace quire {

constexpr int64_t STREAM_AHEAD = 4096;
#if !defined(__AVX2__) || defined(__AVX512F__)
// Up to so many rows decompress what each tile of them reads, beside their products.
#if defined(__AVX512BF16__)
constexpr int64_t FEW_COMPRESSED_ROWS = 48;
#elif defined(__AVX512F__)
constexpr int64_t FEW_COMPRESSED_ROWS = 11;
#else
constexpr int64_t FEW_COMPRESSED_ROWS = 10;
#endif
constexpr int passes_of(int64_t) { return 1; }  // of a tile over a panel

// Sums of ROWS rows and one panel.
template <int ROWS>
[[gnu::noinline]] void sum_compressed_rows(const RowElement<bf16>* x, int64_t stride, CompressedPanelReader reader, int64_t units,
                             float* sums, PrefetchStream stream, PrefetchStream queue) {
  using X = RowElement<bf16>;
  F16 acc[ROWS][2];
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) acc[r][0] = acc[r][1] = zero();
  for (int64_t u = 0; u < units; u += 2, stream.at += 2 * stream.step, queue.at += 2 * queue.step) {
    for (int64_t line = 0; line < 2 * stream.step; line += 64) prefetch_l1(stream.at + line);
    prefetch_l2(queue.at);
    prefetch_l2(queue.at + queue.step);
    U16 w[GROUP_VECTORS];
    reader.next(w);
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
#pragma GCC unroll 2
      for (int i = 0; i < FACTORS<bf16>; i++) {
        asm("" ::: "memory");  // or compilers load x in advance, into registers that sums need
        const U16 left = factor<bf16>(w[2 * k], i), right = factor<bf16>(w[2 * k + 1], i);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const U16 a = same_unit(x + r * stride + ((u + k) * FACTORS<bf16> + i) * PER_UNIT<X>);
          acc[r][0] = dot(acc[r][0], a, left, X{});
          acc[r][1] = dot(acc[r][1], a, right, X{});
        }
      }
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++) {
    store(sums + r * PANEL, acc[r][0]);
    store(sums + r * PANEL + LANES, acc[r][1]);
  }
}

template <int MAX = std::min<int>(MAX_ROWS, FEW_COMPRESSED_ROWS)>
inline void sum_some_compressed(int64_t rows, const RowElement<bf16>* x, int64_t stride, const PanelCodebook& book, const uint32_t* w,
                                int64_t units, float* sums, PrefetchStream stream, PrefetchStream queue) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return sum_some_compressed<MAX - 1>(rows, x, stride, book, w, units, sums, stream, queue);
  }
  sum_compressed_rows<MAX>(x, stride, CompressedPanelReader(book, w), units, sums, stream, queue);
}
#endif

struct CompressedRows {
  using Row = RowElement<bf16>;
  static constexpr int64_t ROWS = std::min<int64_t>(MAX_ROWS, FEW_COMPRESSED_ROWS);
  static constexpr TileShape shape(int64_t) { return {ROWS, true, 1 << 18, 64}; }
  const PanelCodebook& book;

  template <class Between, class Terms>
  void sums(const GemmTile& tile, int64_t panel, const Row* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue& queue, float* out, Between&&, Terms&&) const {
    const PrefetchStream stream{reinterpret_cast<const char*>(w) + STREAM_AHEAD, COMPRESSED_UNIT_BYTES};
    sum_some_compressed(tile.count, x, stride, book, w, units, out,
                        tile.tiles * passes_of(tile.count) == 1 ? stream : tile.beside(panel), queue.next(units));
  }
};

// The thread's memory for decompressed panels, of this many words of four bytes.
inline uint32_t* panel_memory(int64_t words) {
  static thread_local ScratchBuffer<uint32_t> plain;
  plain.fit(words);
  return plain.data();
}

// Decompresses the panels first … last-1, one after another, to memory of the thread. UNIT_WORDS: of a unit there; more than
// PANEL: widened.
template <int64_t UNIT_WORDS>
const uint32_t* read_group(const PanelCodebook& book, const Packed& w, int64_t first, int64_t last, int64_t units) {
  uint32_t* plain = panel_memory((last - first) * units * UNIT_WORDS);
  for (int64_t i = first; i < last; i++) {
    CompressedPanelReader reader(book, w.panel(i, units));
    uint32_t* to = plain + (i - first) * units * UNIT_WORDS;
    if constexpr (UNIT_WORDS > PANEL)
      reader.read_widened(units, to);
    else
      reader.read(units, to);
  }
  return plain;
}

struct CompressedTiles {
  using Row = RowElement<bf16>;
  static constexpr int64_t ROWS = MAX_ROWS, UNIT_WORDS = PANEL;
  // A block has so many rows that decompressing a panel for each block costs little.
  static constexpr TileShape shape(int64_t row_bytes) { return {ROWS, true, 900 * row_bytes, 64}; }
  const PanelCodebook& book;

  const uint32_t* group(const Packed& w, int64_t first, int64_t last, int64_t units) const {
    return read_group<UNIT_WORDS>(book, w, first, last, units);
  }
  static void group_sums(int64_t rows, const Row* x, int64_t stride, const uint32_t* w, int64_t units, float* out,
                        PrefetchStream stream, PrefetchStream queue) {
    sum_some<bf16>(rows, x, stride, w, units, out, stream, queue);
  }

  template <class Between, class Terms>
  void sums(const GemmTile& tile, int64_t panel, const Row* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue& queue, float* out, Between&&, Terms&&) const {
    uint32_t* mine = panel_memory((tile.last - tile.first) * units * UNIT_WORDS) + (panel - tile.first) * units * UNIT_WORDS;
    if (tile.fresh) CompressedPanelReader(book, w).read(units, mine);
    sum_some<bf16>(tile.count, x, stride, mine, units, out, tile.beside(panel), queue.next(units));
  }
};

#if defined(__x86_64__)
// Where cores multiply float32 only, tiles of many rows need not widen weights if panels are widened as they are
// decompressed. That takes twice the memory: of long panels too few would fit into the second-level cache.
struct WidenedTiles {
  using Row = float;
  static constexpr int64_t ROWS = MAX_ROWS, UNIT_WORDS = 2 * PANEL;
  static bool pays(int64_t units) {
    return FACTORS<bf16> > 1 && units * UNIT_WORDS * 4 <= second_level_cache() / 8;
  }
  const PanelCodebook& book;

  const uint32_t* group(const Packed& w, int64_t first, int64_t last, int64_t units) const {
    return read_group<UNIT_WORDS>(book, w, first, last, units);
  }
  static void group_sums(int64_t rows, const Row* x, int64_t stride, const uint32_t* w, int64_t units, float* out,
                        PrefetchStream stream, PrefetchStream queue) {
    sum_some<float>(rows, x, stride, w, 2 * units, out, stream.halved(), queue.halved());
  }
};
#endif

}  // namespace quire
