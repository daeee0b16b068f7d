// Both products of `low_rank/low_rank.hpp` with vectors: sums stay in registers throughout.
//
// An adapter's weights are read in memory order as one stream, which gives the highest bandwidth; few tokens take
// no longer than that stream. With many, tile after tile of tokens uses a panel of a while it is in the first-level
// cache.
#pragma once
#include "gemm/gemm_vector.hpp"
#include "tile_heights.hpp"

namespace quire {

// Maximum tokens of a tile of a, sums of each of them, and maximum tokens that decompress b in registers.
#if defined(__AVX512F__)
constexpr int MAX_SHRINK_ENTRIES = 6, SUMS = 4;
constexpr int FEW_ENTRIES = FACTORS<bf16> > 1 ? 3 : 6;
#else
constexpr int MAX_SHRINK_ENTRIES = 2, SUMS = 2;
constexpr int FEW_ENTRIES = 1;
#endif

template <class T>
struct Vectors {
  using X = RowElement<T>;
  // out[r] = weights[r] · x[r] · panel, [ROWS][stride], for the next panel of `vectors`, which is also stored
  // uncompressed at `left` if that is given. Neighboring units are summed separately, because a single row would
  // wait for its own sum. (All loops over rows are unrolled: otherwise their sums would be in memory.)
  template <int ROWS>
  [[gnu::noinline]] static void shrink_rows(const X* const* x, const float* weights, SequentialReader& reader, int64_t units,
                                            uint32_t* left, X* out, int64_t stride) {
    SequentialReader vectors = reader;  // a copy, whose fields stay in registers
    constexpr int P = PER_UNIT<T>;
    F16 acc[ROWS][SUMS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
      for (int i = 0; i < SUMS; i++) acc[r][i] = zero();
    for (int64_t u = 0; u < units; u += GROUP_VECTORS) {
      const SequentialReader::Group w = vectors.group();
      if (left) w.store(left + u * LANES);
#pragma GCC unroll 2
      for (int part = 0; part < FACTORS<T>; part++) {
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const X* at = x[r] + u * P + part;
#pragma GCC unroll 4
          for (int i = 0; i < GROUP_VECTORS; i++)
            acc[r][i % SUMS] = dot(acc[r][i % SUMS], same_unit(at + i * P), factor<T>(w.vectors[i], part), X{});
        }
      }
    }
    reader = vectors;
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      F16 sum = acc[r][0] + acc[r][1];
      if constexpr (SUMS == 4) sum = sum + (acc[r][2] + acc[r][3]);
      store(out + r * stride, sum * set1(weights[r]));
    }
  }

  void shrink(const X* const* x, const float* weights, int64_t count, const PackedWeights& adapter, int64_t units,
              X* middle) const {
    static thread_local ScratchBuffer<uint32_t> buffer;
    const int64_t width = adapter.panels * LANES;
    const bool often = adapter.a.book && count > MAX_SHRINK_ENTRIES;
    if (often) buffer.fit(units * LANES);
    SequentialReader vectors(adapter.a);
    for (int64_t p = 0; p < adapter.panels; p++)
      each_tile_of<MAX_SHRINK_ENTRIES>(count, [&](int64_t r, auto rows) {
        X* out = middle + r * width + p * LANES;
        if (!r) return shrink_rows<rows>(x, weights, vectors, units, often ? buffer.data() : nullptr, out, width);
        SequentialReader again = often ? SequentialReader({buffer.data(), nullptr}) : SequentialReader(adapter.a, p * units);
        shrink_rows<rows>(x + r, weights + r, again, units, nullptr, out, width);
      });
  }

