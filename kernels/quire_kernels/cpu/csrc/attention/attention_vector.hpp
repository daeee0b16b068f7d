// Vector kernels of attention. Both compute the same sums in the same order.
#pragma once
#include "attention/attention_block.hpp"
#include "gemm/gemm_vector.hpp"
#include "sampling/softmax.hpp"

namespace quire {

// A kernel computes the lines of a tile. Its interface:
//   scores: lines starting at `at` in memory · keys -> scores [lines, BLOCK]
//   values: out [lines, stride] += weights [lines, BLOCK] · values
//   COPIES: values are copied to contiguous memory; lines come in whole strips.
//   BYTES: keys and values are the bytes of the pages; weights are bytes times a step for each line.
//   PREFETCHES_BY_HEAD: prefetches what the next head reads, not the next block in memory order.
//   HAS_HEIGHT: `set_height` gets the number of lines before each block.
//   BANDS: lines come in bands (`attend_bands`).
//
// This kernel uses vectors.
template <class T>
struct VectorLines {
  using X = RowElement<T>;
  static constexpr int P = PER_UNIT<T>;
  // Lines that share what is loaded, and vectors of sums of each: so many that multiply-adds need not wait for each other, and
  // that there are registers.
#if defined(__AVX2__) && !defined(__AVX512F__)
  static constexpr int LINES_AT_ONCE = 6;
  static constexpr int at_once(int lines) { return std::max(1, 4 / lines); }  // in two of 16 registers each
#else
  static constexpr int LINES_AT_ONCE = 4;
  static constexpr int at_once(int) { return 4; }
#endif
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = true, HAS_HEIGHT = false, BANDS = false;

  // Prefetches two cache lines of a group's keys and two of its values, of those that are read next. Keys and
  // values are prefetched in parallel and evenly during the computation: two streams get more bandwidth than one,
  // and continuous requests more than bursts; to the second level, which can wait for more lines at once than the first.
  static void prefetch_two(const Block<T>& block, int group, int64_t line) {
    constexpr int64_t LINE = LANES * P;
    const T *keys = block.next_keys[group] + line * LINE, *values = block.next_values[group] + line * LINE;
    prefetch_l2(keys), prefetch_l2(keys + LINE), prefetch_l2(values), prefetch_l2(values + LINE);
  }

