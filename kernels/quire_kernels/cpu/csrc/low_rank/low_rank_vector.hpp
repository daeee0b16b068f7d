// Both products of `low_rank/low_rank.hpp` with vectors: sums stay in registers throughout.
//
// An adapter's weights are read in memory order as one stream, which gives the highest bandwidth; few tokens take
// no longer than that stream. With many, tile after tile of tokens uses a panel of a while it is in the first-level
// cache.
#pragma once
#include "tile_heights.hpp"

namespace quire {

// Maximum tokens of a tile, with two panels or two sums each.
#if defined(__AVX512F__)
constexpr int MAX_TILE_ENTRIES = 12;  // 24 sums, two weights, and x: 27 of 32 registers
constexpr int MAX_SHRINK_ENTRIES = 6, SUMS = 4;
constexpr int FEW_ENTRIES = 6;
#else
constexpr int MAX_TILE_ENTRIES = 2;
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
  static void shrink_rows(const X* const* x, const float* weights, SequentialReader& reader, int64_t units,
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

  // Two panels of outputs (`panel` and the next), added to y for ROWS entries starting at `first`. All of y is
  // read before any is written: rows are often a multiple of 2 KiB apart, and a load waits for a store to such an
  // address. WHOLE: both panels are full and there is neither scale nor shift.
  template <int ROWS, bool WHOLE, class Y>
  static void expand_rows(const Slice& slice, const uint32_t* panel, const Entries<Y>& entries, int64_t first,
                          const X* middle, int64_t width, int64_t at) {
    const Pair<WHOLE> pair{slice, at};
    F16 left[ROWS], right[ROWS];
    Y* y[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      y[r] = entries.y.row(entries.tokens[first + r], 0) + slice.start;
      pair.load(y[r], entries.weights[first + r], left[r], right[r]);
    }
    const uint32_t* next = pair.right ? panel + slice.units * LANES : panel;
    for (int64_t u = 0; u < slice.units; u++) {
      const U16 w0 = streamed(panel + u * LANES), w1 = streamed(next + u * LANES);
#pragma GCC unroll 2
      for (int part = 0; part < FACTORS<T>; part++) {
        const U16 u0 = factor<T>(w0, part), u1 = factor<T>(w1, part);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
          const U16 a = same_unit(middle + r * width + u * PER_UNIT<T> + part);
          left[r] = dot(left[r], a, u0, X{});
          right[r] = dot(right[r], a, u1, X{});
        }
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) pair.store(y[r], left[r], right[r]);
  }

  // `expand_rows` for panels in groups, which are read in order and decompressed in registers.
  template <int ROWS, bool WHOLE, class Y>
  static void expand_groups(const Slice& slice, SequentialReader& vectors, const Entries<Y>& entries, const X* middle,
                            int64_t width, int64_t at) {
    const Pair<WHOLE> pair{slice, at};
    F16 left[ROWS], right[ROWS];
    Y* y[ROWS];
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) {
      y[r] = entries.y.row(entries.tokens[r], 0) + slice.start;
      pair.load(y[r], entries.weights[r], left[r], right[r]);
    }
    add_panel<ROWS>(vectors, slice.units, middle, width, left);
    if (pair.right) add_panel<ROWS>(vectors, slice.units, middle, width, right);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; r++) pair.store(y[r], left[r], right[r]);
  }
  template <int ROWS>
  static void add_panel(SequentialReader& vectors, int64_t units, const X* middle, int64_t width, F16 (&sums)[ROWS]) {
    for (int64_t u = 0; u < units; u += GROUP_VECTORS) {
      const SequentialReader::Group w = vectors.group();
#pragma GCC unroll 4
      for (int i = 0; i < GROUP_VECTORS; i++)
#pragma GCC unroll 2
        for (int part = 0; part < FACTORS<T>; part++) {
          const U16 unit = factor<T>(w.vectors[i], part);
#pragma GCC unroll 16
          for (int r = 0; r < ROWS; r++)
            sums[r] = dot(sums[r], same_unit(middle + r * width + (u + i) * PER_UNIT<T> + part), unit, X{});
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

  // Compressed panels are decompressed pair by pair for the first tile of entries.
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
      const uint32_t* panels = slice.b.book ? buffer.data() : static_cast<const uint32_t*>(slice.b.at);
      each_tile_of<MAX_TILE_ENTRIES>(entries.count, [&](int64_t r, auto rows) {
        const X* ranks = middle + r * width + slice.first;
        int64_t at = from;
        const auto panel = [&] {
          const int64_t before = (at - from) * slice.units, here = std::min<int64_t>(2, (end - at + LANES - 1) / LANES);
          if (slice.b.book && !r) vectors.decompress(here * slice.units, buffer.data() + before);
          return panels + before;
        };
        for (; at < std::min(whole, end); at += 2 * LANES) expand_rows<rows, true>(slice, panel(), entries, r, ranks, width, at);
        for (; at < end; at += 2 * LANES) expand_rows<rows, false>(slice, panel(), entries, r, ranks, width, at);
      });
    }
  }

 private:
  static U16 streamed(const uint32_t* units) {
    prefetch_ahead(units);
    return load_units(units);
  }

  // Two groups of 16 outputs of a slice, of which some may not exist.
  template <bool WHOLE>
  struct Pair {
    Pair(const Slice& slice, int64_t at) : slice(slice), at(at) {
      const int64_t here = WHOLE ? 2 * LANES : std::min<int64_t>(2 * LANES, slice.stop - slice.start - at);
      left = static_cast<int>(std::min<int64_t>(here, LANES)), right = static_cast<int>(here) - left;
    }
    const Slice& slice;
    const int64_t at;
    int left, right;

    template <class Y>
    void load(const Y* y, float weight, F16& a, F16& b) const {
      a = WHOLE ? quire::load(y + at) : rescaled(slice, y, at, left, weight);
      b = WHOLE ? quire::load(y + at + LANES) : right ? rescaled(slice, y, at + LANES, right, weight) : zero();
    }
    template <class Y>
    void store(Y* y, F16 a, F16 b) const {
      if (WHOLE) return quire::store(y + at, a, b);
      set(y + at, a, left);
      if (right) set(y + at + LANES, b, right);
    }
  };
};

}  // namespace quire
