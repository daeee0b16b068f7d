// Attention to int4 pages. Tiles with many lines convert keys and values to elements of T and use the kernels for
// those; with few lines, codes become floats in registers and nothing is rounded to T.
#pragma once
#include "attention/attention_block.hpp"

namespace quire {

// Scales and offsets of a block's values as floats, [dim / 32][scales, offsets][BLOCK]; zero for missing positions, whose
// memory may hold NaN.
inline const float* value_steps(const AttentionArgs& args, const CodeGroup (&values)[GROUPS], int count) {
  static thread_local ScratchBuffer<float> mine;
  const int64_t blocks = args.v.dim / ROTATED_BLOCK;
  mine.fit(blocks * 2 * BLOCK);
  for (int64_t n = 0; n < blocks; n++)
    for (int g = 0; g < GROUPS; g++) {
      const int present = std::clamp(count - g * GROUP, 0, GROUP);
      float* to = mine.data() + n * 2 * BLOCK + g * GROUP;
      F16 scale, offset;
      values[g].steps(n * ROTATED_BLOCK, scale, offset);
      store(to, present == GROUP ? scale : keep(scale, 0, present, zero()));
      store(to + BLOCK, present == GROUP ? offset : keep(offset, 0, present, zero()));
    }
  return mine.data();
}

// Converts the keys of a group to [dim / P][16][P].
template <class T>
void widen_keys(const CodeGroup& group, int64_t dim, const int8_t* next, T* to) {
  for (int64_t d = 0; d < dim; d += ROTATED_BLOCK) {
    prefetch_block(next, d);
    F16 scale, offset, even, odd;
    group.steps(d, scale, offset);
    for (int64_t i = d; i < d + ROTATED_BLOCK; i += 2) {
      group.read_keys(i, scale, offset, even, odd);
      store_two(to + i * GROUP, GROUP, even, odd);
    }
  }
}

// Converts the values of a group to [16 / P][dim][P]. steps: of its positions.
template <class T>
void widen_values(const CodeGroup& group, int64_t dim, const float* steps, const int8_t* next, T* to) {
  constexpr int P = PER_UNIT<T>;
  for (int64_t d = 0; d < dim; d += ROTATED_BLOCK, steps += 2 * BLOCK) {
    prefetch_block(next, d);
    for (int p = 0; p < GROUP; p += 2) {
      F16 lower[2], upper[2];
      for (int i = 0; i < 2; i++)
        group.read_value(p + i, dim, d, steps[p + i], steps[BLOCK + p + i], lower[i], upper[i]);
      T* row = to + p * dim + d * P;
      store_two(row, dim, lower[0], lower[1]);
      store_two(row + LANES * P, dim, upper[0], upper[1]);
    }
  }
}

// Kernel for few lines on int4 pages: four lines or fewer at a time.
template <class T>
struct CodeLines {
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = false, HAS_HEIGHT = false, BANDS = false;

  // COUNT groups from `group` on. Sums are those of `VectorLines`, in the same order.
  template <int LINES, int COUNT>
  static void scores_of_groups(const RowElement<T>* q, int64_t dim, const Block<T>& block, int group, float* scores) {
    F16 acc[LINES][COUNT];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * COUNT; i++) acc[i / COUNT][i % COUNT] = zero();
    for (int64_t d = 0; d < dim; d += ROTATED_BLOCK) {
      F16 scale[COUNT], offset[COUNT];
#pragma GCC unroll 4
      for (int g = 0; g < COUNT; g++) {
        prefetch_block(block.next_key_bytes[group + g], d);
        block.key_codes[group + g].steps(d, scale[g], offset[g]);
      }
      for (int i = 0; i < ROTATED_BLOCK; i += 2) {
        F16 even[COUNT], odd[COUNT];
#pragma GCC unroll 4
        for (int g = 0; g < COUNT; g++) block.key_codes[group + g].read_keys(d + i, scale[g], offset[g], even[g], odd[g]);
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          F16 a, b;
          same_two(q + l * dim + d + i, a, b);
#pragma GCC unroll 4
          for (int g = 0; g < COUNT; g++) acc[l][g] = fma(b, odd[g], fma(a, even[g], acc[l][g]));
        }
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * COUNT; i++) store(scores + i / COUNT * BLOCK + (group + i % COUNT) * GROUP, acc[i / COUNT][i % COUNT]);
  }

