// Int4 pages: two codes a byte; 32 neighboring dimensions share a scale and an offset.
//
// A block of 32 dimensions is rotated by the Hadamard matrix of order 32 / √32, which spreads outliers over the block
// (as QuaRot does with whole heads, Ashkboos et al. 2024). An element of the rotated block is scale · code + offset,
// with scale and offset in float16. Queries are rotated likewise, and outputs back.
//
// 16 positions of a head take 10 · dim bytes: codes; scales, float16 [dim / 32][16 positions]; offsets likewise. Codes
// of keys are [dim / 2][16 positions], a byte for neighboring dimensions; those of values [16 positions][dim / 32][16],
// a byte for dimensions i and i + 16 of a block.
#pragma once
#include "attention/pool.hpp"
#include "vec_int4.hpp"

namespace quire {

constexpr int ROTATED_BLOCK = 32;  // dimensions

struct CodeGroup {
  uint8_t* codes;
  uint16_t *scales, *offsets;  // float16

  static CodeGroup of(const Pool& pool, int64_t page, int64_t group, int64_t head) {
    uint8_t* at = pool.quantized_group(page, group, head);
    uint16_t* scales = reinterpret_cast<uint16_t*>(at + GROUP / 2 * pool.dim);
    return {at, scales, scales + pool.dim / ROTATED_BLOCK * GROUP};
  }

  // Scales and offsets of dimensions d … d+31 at all positions.
  void steps(int64_t d, F16& scale, F16& offset) const {
    const int64_t at = d / ROTATED_BLOCK * GROUP;
    scale = load_halves(scales + at), offset = load_halves(offsets + at);
  }
  // Dimensions d and d + 1 of 16 keys.
  void read_keys(int64_t d, F16 scale, F16 offset, F16& even, F16& odd) const {
    load_codes(codes + d / 2 * GROUP, even, odd);
    even = fma(even, scale, offset), odd = fma(odd, scale, offset);
  }
  // Dimensions d … d+31 of the value at `position`.
  void read_value(int64_t position, int64_t dim, int64_t d, float scale, float offset, F16& lower, F16& upper) const {
    load_codes(codes + (position * dim + d) / 2, lower, upper);
    lower = fma(lower, set1(scale), set1(offset)), upper = fma(upper, set1(scale), set1(offset));
  }
};

// x [32] = H x / √32, where H is the Hadamard matrix. H / √32 is its own inverse.
inline void rotate_block(float* x) {
  for (int half = 1; half < ROTATED_BLOCK; half *= 2)
    for (int i = 0; i < ROTATED_BLOCK; i += 2 * half)
      for (int j = i; j < i + half; j++) {
        const float a = x[j], b = x[j + half];
        x[j] = a + b, x[j + half] = a - b;
      }
  for (int i = 0; i < ROTATED_BLOCK; i++) x[i] *= 0.17677669529663687f;
}

// Rotates x [dim] block by block.
template <class T, class Y>
inline void rotate_blocks(const T* x, int64_t dim, Y* to) {
  for (int64_t d = 0; d < dim; d += ROTATED_BLOCK) {
    alignas(64) float block[ROTATED_BLOCK];
    store(block, load(x + d), load(x + d + LANES));
    rotate_block(block);
    store(to + d, load(block), load(block + LANES));
  }
}

// Codes of a block x [32]. scale is NaN if an element is not finite or exceeds float16.
template <class T>
inline void quantize_block(const T* x, int8_t* codes, uint16_t& scale, uint16_t& offset) {
  constexpr uint16_t INFINITE = 0x7c00, NOT_A_NUMBER = 0x7e00;
  alignas(64) float block[ROTATED_BLOCK];
  store(block, load(x), load(x + LANES));
  rotate_block(block);
  const F16 a = load(block), b = load(block + LANES);
  const float most = largest(max(a, b)), least = -largest(zero() - min(a, b));
  const bool finite = sum(fma(a, zero(), b * zero())) == 0.0f;  // 0 · ∞ and 0 · NaN are NaN
  scale = to_half((most - least) / 15), offset = to_half(least);
  if (!finite || (scale & INFINITE) == INFINITE || (offset & INFINITE) == INFINITE) scale = offset = NOT_A_NUMBER;
  const float step = from_half(scale);
  const F16 inverse = set1(step > 0 ? 1.0f / step : 0.0f), start = set1(from_half(offset));
  const auto code = [&](F16 v) { return min(max(round((v - start) * inverse), zero()), set1(15.0f)); };
  store_bytes(codes, code(a)), store_bytes(codes + LANES, code(b));
}

template <class T>
inline void write_key(const CodeGroup& group, int64_t offset, const T* k, int64_t dim) {
  for (int64_t d = 0; d < dim; d += ROTATED_BLOCK) {
    int8_t codes[ROTATED_BLOCK];
    const int64_t at = d / ROTATED_BLOCK * GROUP + offset;
    quantize_block(k + d, codes, group.scales[at], group.offsets[at]);
    uint8_t* to = group.codes + d / 2 * GROUP + offset;
    for (int i = 0; i < ROTATED_BLOCK; i += 2) to[i / 2 * GROUP] = static_cast<uint8_t>(codes[i] | codes[i + 1] << 4);
  }
}
template <class T>
inline void write_value(const CodeGroup& group, int64_t offset, const T* v, int64_t dim) {
  for (int64_t d = 0; d < dim; d += ROTATED_BLOCK) {
    int8_t codes[ROTATED_BLOCK];
    const int64_t at = d / ROTATED_BLOCK * GROUP + offset;
    quantize_block(v + d, codes, group.scales[at], group.offsets[at]);
    uint8_t* to = group.codes + (offset * dim + d) / 2;
    for (int i = 0; i < LANES; i++) to[i] = static_cast<uint8_t>(codes[i] | codes[i + LANES] << 4);
  }
}

// Prefetches the part of a group's memory that belongs to one block of dimensions.
inline void prefetch_block(const int8_t* group, int64_t d) {
  constexpr int64_t BYTES = ROTATED_BLOCK * GROUP * 5 / 8;
  for (int64_t i = 0; i < BYTES; i += 64) prefetch_l2(group + d / ROTATED_BLOCK * BYTES + i);
}

}  // namespace quire
