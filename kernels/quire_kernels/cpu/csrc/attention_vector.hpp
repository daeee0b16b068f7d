// Lines of an attention tile with vectors.
#pragma once
#include "attention_block.hpp"

namespace quire {

// How the lines of a tile are computed; there are several kinds:
//   scores: lines from `at` on in memory · keys -> scores [lines, BLOCK]
//   values: out [lines, stride] += weights [lines, BLOCK] · values
//   COPIES: values lie one after the other, and are copied for that; lines come in whole strips.
//   BYTES: keys and values are the bytes of the pages; weights are bytes times a step of each line's own.
//   ASKS_BY_HEAD: what is asked for meanwhile is what the next head reads, not the next block as it lies in memory.
//
// This one: vectors. Four lines at a time share what is loaded.
template <class T>
struct VectorLines {
  static constexpr int P = PER_UNIT<T>;
  static constexpr bool COPIES = false, BYTES = false, ASKS_BY_HEAD = true;

  // Asks for two lines of cache each of a group's keys and of its values, of those that are read next. Keys and values side
  // by side, and evenly while there is computing: memory gives more to two streams than to one, and to all that computes
  // nothing while it waits for answers.
  static void ask_two(const Block<T>& block, int group, int64_t line) {
    constexpr int64_t LINE = LANES * P;
    const T *keys = block.next_keys[group] + line * LINE, *values = block.next_values[group] + line * LINE;
    ask_soon(keys), ask_soon(keys + LINE), ask_soon(values), ask_soon(values + LINE);
  }

  // q [lines, dim] · keys -> scores [lines, BLOCK]. All groups are computed: those that are not there repeat the last.
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
      ask_two(block, second, 2 * u - second * units);
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

  // out [lines, stride] += weights [lines, BLOCK] · values, for PIECES vectors of every line
  template <int LINES, int PIECES>
  static void add_piece(const T* weights, const Block<T>& block, int64_t stride, int64_t d, float* out) {
    F16 acc[LINES][PIECES];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * PIECES; i++)
      acc[i / PIECES][i % PIECES] = load(out + i / PIECES * stride + d + i % PIECES * LANES);
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / P; u++) {
        const T* row = block.values[g] + (u * stride + d) * P;
        U16 v[PIECES];
#pragma GCC unroll 4
        for (int i = 0; i < PIECES; i++) v[i] = load_units(row + i * LANES * P);
        if (PIECES == 4 || u % 4 == 0) ask_two(block, 2 + g / 2, (g % 2 * GROUP / P + u + d / PIECES / LANES * GROUP) * 2);
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(weights + l * BLOCK + g * GROUP + u * P);
#pragma GCC unroll 4
          for (int i = 0; i < PIECES; i++) acc[l][i] = dot(acc[l][i], a, v[i], T{});
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * PIECES; i++)
      store(out + i / PIECES * stride + d + i % PIECES * LANES, acc[i / PIECES][i % PIECES]);
  }

  template <int LINES>
  static void add_values(const T* weights, const Block<T>& block, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) add_piece<LINES, 4>(weights, block, stride, d, out);
    for (; d < stride; d += LANES) add_piece<LINES, 1>(weights, block, stride, d, out);
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