  // q [lines, dim] · keys -> scores [lines, BLOCK], of COUNT groups from `first` on; missing ones repeat the last.
  template <int LINES, int COUNT>
  static void scores_of_groups(const X* q, int64_t dim, const Block<T>& block, int first, float* scores) {
    F16 acc[LINES][COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * COUNT; i++) acc[i / COUNT][i % COUNT] = zero();
    const T* keys[COUNT];
    for (int g = 0; g < COUNT; g++) keys[g] = block.keys[std::min(first + g, block.groups() - 1)];
    const int64_t units = dim / P;
    for (int64_t u = 0; u < units; u++) {
      const bool second = 2 * u >= units;
      if (first == 0) prefetch_two(block, second, 2 * u - second * units);
#pragma GCC unroll 2
      for (int i = 0; i < FACTORS<T>; i++) {
        U16 k[COUNT];
#pragma GCC unroll 4
        for (int g = 0; g < COUNT; g++) k[g] = factor<T>(load_units(keys[g] + u * GROUP * P), i);
#pragma GCC unroll 8
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(q + l * dim + u * P + i);
#pragma GCC unroll 4
          for (int g = 0; g < COUNT; g++) acc[l][g] = dot(acc[l][g], a, k[g], X{});
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * COUNT; i++)
      store(scores + i / COUNT * BLOCK + (first + i % COUNT) * GROUP, acc[i / COUNT][i % COUNT]);
  }

  template <int LINES>
  static void scores_of(const X* q, int64_t dim, const Block<T>& block, float* scores) {
    const int groups = block.groups() <= GROUPS / 2 ? GROUPS / 2 : GROUPS;
    constexpr int AT_ONCE = std::min(GROUPS / 2, at_once(LINES));
    if constexpr (at_once(LINES) == GROUPS)
      if (groups == GROUPS) return scores_of_groups<LINES, GROUPS>(q, dim, block, 0, scores);
    for (int g = 0; g < groups; g += AT_ONCE) scores_of_groups<LINES, AT_ONCE>(q, dim, block, g, scores);
  }

  // out [lines, stride] += weights [lines, BLOCK] · values, for VECTORS vectors of every line
  template <int LINES, int VECTORS>
  static void add_vectors(const X* weights, const Block<T>& block, int64_t stride, int64_t d, float* out) {
    constexpr int EVERY = 4 / VECTORS;  // passes are so many times as many as with four vectors
    F16 acc[LINES][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * VECTORS; i++)
      acc[i / VECTORS][i % VECTORS] = load(out + i / VECTORS * stride + d + i % VECTORS * LANES);
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / P; u++) {
        const T* row = block.values[g] + (u * stride + d) * P;
        if (u % EVERY == 0)
          prefetch_two(block, 2 + g / 2, ((d / LANES / VECTORS * 2 + g % 2) * (GROUP / P) + u) / EVERY * 2);
#pragma GCC unroll 2
        for (int part = 0; part < FACTORS<T>; part++) {
          U16 v[VECTORS];
#pragma GCC unroll 4
          for (int i = 0; i < VECTORS; i++) v[i] = factor<T>(load_units(row + i * LANES * P), part);
#pragma GCC unroll 8
          for (int l = 0; l < LINES; l++) {
            const U16 a = same_unit(weights + l * BLOCK + g * GROUP + u * P + part);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) acc[l][i] = dot(acc[l][i], a, v[i], X{});
          }
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * VECTORS; i++)
      store(out + i / VECTORS * stride + d + i % VECTORS * LANES, acc[i / VECTORS][i % VECTORS]);
  }

  template <int LINES>
  static void add_values(const X* weights, const Block<T>& block, int64_t stride, float* out) {
    constexpr int AT_ONCE = at_once(LINES);
    int64_t d = 0;
    for (; d + AT_ONCE * LANES <= stride; d += AT_ONCE * LANES) add_vectors<LINES, AT_ONCE>(weights, block, stride, d, out);
    for (; d < stride; d += LANES) add_vectors<LINES, 1>(weights, block, stride, d, out);
  }

  void scores(Scratch<T>& mine, int64_t at, int64_t lines, int64_t dim, const Block<T>& b, float* s) {
    const X* q = mine.q.data() + at * dim;
    each_tile_of<LINES_AT_ONCE>(lines, [&](int64_t l, auto count) { scores_of<count>(q + l * dim, dim, b, s + l * BLOCK); });
  }
  void values(const X* w, const float*, int64_t lines, const Block<T>& b, int64_t stride, float* o) {
    each_tile_of<LINES_AT_ONCE>(lines, [&](int64_t l, auto count) { add_values<count>(w + l * BLOCK, b, stride, o + l * stride); });
  }
};

#if defined(__AVX512F__)

// A band is LINES lines of one head whose scores of a block stay in registers until they are weights. The values of a
// band are added after the scores of the next one: these need not wait for the weights.
template <class T>
struct ManyLines {
  using X = RowElement<T>;
  static constexpr int P = PER_UNIT<T>;
  static constexpr int64_t UNIT_BYTES = 4, VECTOR_BYTES = 64;
  static constexpr int LINES = 6;  // 24 sums, four vectors of keys or values, one of q or weights: 29 of 32 registers
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = true, HAS_HEIGHT = false, BANDS = true;