  // Groups that are missing repeat the last one.
  template <int LINES>
  static void scores_of(const RowElement<T>* q, int64_t dim, const Block<T>& block, float* scores) {
    constexpr int COUNT = LINES == 1 ? 4 : LINES == 2 ? 2 : 1;  // as many sums as fit the registers
    for (int g = 0; g < GROUPS; g += COUNT) scores_of_groups<LINES, COUNT>(q, dim, block, g, scores);
  }

  template <int LINES>
  static void add_values(const RowElement<T>* weights, const Block<T>& block, int64_t dim, float* out) {
    const float* steps = block.value_steps;
    for (int64_t d = 0; d < dim; d += ROTATED_BLOCK, steps += 2 * BLOCK) {
      F16 lower[LINES], upper[LINES];
#pragma GCC unroll 4
      for (int l = 0; l < LINES; l++) lower[l] = load(out + l * dim + d), upper[l] = load(out + l * dim + d + LANES);
      for (int g = 0; g < block.groups(); g++) {
        prefetch_block(block.next_value_bytes[g], d);
        for (int p = 0; p < GROUP; p += 2) {
          const int at = g * GROUP + p;
          F16 x[2], y[2];
#pragma GCC unroll 2
          for (int i = 0; i < 2; i++)
            block.value_codes[g].read_value(p + i, dim, d, steps[at + i], steps[BLOCK + at + i], x[i], y[i]);
#pragma GCC unroll 4
          for (int l = 0; l < LINES; l++) {
            F16 a, b;
            same_two(weights + l * BLOCK + at, a, b);
            lower[l] = fma(b, x[1], fma(a, x[0], lower[l]));
            upper[l] = fma(b, y[1], fma(a, y[0], upper[l]));
          }
        }
      }
#pragma GCC unroll 4
      for (int l = 0; l < LINES; l++) store(out + l * dim + d, lower[l], upper[l]);
    }
  }

  void scores(Scratch<T>& mine, int64_t at, int64_t lines, int64_t dim, const Block<T>& b, float* s) {
    const RowElement<T>* q = mine.q.data() + at * dim;
    each_tile_of<4>(lines, [&](int64_t l, auto count) { scores_of<count>(q + l * dim, dim, b, s + l * BLOCK); });
  }
  void values(const RowElement<T>* w, const float*, int64_t lines, const Block<T>& b, int64_t dim, float* o) {
    each_tile_of<4>(lines, [&](int64_t l, auto count) { add_values<count>(w + l * BLOCK, b, dim, o + l * dim); });
  }
};

// Sets a block's codes, or converts them to T, as the kernel needs.
template <class Kind, class T>
void find_codes(const AttentionArgs& args, const GroupOffsets& offsets, int64_t kv_head, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    block.key_codes[g] = CodeGroup::of(args.k, offsets.page[g], offsets.at[g], kv_head);
    block.value_codes[g] = CodeGroup::of(args.v, offsets.page[g], offsets.at[g], kv_head);
  }
  block.value_steps = value_steps(args, block.value_codes, block.count);
  if constexpr (!std::is_same_v<Kind, CodeLines<T>>) {
    const int64_t dim = args.k.dim;
    static thread_local ScratchBuffer<T> keys, values;
    keys.fit(BLOCK * dim), values.fit(BLOCK * dim);
    for (int g = 0; g < GROUPS; g++) {
      T *k = keys.data() + g * GROUP * dim, *v = values.data() + g * GROUP * dim;
      block.keys[g] = block.next_keys[g] = k;
      block.values[g] = block.next_values[g] = v;
      // AMX tiles read all of it, so all of it must be finite; zero steps make zeros of missing values
      widen_keys(block.key_codes[g], dim, block.next_key_bytes[g], k);
      widen_values(block.value_codes[g], dim, block.value_steps + g * GROUP, block.next_value_bytes[g], v);
    }
  }
}

}  // namespace quire
