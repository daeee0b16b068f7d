// Vector kernels of products.
#pragma once
#include "gemm/packed.hpp"
#include "gemm/gemm_tiling.hpp"

namespace quire {

// Positions in ROWS rows at equal distances. An address may be a register plus another one times 1 or 2, so one register
// serves three rows: with one for each row, compilers keep some of them in vector registers.
template <int ROWS>
class RowPositions {
 public:
  RowPositions(const void* first, int64_t distance) : distance_(distance) {
    bases_[0] = static_cast<const char*>(first);
#pragma GCC unroll 8
    for (int i = 1; i < BASES; i++) bases_[i] = bases_[i - 1] + 3 * distance;
    advance(0);
  }
  const char* operator[](int row) const { return bases_[row / 3] + row % 3 * distance_; }
  void advance(int64_t bytes) {
    asm("" : "+r"(distance_));  // hides from compilers what they would keep sums of in further registers
#pragma GCC unroll 8
    for (int i = 0; i < BASES; i++) {
      bases_[i] += bytes;
      asm("" : "+r"(bases_[i]));
    }
  }

 private:
  static constexpr int BASES = (ROWS + 2) / 3;
  const char* bases_[BASES];
  int64_t distance_;
};

constexpr int64_t UNITS_AT_ONCE = 4;  // of loops over units, of which there is a multiple

// Cores without bfloat16 instructions read weights from the second-level cache too late unless they are prefetched from it,
// this number of units ahead.
constexpr bool READS_AHEAD = FACTORS<bf16> > 1;
constexpr int64_t UNITS_AHEAD = 8;

// Prefetches beside a unit. Where weights are prefetched too, three further instructions per unit of float32 would take a
// twentieth of the time: there each stream has every second unit.
template <class T, int HALVES>
inline void prefetch_beside(int unit, PrefetchStream& stream, PrefetchStream& queue) {
  constexpr int TURNS = READS_AHEAD ? 3 - FACTORS<T> : 1, LINES = READS_AHEAD ? 1 : HALVES;
  if (unit % TURNS == 0) {
#pragma GCC unroll 2
    for (int i = 0; i < LINES; i++) prefetch_l1(stream.at + i * 4 * LANES);
    stream.at += TURNS * stream.step;
  }
  if (unit % TURNS == TURNS - 1) prefetch_l2(queue.at), queue.at += TURNS * queue.step;
  asm("" : "+r"(stream.at), "+r"(queue.at));  // or compilers keep the positions of all units
}

// Rows of a tile, and halves of a panel that are summed at once, as many as there are registers for.
#if defined(__AVX512F__)
constexpr int MAX_ROWS = 12;  // 24 sums, two weights, one x: 27 of 32 registers
constexpr int halves_of(int) { return 2; }
#elif defined(__AVX2__)
constexpr int MAX_ROWS = 6;  // 12 of 16 registers for sums, two for weights, one for x
constexpr int halves_of(int rows) { return rows <= 3 ? 2 : 1; }
#else
constexpr int MAX_ROWS = 2;
constexpr int halves_of(int) { return 2; }
#endif

// Sums of ROWS rows of x and halves of a panel. A function of its own, as those in the other files: if g++ inlines kernels
// of all heights into one function, it keeps sums of some of them in memory, which takes twice the time.
template <class T, int ROWS, int HALVES>
[[gnu::noinline]] void sum_rows(const RowElement<T>* x, int64_t stride, const uint32_t* w, int64_t units, float* sums,
                     PrefetchStream stream, PrefetchStream queue) {
  using X = RowElement<T>;
  F16 acc[ROWS][HALVES];
#pragma GCC unroll 16
  for (auto& row : acc)
#pragma GCC unroll 2
    for (F16& half : row) half = zero();
  RowPositions<ROWS> rows(x, stride * static_cast<int64_t>(sizeof(X)));
  for (const uint32_t* end = w + units * PANEL; w < end; w += UNITS_AT_ONCE * PANEL) {
#pragma GCC unroll 4
    for (int k = 0; k < UNITS_AT_ONCE; k++) {
      prefetch_beside<T, HALVES>(k, stream, queue);
#pragma GCC unroll 2
      for (int h = 0; h < HALVES && READS_AHEAD; h++) prefetch_l1(w + (k + UNITS_AHEAD) * PANEL + h * LANES);
#pragma GCC unroll 2
      for (int i = 0; i < FACTORS<T>; i++) {
        U16 unit[HALVES];
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) unit[h] = factor<T>(load_units(w + k * PANEL + h * LANES), i);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const U16 a = same_unit(rows[r] + 4 * (FACTORS<T> * k + i));
#pragma GCC unroll 2
          for (int h = 0; h < HALVES; h++) acc[r][h] = dot(acc[r][h], a, unit[h], X{});
        }
      }
    }
    rows.advance(4 * FACTORS<T> * UNITS_AT_ONCE);
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
    for (int h = 0; h < HALVES; h++) store(sums + r * PANEL + h * LANES, acc[r][h]);
}