  // q [LINES, dim] · the keys of the first SEEN groups. ahead: memory of the size of a group of keys, to be prefetched.
  template <int SEEN>
  [[gnu::always_inline]] static inline void sum_keys(const X* q, int64_t dim, const Block<T>& block, const void* ahead,
                                                     F16 (&acc)[LINES][SEEN]) {
#pragma GCC unroll 32
    for (int i = 0; i < LINES * SEEN; i++) acc[i / SEEN][i % SEEN] = zero();
    RowPositions<LINES> rows(q, dim * static_cast<int64_t>(sizeof(X)));
    const auto key = [&](int g) { return reinterpret_cast<const char*>(block.keys[std::min(g, SEEN - 1)]); };
    const char *k0 = key(0), *k1 = key(1), *k2 = key(2), *k3 = key(3);
    const char* next = static_cast<const char*>(ahead);
    const int64_t end = dim / P * VECTOR_BYTES;
    for (int64_t at = 0; at < end; at += VECTOR_BYTES) {
      asm("" : "+r"(at));  // or compilers keep the sums of all addresses
      prefetch_l1(next + at);
#pragma GCC unroll 2
      for (int i = 0; i < FACTORS<T>; i++) {
        U16 k[SEEN];
#pragma GCC unroll 4
        for (int g = 0; g < SEEN; g++) k[g] = factor<T>(load_units((g == 0 ? k0 : g == 1 ? k1 : g == 2 ? k2 : k3) + at), i);
#pragma GCC unroll 8
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(rows[l] + i * UNIT_BYTES);
#pragma GCC unroll 4
          for (int g = 0; g < SEEN; g++) acc[l][g] = dot(acc[l][g], a, k[g], X{});
        }
      }
      rows.advance(FACTORS<T> * UNIT_BYTES);
    }
  }

  // q [LINES, dim] · keys -> scores [LINES, BLOCK]
  [[gnu::noinline]] static void score(const X* q, int64_t dim, const Block<T>& block, const void* ahead, float* scores) {
    F16 acc[LINES][GROUPS];
    sum_keys(q, dim, block, ahead, acc);
#pragma GCC unroll 32
    for (int i = 0; i < LINES * GROUPS; i++) store(scores + i / GROUPS * BLOCK + i % GROUPS * GROUP, acc[i / GROUPS][i % GROUPS]);
  }

  // q [LINES, dim] · the keys of the first SEEN groups -> weights [LINES, BLOCK], where scores need no transformation.
  // visible: if END, the number of positions that each line sees: at least 1 and, but for the last two groups, all.
  // FIRST: the lines have no scores yet. Else returns false, and does nothing, if a score raises a maximum.
  template <int SEEN, bool FIRST, bool END>
  [[gnu::noinline]] static bool weigh(const X* q, int64_t dim, const Block<T>& block, const void* ahead, const ScoreTransform& soft,
                                      const int* visible, float* tops, float* totals, X* weights) {
    F16 acc[LINES][SEEN];
    sum_keys(q, dim, block, ahead, acc);
    if (END)
#pragma GCC unroll 8
      for (int l = 0; l < LINES; l++)
#pragma GCC unroll 2
        for (int g = SEEN > 2 ? SEEN - 2 : 0; g < SEEN; g++)
          acc[l][g] = keep(acc[l][g], 0, std::clamp(visible[l] - g * GROUP, 0, GROUP), set1(HIDDEN));
    bool raises = false;
#pragma GCC unroll 8
    for (int l = 0; l < LINES; l++) {
      const F16 best = max(max(acc[l][0], acc[l][SEEN / 2]), max(acc[l][SEEN / 4], acc[l][SEEN - 1]));
      const bool above = any_above(best, tops[l] + soft.slack);
      if (FIRST)
        tops[l] = above ? largest(best) : tops[l];
      else
        raises |= above;
    }
    if (raises) return false;
    const F16 unit = set1(soft.unit);
#pragma GCC unroll 8
    for (int l = 0; l < LINES; l++) {
      const F16 zero_at = set1(-tops[l] * soft.unit);
      F16 total = load(totals + l * LANES);
#pragma GCC unroll 2
      for (int g = 0; g < SEEN; g += 2) {
        const F16 w0 = exp2<T>(fma(acc[l][g], unit, zero_at));
        const F16 w1 = g + 1 < SEEN ? exp2<T>(fma(acc[l][g + 1 < SEEN ? g + 1 : g], unit, zero_at)) : zero();
        total = total + (w0 + w1);
        store(weights + l * BLOCK + g * GROUP, w0, w1);
      }
      store(totals + l * LANES, total);
    }
    return true;
  }

