// Vector kernel of attention.
#pragma once
#include "attention/attention_block.hpp"

namespace quire {

// A kernel computes the lines of a tile. Its interface:
//   scores: lines starting at `at` in memory · keys -> scores [lines, BLOCK]
//   values: out [lines, stride] += weights [lines, BLOCK] · values
//   COPIES: values are copied to contiguous memory; lines come in whole strips.
//   BYTES: keys and values are the bytes of the pages; weights are bytes times a step for each line.
//   PREFETCHES_BY_HEAD: prefetches what the next head reads, not the next block in memory order.
//   HAS_HEIGHT: `set_height` gets the number of lines before each block.
//
// This kernel uses vectors; four lines at a time share what is loaded.
template <class T>
struct VectorLines {
  static constexpr int P = PER_UNIT<T>;
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = true, HAS_HEIGHT = false, BANDS = false;

  // Prefetches two cache lines of a group's keys and two of its values, of those that are read next. Keys and
  // values are prefetched in parallel and evenly during the computation: two streams get more bandwidth than one,
  // and continuous requests more than bursts.
  static void prefetch_two(const Block<T>& block, int group, int64_t line) {
    constexpr int64_t LINE = LANES * P;
    const T *keys = block.next_keys[group] + line * LINE, *values = block.next_values[group] + line * LINE;
    prefetch_l1(keys), prefetch_l1(keys + LINE), prefetch_l1(values), prefetch_l1(values + LINE);
  }

  // q [lines, dim] · keys -> scores [lines, BLOCK]. All groups are computed; missing ones repeat the last.
  template <int LINES>
  static void scores_of(const T* q, int64_t dim, const Block<T>& block, float* scores) {
    F16 acc[LINES][GROUPS];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * GROUPS; i++) acc[i / GROUPS][i % GROUPS] = zero();
    const T* keys[GROUPS];
    for (int g = 0; g < GROUPS; g++) keys[g] = block.keys[std::min(g, block.groups() - 1)];
    const int64_t units = dim / P;
    for (int64_t u = 0; u < units; u++) {
      U16 k[GROUPS];
#pragma GCC unroll 4
      for (int g = 0; g < GROUPS; g++) k[g] = load_units(keys[g] + u * GROUP * P);
      const bool second = 2 * u >= units;
      prefetch_two(block, second, 2 * u - second * units);
#pragma GCC unroll 4
      for (int l = 0; l < LINES; l++) {
        const U16 a = same_unit(q + l * dim + u * P);
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) acc[l][g] = dot(acc[l][g], a, k[g], T{});
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * GROUPS; i++) store(scores + i / GROUPS * BLOCK + i % GROUPS * GROUP, acc[i / GROUPS][i % GROUPS]);
  }

  // out [lines, stride] += weights [lines, BLOCK] · values, for VECTORS vectors of every line
  template <int LINES, int VECTORS>
  static void add_vectors(const T* weights, const Block<T>& block, int64_t stride, int64_t d, float* out) {
    F16 acc[LINES][VECTORS];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * VECTORS; i++)
      acc[i / VECTORS][i % VECTORS] = load(out + i / VECTORS * stride + d + i % VECTORS * LANES);
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / P; u++) {
        const T* row = block.values[g] + (u * stride + d) * P;
        U16 v[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) v[i] = load_units(row + i * LANES * P);
        if (VECTORS == 4 || u % 4 == 0) prefetch_two(block, 2 + g / 2, (g % 2 * GROUP / P + u + d / VECTORS / LANES * GROUP) * 2);
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(weights + l * BLOCK + g * GROUP + u * P);
#pragma GCC unroll 4
          for (int i = 0; i < VECTORS; i++) acc[l][i] = dot(acc[l][i], a, v[i], T{});
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * VECTORS; i++)
      store(out + i / VECTORS * stride + d + i % VECTORS * LANES, acc[i / VECTORS][i % VECTORS]);
  }

  template <int LINES>
  static void add_values(const T* weights, const Block<T>& block, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) add_vectors<LINES, 4>(weights, block, stride, d, out);
    for (; d < stride; d += LANES) add_vectors<LINES, 1>(weights, block, stride, d, out);
  }

  void scores(Scratch<T>& mine, int64_t at, int64_t lines, int64_t dim, const Block<T>& b, float* s) {
    const T* q = mine.q.data() + at * dim;
    by_four(
        lines, [&](int64_t l) { scores_of<4>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<3>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<2>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<1>(q + l * dim, dim, b, s + l * BLOCK); });
  }
  void values(const T* w, const float*, int64_t lines, const Block<T>& b, int64_t stride, float* o) {
    by_four(
        lines, [&](int64_t l) { add_values<4>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<3>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<2>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<1>(w + l * BLOCK, b, stride, o + l * stride); });
  }
};

}  // namespace quire