  // Adds panels of outputs from … end-1 to y for ROWS entries starting at `first`. All of y is read before any is written:
  // rows are often a multiple of 2 KiB apart, and a load waits for a store to such an address. A function of its own for
  // each number of rows, so that sums stay in registers. WHOLE: panels are full and there is neither scale nor shift.
  template <int ROWS, bool WHOLE, class Y>
  [[gnu::noinline]] static void expand_rows(const Slice& slice, const uint32_t* panel, const Entries<Y>& entries, int64_t first,
                                            const X* middle, int64_t width, int64_t from, int64_t end) {
    constexpr int HALVES = halves_of(ROWS);
    const int64_t units = slice.units;
    if (WHOLE && units < 1) __builtin_unreachable();  // or compilers keep a second copy of the sums
    Y* y[ROWS];
    for (int r = 0; r < ROWS; r++) y[r] = entries.y.row(entries.tokens[first + r], 0) + slice.start;
    for (int64_t at = from; at < end; at += HALVES * LANES, panel += HALVES * units * LANES) {
      const Outputs<HALVES, WHOLE> outputs(slice, at);
      F16 sums[ROWS][HALVES];
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) {
        prefetch_l1(y[r] + at + 2 * HALVES * LANES);
        outputs.load(y[r], entries.weights[first + r], sums[r]);
      }
      RowPositions<ROWS> rows(middle, width * static_cast<int64_t>(sizeof(X)));
      for (int64_t u = 0; u < units; u++, rows.advance(4 * FACTORS<T>)) {
        U16 w[HALVES];
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) w[h] = streamed(panel + (outputs.count[h] ? h * units + u : u) * LANES);
#pragma GCC unroll 2
        for (int part = 0; part < FACTORS<T>; part++) {
          asm("" ::: "memory");  // or compilers load ranks in advance, into registers that sums need
          U16 unit[HALVES];
#pragma GCC unroll 2
          for (int h = 0; h < HALVES; h++) unit[h] = factor<T>(w[h], part);
#pragma GCC unroll 16
          for (int r = 0; r < ROWS; r++) {
            const U16 a = same_unit(rows[r] + 4 * part);
#pragma GCC unroll 2
            for (int h = 0; h < HALVES; h++) sums[r][h] = dot(sums[r][h], a, unit[h], X{});
          }
        }
      }
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; r++) outputs.store(y[r], sums[r]);
    }
  }

  // `expand_rows` for panels in groups, which are read in order and decompressed in registers.
  template <int ROWS, bool WHOLE, class Y>
  static void expand_groups(const Slice& slice, SequentialReader& vectors, const Entries<Y>& entries, const X* middle,
                            int64_t width, int64_t at) {
    const Outputs<2, WHOLE> outputs(slice, at);
    F16 sums[ROWS][2];
    Y* y[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      y[r] = entries.y.row(entries.tokens[r], 0) + slice.start;
      outputs.load(y[r], entries.weights[r], sums[r]);
    }
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++)
      if (outputs.count[h]) add_panel<ROWS>(vectors, slice.units, middle, width, h, sums);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) outputs.store(y[r], sums[r]);
  }
  template <int ROWS>
  static void add_panel(SequentialReader& vectors, int64_t units, const X* middle, int64_t width, int h, F16 (&sums)[ROWS][2]) {
    for (int64_t u = 0; u < units; u += GROUP_VECTORS) {
      const SequentialReader::Group w = vectors.group();
#pragma GCC unroll 4
      for (int i = 0; i < GROUP_VECTORS; i++)
#pragma GCC unroll 2
        for (int part = 0; part < FACTORS<T>; part++) {
          const U16 unit = factor<T>(w.vectors[i], part);
#pragma GCC unroll 16
          for (int r = 0; r < ROWS; r++)
            sums[r][h] = dot(sums[r][h], same_unit(middle + r * width + (u + i) * PER_UNIT<T> + part), unit, X{});
        }
    }
  }
  template <int ROWS, class Y>
  [[gnu::noinline]] static void expand_few(const Slice& slice, const Entries<Y>& entries, const X* middle, int64_t width) {
    const int64_t outputs = slice.stop - slice.start;
    const int64_t whole = slice.scale || slice.shift ? 0 : outputs / (2 * LANES) * 2 * LANES;
    SequentialReader vectors(slice.b);
    int64_t at = 0;
    for (; at < whole; at += 2 * LANES) expand_groups<ROWS, true>(slice, vectors, entries, middle, width, at);
    for (; at < outputs; at += 2 * LANES) expand_groups<ROWS, false>(slice, vectors, entries, middle, width, at);
  }

  // Compressed panels are decompressed in blocks, each for all entries.
  template <class Y>
  void expand(const Slice& slice, const Entries<Y>& entries, const X* middle, int64_t width) const {
    static thread_local ScratchBuffer<uint32_t> buffer;
    if (entries.count <= FEW_ENTRIES && slice.units && slice.units % GROUP_VECTORS == 0)
      return with_constant<FEW_ENTRIES>(entries.count, [&](auto rows) { expand_few<rows>(slice, entries, middle + slice.first, width); });
    const int64_t outputs = slice.stop - slice.start, some = slice.outputs_at_once();
    const int64_t whole = slice.scale || slice.shift ? 0 : outputs / (2 * LANES) * 2 * LANES;
    if (slice.b.book) buffer.fit(some * slice.units);
    SequentialReader vectors(slice.b);
    for (int64_t from = 0; from < outputs; from += some) {
      const int64_t end = std::min(outputs, from + some);
      const int64_t whole_end = std::clamp(whole, from, end);
      const uint32_t* panels = vectors.decompress((end - from + LANES - 1) / LANES * slice.units, buffer.data());
      each_tile_of<MAX_ROWS>(entries.count, [&](int64_t r, auto rows) {
        const X* ranks = middle + r * width + slice.first;
        expand_rows<rows, true>(slice, panels, entries, r, ranks, width, from, whole_end);
        expand_rows<rows, false>(slice, panels + (whole_end - from) * slice.units, entries, r, ranks, width, whole_end, end);
      });
    }
  }

 private:
  static U16 streamed(const uint32_t* units) {
    prefetch_ahead(units);
    return load_units(units);
  }

  // Up to two groups of 16 outputs of a slice, of which some may not exist.
  template <int HALVES, bool WHOLE>
  struct Outputs {
    Outputs(const Slice& slice, int64_t at) : slice(slice), at(at) {
      for (int h = 0; h < HALVES; h++) {
        const int64_t left = slice.stop - slice.start - at - h * LANES;
        count[h] = WHOLE ? LANES : static_cast<int>(std::clamp<int64_t>(left, 0, LANES));
      }
    }
    const Slice& slice;
    const int64_t at;
    int count[HALVES];

    template <class Y>
    void load(const Y* y, float weight, F16 (&sums)[HALVES]) const {
#pragma GCC unroll 2
      for (int h = 0; h < HALVES; h++) {
        const int64_t i = at + h * LANES;
        sums[h] = WHOLE ? quire::load(y + i) : count[h] ? rescaled(slice, y, i, count[h], weight) : zero();
      }
    }
    template <class Y>
    void store(Y* y, const F16 (&sums)[HALVES]) const {
      if constexpr (WHOLE && HALVES == 2) return quire::store(y + at, sums[0], sums[1]);
#pragma GCC unroll 2
      for (int h = 0; h < HALVES; h++)
        if (count[h]) set(y + at + h * LANES, sums[h], count[h]);
    }
  };
};

}  // namespace quire