  // q [LINES, dim] · the keys of one group -> scores [LINES, BLOCK]
  [[gnu::noinline]] static void score_group(const X* q, int64_t dim, const T* keys, float* scores) {
    F16 acc[LINES];
#pragma GCC unroll 8
    for (F16& sum : acc) sum = zero();
    RowPositions<LINES> rows(q, dim * static_cast<int64_t>(sizeof(X)));
    for (int64_t u = 0; u < dim / P; u++) {
#pragma GCC unroll 2
      for (int i = 0; i < FACTORS<T>; i++) {
        const U16 k = factor<T>(load_units(keys + u * GROUP * P), i);
#pragma GCC unroll 8
        for (int l = 0; l < LINES; l++) acc[l] = dot(acc[l], same_unit(rows[l] + i * UNIT_BYTES), k, X{});
      }
      rows.advance(FACTORS<T> * UNIT_BYTES);
    }
#pragma GCC unroll 8
    for (int l = 0; l < LINES; l++) store(scores + l * BLOCK, acc[l]);
  }

  // out [LINES, stride] += weights [LINES, BLOCK] · values of the first `groups` groups, for VECTORS vectors of a line
  template <int VECTORS>
  [[gnu::noinline]] static void add_vectors(const X* weights, const Block<T>& block, int groups, const void* ahead,
                                            int64_t stride, int64_t d, float* out) {
    F16 acc[LINES][VECTORS];
    RowPositions<LINES> sums(out + d, stride * static_cast<int64_t>(sizeof(float)));
#pragma GCC unroll 32
    for (int i = 0; i < LINES * VECTORS; i++)
      acc[i / VECTORS][i % VECTORS] = load(reinterpret_cast<const float*>(sums[i / VECTORS]) + i % VECTORS * LANES);
    const char* next = static_cast<const char*>(ahead) + d / LANES * GROUP / P * VECTOR_BYTES;
    for (int g = 0; g < groups; g++) {
      const char* row = reinterpret_cast<const char*>(block.values[g]) + d * UNIT_BYTES;
      const X* w = weights + g * GROUP;
#pragma GCC unroll 2
      for (int u = 0; u < GROUP / P; u++, row += stride * UNIT_BYTES, w += P, next += VECTOR_BYTES) {
        asm("" : "+r"(row), "+r"(w), "+r"(next));
        prefetch_l1(next);
#pragma GCC unroll 2
        for (int part = 0; part < FACTORS<T>; part++) {
          U16 v[VECTORS];
#pragma GCC unroll 4
          for (int i = 0; i < VECTORS; i++) v[i] = factor<T>(load_units(row + i * VECTOR_BYTES), part);
#pragma GCC unroll 8
          for (int l = 0; l < LINES; l++) {
            const U16 a = same_unit(w + l * BLOCK + part);
#pragma GCC unroll 4
            for (int i = 0; i < VECTORS; i++) acc[l][i] = dot(acc[l][i], a, v[i], X{});
          }
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < LINES * VECTORS; i++)
      store(const_cast<float*>(reinterpret_cast<const float*>(sums[i / VECTORS])) + i % VECTORS * LANES, acc[i / VECTORS][i % VECTORS]);
  }

  static void add_values(const X* weights, const Block<T>& block, int groups, const void* ahead, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) add_vectors<4>(weights, block, groups, ahead, stride, d, out);
    for (; d < stride; d += LANES) add_vectors<1>(weights, block, groups, ahead, stride, d, out);
  }
};

#endif

}  // namespace quire
