// Attention to int8 pages. Where the CPU multiplies bytes, tiles with few bfloat16 lines convert queries and
// weights to 16-bit integers, two bytes each: sums are exact. Otherwise bytes are converted to elements of T when
// they are read.
#pragma once
#include "attention/attention_block.hpp"

namespace quire {

// Converts a group's keys and values of one head, without their scales, to elements of T in memory of this thread;
// AMX tiles read all of it, so all of it must be finite.
template <class T>
void widen_group(const AttentionArgs& args, const ByteGroup& keys, const ByteGroup& values, int g, Block<T>& block) {
  const int64_t dim = args.k.dim, stride = padded(dim, LANES);
  static thread_local ScratchBuffer<T> all_keys, all_values;
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

// Sets a block's bytes, or converts them to T, as the kernel needs.
template <class Kind, class T>
void find_bytes(const AttentionArgs& args, const GroupOffsets& offsets, int64_t kv_head, Block<T>& block) {
  F16 nothing = zero();
  for (int g = 0; g < GROUPS; g++) {
    const ByteGroup keys = ByteGroup::of(args.k, offsets.page[g], offsets.at[g], kv_head);
    const ByteGroup values = ByteGroup::of(args.v, offsets.page[g], offsets.at[g], kv_head);
    const int present = std::clamp(block.count - g * GROUP, 0, GROUP);
    store(block.key_scales + g * GROUP, load(keys.scales, present));
    store(block.value_scales + g * GROUP, load(values.scales, present));
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

constexpr float MAX_INT16 = 127 * 256 + 127;  // the largest 16-bit value whose high byte is still signed

// Converts x [dim] to 16-bit integers: bytes [high, low][dim]. scale is NaN if an element of x is not finite.
inline Halved halve(const RowElement<bf16>* x, int64_t dim, int8_t* bytes) {
  const QuantScale coarse = quant_scale_of(x, dim);  // scale for a range of 127
  const F16 inverse = set1(coarse.inverse * (MAX_INT16 / 127));
  Halved halved{coarse.scale * (127 / MAX_INT16), 0, 0};
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

// Converts the non-negative weights of a line to 16-bit integers: bytes [high, low][BLOCK]. Returns their scale.
inline float halve_weights(const F16* w, bool finite, uint8_t* bytes) {
  constexpr float MAX = 255 * 256 + 255;
  const float most = largest(max(max(w[0], w[1]), max(w[2], w[3])));
  const F16 inverse = set1(most < MIN_ABS ? 0.0f : MAX / most);
  for (int g = 0; g < GROUPS; g++) store_halves(w[g] * inverse, 0, bytes + g * GROUP, bytes + BLOCK + g * GROUP);
  return finite ? most / MAX : NAN;
}

// 256 · high + low
inline F16 whole(F16 high, F16 low) { return fma(high, set1(256.0f), low); }

// Kernel for few lines on int8 pages: four lines or fewer at a time.
struct ByteLines {
  static constexpr bool COPIES = false, BYTES = true, PREFETCHES_BY_HEAD = false, HAS_HEIGHT = false, BANDS = false;
  static constexpr int64_t WEIGHTS = BLOCK * sizeof(RowElement<bf16>);  // bytes from a line's weights to the next ones

  // Two groups at a time; missing ones repeat the last. Keys become unsigned by adding 128, which adds 128 times
  // the sum of the query's bytes.
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
        prefetch_l2(next);
        prefetch_l2(next + 64);
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
      prefetch_l2(block.next_key_bytes[g] + units * 64);  // scales
      prefetch_l2(block.next_key_bytes[g + 1] + units * 64);
#pragma GCC unroll 8
      for (int i = 0; i < LINES * 2; i++)
        store(scores + i / 2 * BLOCK + (g + i % 2) * GROUP,
              whole(to_floats(high[i / 2][i % 2]), to_floats(low[i / 2][i % 2])) * set1(halved[i / 2].scale));
    }
  }

  // For VECTORS vectors of every line. Values beyond `dim` are read but not used.
  template <int LINES, int VECTORS>
  static void add_vectors(const uint8_t* weights, const float* steps, const Block<bf16>& block, int64_t dim,
                        int64_t stride, int64_t d, float* out) {
    S16 high[LINES][VECTORS], low[LINES][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < LINES * VECTORS; i++) high[i / VECTORS][i % VECTORS] = low[i / VECTORS][i % VECTORS] = no_sums();
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / 4; u++) {
        const int64_t at = (u * dim + d) * 4;
        U16 v[VECTORS];
#pragma GCC unroll 2
        for (int i = 0; i < VECTORS; i++) {
          v[i] = load_units(block.value_bytes[g] + at + i * 64);
          prefetch_l2(block.next_value_bytes[g] + at + i * 64);
        }
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const uint8_t* w = weights + l * WEIGHTS + g * GROUP + u * 4;
          const U16 a = same_unit(w), b = same_unit(w + BLOCK);
#pragma GCC unroll 2
          for (int i = 0; i < VECTORS; i++) {
            high[l][i] = dot_bytes(high[l][i], a, v[i]);
            low[l][i] = dot_bytes(low[l][i], b, v[i]);
          }
        }
      }
#pragma GCC unroll 8
    for (int i = 0; i < LINES * VECTORS; i++) {
      float* to = out + i / VECTORS * stride + d + i % VECTORS * LANES;
      const F16 sums = whole(to_floats(high[i / VECTORS][i % VECTORS]), to_floats(low[i / VECTORS][i % VECTORS]));
      store(to, fma(sums, set1(steps[i / VECTORS]), load(to)));
    }
  }

  template <int LINES>
  static void add_values(const uint8_t* weights, const float* steps, const Block<bf16>& block, int64_t dim,
                         int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 2 * LANES <= stride; d += 2 * LANES) add_vectors<LINES, 2>(weights, steps, block, dim, stride, d, out);
    if (d < stride) add_vectors<LINES, 1>(weights, steps, block, dim, stride, d, out);
    for (int g = 0; g < GROUPS; g++) prefetch_l2(block.next_value_bytes[g] + GROUP * dim);  // scales
  }

  int64_t dim = 0;

  void scores(Scratch<bf16>& mine, int64_t at, int64_t lines, int64_t dim, const Block<bf16>& b, float* s) {
    this->dim = dim;
    const int8_t* q = mine.halves.data() + at * 2 * dim;
    const Halved* halved = mine.halved.data() + at;
    each_tile_of<4>(lines, [&](int64_t l, auto count) { scores_of<count>(q + l * 2 * dim, halved + l, dim, b, s + l * BLOCK); });
  }
  void values(const RowElement<bf16>* weights, const float* t, int64_t lines, const Block<bf16>& b, int64_t stride, float* o) {
    const uint8_t* w = reinterpret_cast<const uint8_t*>(weights);
    each_tile_of<4>(lines, [&](int64_t l, auto count) { add_values<count>(w + l * WEIGHTS, t + l, b, dim, stride, o + l * stride); });
  }
};

#endif

}  // namespace quire
