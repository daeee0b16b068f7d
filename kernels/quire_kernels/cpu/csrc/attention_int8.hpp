// Attention to pages that hold bytes. Where the CPU multiplies bytes, few lines in bfloat16 make their queries and
// weights whole numbers of 16 bits, two bytes each: sums are exact. Otherwise bytes become elements of T when read.
#pragma once
#include "attention_block.hpp"

namespace quire {

// Keys and values of one head, but for their scales, as elements of T in memory of this thread; tiles read the whole of
// it, so it is finite to the end.
template <class T>
void widen_group(const AttentionArgs& args, const ByteGroup& keys, const ByteGroup& values, int g, Block<T>& block) {
  const int64_t dim = args.k.dim, stride = padded(dim, LANES);
  static thread_local Room<T> all_keys, all_values;
  all_keys.fit(BLOCK * dim + LANES), all_values.fit(BLOCK * stride);  // keys are written two vectors at a time
  T *k = all_keys.data() + g * GROUP * dim, *v = all_values.data() + g * GROUP * stride;
  block.keys[g] = block.next_keys[g] = k;
  block.values[g] = block.next_values[g] = v;
  if (g >= block.groups()) {
    std::fill_n(v, GROUP * stride, T{});
    return;
  }
  read_keys(keys, dim, block.next_key_bytes[g], k);
  read_values(values, dim, stride, block.next_value_bytes[g], v);
}

// Where a block's bytes lie, or what they stand for, as this kind of lines wants it.
template <class Kind, class T>
void find_bytes(const AttentionArgs& args, const Places& places, int64_t kv_head, Block<T>& block) {
  F16 nothing = zero();
  for (int g = 0; g < GROUPS; g++) {
    const ByteGroup keys = ByteGroup::of(args.k, places.page[g], places.at[g], kv_head);
    const ByteGroup values = ByteGroup::of(args.v, places.page[g], places.at[g], kv_head);
    const int there = std::clamp(block.count - g * GROUP, 0, GROUP);
    store(block.key_scales + g * GROUP, load(keys.scales, there));
    store(block.value_scales + g * GROUP, load(values.scales, there));
    if (!Kind::BYTES) {
      widen_group(args, keys, values, g, block);
      continue;
    }
    nothing = fma(load(block.value_scales + g * GROUP), zero(), nothing);  // 0 · NaN is NaN
    block.key_bytes[g] = keys.bytes;
    block.value_bytes[g] = values.bytes;
  }
  block.finite = sum(nothing) == 0.0f;
}

#if defined(__AVX512VNNI__)

constexpr float MOST_HALVED = 127 * 256 + 127;  // whose high half is still a byte

// x [dim] as whole numbers: bytes [high, low][dim]. NaN where one of x is not finite.
inline Halved halve(const bf16* x, int64_t dim, int8_t* bytes) {
  const Steps coarse = steps_of(x, dim);  // for 127 of them
  const F16 inverse = set1(coarse.inverse * (MOST_HALVED / 127));
  Halved halved{coarse.scale * (127 / MOST_HALVED), 0, 0};
  for (int64_t i = 0; i < dim; i += LANES) {
    const int n = static_cast<int>(std::min<int64_t>(LANES, dim - i));
    int8_t high[LANES], low[LANES];
    store_halves((n == LANES ? load(x + i) : load(x + i, n)) * inverse, 128, high, low);
    for (int j = 0; j < n; j++) halved.high += high[j], halved.low += low[j];
    std::memcpy(bytes + i, high, n);
    std::memcpy(bytes + dim + i, low, n);
  }
  return halved;
}

// Weights of a line, none below 0, as whole numbers: bytes [high, low][BLOCK]. What one of them is worth.
inline float halve_weights(const F16* w, bool finite, uint8_t* bytes) {
  constexpr float MOST = 255 * 256 + 255;
  const float most = largest(max(max(w[0], w[1]), max(w[2], w[3])));
  const F16 inverse = set1(most < LEAST ? 0.0f : MOST / most);
  for (int g = 0; g < GROUPS; g++) store_halves(w[g] * inverse, 0, bytes + g * GROUP, bytes + BLOCK + g * GROUP);
  return finite ? most / MOST : NAN;
}

// 256 · high + low
inline F16 whole(F16 high, F16 low) { return fma(high, set1(256.0f), low); }

// Lines with vectors, four or fewer at a time.
struct ByteLines {
  static constexpr bool COPIES = false, BYTES = true, ASKS_BY_HEAD = false;