// Sums of `rows` rows and one panel.
template <class T, int MAX = MAX_ROWS>
inline void sum_some(int64_t rows, const RowElement<T>* x, int64_t stride, const uint32_t* w, int64_t units, float* sums,
                     PrefetchStream stream, PrefetchStream queue) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return sum_some<T, MAX - 1>(rows, x, stride, w, units, sums, stream, queue);
  }
  constexpr int HALVES = halves_of(MAX);
  for (int lane = 0; lane < PANEL; lane += HALVES * LANES, stream.at += HALVES * 4 * LANES, queue.step = 0)
    sum_rows<T, MAX, HALVES>(x, stride, w + lane, units, sums + lane, stream, queue);
}

template <class T>
struct VectorTiles {
  using Row = RowElement<T>;
  static constexpr int64_t ROWS = MAX_ROWS, UNIT_WORDS = PANEL;
  static constexpr TileShape shape(int64_t) { return {ROWS, true, 1 << 18, 64}; }

  const uint32_t* group(const Packed& w, int64_t first, int64_t, int64_t units) const { return w.panel(first, units); }
  static void group_sums(int64_t rows, const Row* x, int64_t stride, const uint32_t* w, int64_t units, float* out,
                        PrefetchStream stream, PrefetchStream queue) {
    sum_some<T>(rows, x, stride, w, units, out, stream, queue);
  }

  template <class Between, class Terms>
  void sums(const GemmTile& tile, int64_t panel, const Row* x, int64_t stride, const uint32_t* w, int64_t units,
            PrefetchQueue& queue, float* out, Between&&, Terms&&) {
    sum_some<T>(tile.count, x, stride, w, units, out, tile.beside(panel), queue.next(units));
  }
};

// One row and up to three panels, summed in the order of `sum_rows`.
template <class T>
struct VectorRow {
  static constexpr int64_t ROWS = 1;
  static constexpr int64_t PANELS = 3;

  template <int HALVES>  // of panels
  static void sums_of(const T* x, const uint32_t* w, int64_t units, float* out) {
    F16 acc[HALVES];
    for (F16& sum : acc) sum = zero();
    for (int64_t u = 0; u < units; u++) {
      const U16 unit = same_unit(x + u * PER_UNIT<T>);
#pragma GCC unroll 8
      for (int i = 0; i < HALVES; i++)
        acc[i] = dot(acc[i], unit, load_units(w + (i / 2 * units + u) * PANEL + i % 2 * LANES), T{});
    }
    for (int i = 0; i < HALVES; i++) store(out + i * LANES, acc[i]);
  }

  template <class Terms>
  void sums(int64_t panels, const T* x, int64_t, const uint32_t* w, int64_t, int64_t units, float* out, Terms&&) const {
    if (panels == 3) return sums_of<6>(x, w, units, out);
    if (panels == 2) return sums_of<4>(x, w, units, out);
    sums_of<2>(x, w, units, out);
  }
};

}  // namespace quire