  // Two groups at a time; those that are not there repeat the last. Keys are raised to be unsigned, which adds 128
  // times the sum of the query's bytes.
  template <int LINES>
  static void scores_of(const int8_t* q, const Halved* halved, int64_t dim, const Block<bf16>& block, float* scores) {
    const int64_t units = dim / 4;
    for (int g = 0; g < GROUPS; g += 2) {
      S16 high[LINES][2], low[LINES][2];
#pragma GCC unroll 8
      for (int i = 0; i < LINES * 2; i++) {
        high[i / 2][i % 2] = same_sums(-128 * halved[i / 2].high);
        low[i / 2][i % 2] = same_sums(-128 * halved[i / 2].low);
      }
      for (int64_t u = 0; u < units; u++) {
        const U16 k[2] = {raised(load_units(block.key_bytes[g] + u * 64)),
                          raised(load_units(block.key_bytes[g + 1] + u * 64))};
        const int64_t line = 2 * u >= units ? 2 * u - units : 2 * u;
        const int8_t* next = block.next_key_bytes[g + (2 * u >= units)] + line * 64;
        ask_for(next);
        ask_for(next + 64);
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(q + l * 2 * dim + u * 4), b = same_unit(q + (l * 2 + 1) * dim + u * 4);
#pragma GCC unroll 2
          for (int i = 0; i < 2; i++) {
            high[l][i] = dot_bytes(high[l][i], k[i], a);
            low[l][i] = dot_bytes(low[l][i], k[i], b);
          }
        }
      }
      ask_for(block.next_key_bytes[g] + units * 64);  // scales
      ask_for(block.next_key_bytes[g + 1] + units * 64);
#pragma GCC unroll 8
      for (int i = 0; i < LINES * 2; i++)
        store(scores + i / 2 * BLOCK + (g + i % 2) * GROUP,
              whole(to_floats(high[i / 2][i % 2]), to_floats(low[i / 2][i % 2])) * set1(halved[i / 2].scale));
    }
  }

  // For PIECES vectors of every line. What is beyond `dim` is read, and never used.
  template <int LINES, int PIECES>
  static void add_piece(const uint8_t* weights, const float* steps, const Block<bf16>& block, int64_t dim,
                        int64_t stride, int64_t d, float* out) {
    S16 high[LINES][PIECES], low[LINES][PIECES];
#pragma GCC unroll 8
    for (int i = 0; i < LINES * PIECES; i++) high[i / PIECES][i % PIECES] = low[i / PIECES][i % PIECES] = no_sums();
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / 4; u++) {
        const int64_t at = (u * dim + d) * 4;
        U16 v[PIECES];
#pragma GCC unroll 2
        for (int i = 0; i < PIECES; i++) {
          v[i] = load_units(block.value_bytes[g] + at + i * 64);
          ask_for(block.next_value_bytes[g] + at + i * 64);
        }
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const uint8_t* w = weights + l * 2 * BLOCK + g * GROUP + u * 4;
          const U16 a = same_unit(w), b = same_unit(w + BLOCK);
#pragma GCC unroll 2
          for (int i = 0; i < PIECES; i++) {
            high[l][i] = dot_bytes(high[l][i], a, v[i]);
            low[l][i] = dot_bytes(low[l][i], b, v[i]);
          }
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < LINES * PIECES; i++) {
      float* to = out + i / PIECES * stride + d + i % PIECES * LANES;
      const F16 sums = whole(to_floats(high[i / PIECES][i % PIECES]), to_floats(low[i / PIECES][i % PIECES]));
      store(to, fma(sums, set1(steps[i / PIECES]), load(to)));
    }
  }

  template <int LINES>
  static void add_values(const uint8_t* weights, const float* steps, const Block<bf16>& block, int64_t dim,
                         int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 2 * LANES <= stride; d += 2 * LANES) add_piece<LINES, 2>(weights, steps, block, dim, stride, d, out);
    if (d < stride) add_piece<LINES, 1>(weights, steps, block, dim, stride, d, out);
    for (int g = 0; g < GROUPS; g++) ask_for(block.next_value_bytes[g] + GROUP * dim);  // scales
  }

  int64_t dim = 0;

  void scores(Scratch<bf16>& mine, int64_t at, int64_t lines, int64_t dim, const Block<bf16>& b, float* s) {
    this->dim = dim;
    const int8_t* q = mine.halves.data() + at * 2 * dim;
    const Halved* halved = mine.halved.data() + at;
    by_four(
        lines, [&](int64_t l) { scores_of<4>(q + l * 2 * dim, halved + l, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<3>(q + l * 2 * dim, halved + l, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<2>(q + l * 2 * dim, halved + l, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<1>(q + l * 2 * dim, halved + l, dim, b, s + l * BLOCK); });
  }
  void values(const bf16* weights, const float* t, int64_t lines, const Block<bf16>& b, int64_t stride, float* o) {
    const uint8_t* w = reinterpret_cast<const uint8_t*>(weights);
    by_four(
        lines, [&](int64_t l) { add_values<4>(w + l * 2 * BLOCK, t + l, b, dim, stride, o + l * stride); },
        [&](int64_t l) { add_values<3>(w + l * 2 * BLOCK, t + l, b, dim, stride, o + l * stride); },
        [&](int64_t l) { add_values<2>(w + l * 2 * BLOCK, t + l, b, dim, stride, o + l * stride); },
        [&](int64_t l) { add_values<1>(w + l * 2 * BLOCK, t + l, b, dim, stride, o + l * stride); });
  }
};

#endif

}  // namespace quire
