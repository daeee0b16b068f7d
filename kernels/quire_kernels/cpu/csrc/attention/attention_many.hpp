// Vector kernel of attention for tiles of many lines. Sums are those of `VectorLines`, in the same order.
#pragma once
#include "attention/attention_vector.hpp"
#include "gemm/gemm_vector.hpp"
#include "sampling/softmax.hpp"

namespace quire {

#if defined(__AVX512F__)

// A band is LINES lines of one head whose scores of a block stay in registers until they are weights. The values of a
// band are added after the scores of the next one: these need not wait for the weights.
template <class T>
struct ManyLines {
  static constexpr int P = PER_UNIT<T>, UNIT_BYTES = 4, VECTOR_BYTES = 64;
  static constexpr int LINES = 6;  // 24 sums, four vectors of keys or values, one of q or weights: 29 of 32 registers
  static constexpr bool COPIES = false, BYTES = false, PREFETCHES_BY_HEAD = true, HAS_HEIGHT = false, BANDS = true;

  // q [LINES, dim] · keys -> weights [LINES, BLOCK], if every score of the block is visible (`whole`), scores need
  // no transformation, and none raises a maximum; returns whether that is so. Otherwise -> scores [LINES, BLOCK].
  // ahead: memory of the size of a group of keys, to be prefetched.
  [[gnu::noinline]] static bool weigh(const T* q, int64_t dim, const Block<T>& block, const void* ahead, bool whole,
                                      const ScoreTransform& soft, const float* tops, float* totals, T* weights, float* scores) {
    F16 acc[LINES][GROUPS];
#pragma GCC unroll 32
    for (int i = 0; i < LINES * GROUPS; i++) acc[i / GROUPS][i % GROUPS] = zero();
    RowPositions<LINES> rows(q, dim * static_cast<int64_t>(sizeof(T)));
    const char *k0 = reinterpret_cast<const char*>(block.keys[0]), *k1 = reinterpret_cast<const char*>(block.keys[1]);
    const char *k2 = reinterpret_cast<const char*>(block.keys[2]), *k3 = reinterpret_cast<const char*>(block.keys[3]);
    const char* next = static_cast<const char*>(ahead);
    const int64_t end = dim / P * VECTOR_BYTES;
    for (int64_t at = 0; at < end; at += VECTOR_BYTES) {
      asm("" : "+r"(at));  // or compilers keep the sums of all addresses
      prefetch_l1(next + at);
      const U16 k[GROUPS] = {load_units(k0 + at), load_units(k1 + at), load_units(k2 + at), load_units(k3 + at)};
#pragma GCC unroll 8
      for (int l = 0; l < LINES; l++) {
        const U16 a = same_unit(rows[l]);
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) acc[l][g] = dot(acc[l][g], a, k[g], T{});
      }
      rows.advance(UNIT_BYTES);
    }
    if (whole) {
      bool raises = false;
#pragma GCC unroll 8
      for (int l = 0; l < LINES; l++)
        raises |= any_above(max(max(acc[l][0], acc[l][1]), max(acc[l][2], acc[l][3])), tops[l] + soft.slack);
      if (!raises) {
        const F16 unit = set1(soft.unit);
#pragma GCC unroll 8
        for (int l = 0; l < LINES; l++) {
          const F16 zero_at = set1(-tops[l] * soft.unit);
          F16 total = load(totals + l * LANES);
#pragma GCC unroll 2
          for (int g = 0; g < GROUPS; g += 2) {
            const F16 w0 = exp2<T>(fma(acc[l][g], unit, zero_at)), w1 = exp2<T>(fma(acc[l][g + 1], unit, zero_at));
            total = total + (w0 + w1);
            store(weights + l * BLOCK + g * GROUP, w0, w1);
          }
          store(totals + l * LANES, total);
        }
        return true;
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < LINES * GROUPS; i++) store(scores + i / GROUPS * BLOCK + i % GROUPS * GROUP, acc[i / GROUPS][i % GROUPS]);
    return false;
  }

  // q [LINES, dim] · the keys of one group -> scores [LINES, BLOCK]
  [[gnu::noinline]] static void score_group(const T* q, int64_t dim, const T* keys, float* scores) {
    F16 acc[LINES];
#pragma GCC unroll 8
    for (F16& sum : acc) sum = zero();
    RowPositions<LINES> rows(q, dim * static_cast<int64_t>(sizeof(T)));
    for (int64_t u = 0; u < dim / P; u++) {
      const U16 k = load_units(keys + u * GROUP * P);
#pragma GCC unroll 8
      for (int l = 0; l < LINES; l++) acc[l] = dot(acc[l], same_unit(rows[l]), k, T{});
      rows.advance(UNIT_BYTES);
    }
#pragma GCC unroll 8
    for (int l = 0; l < LINES; l++) store(scores + l * BLOCK, acc[l]);
  }

  // out [LINES, stride] += weights [LINES, BLOCK] · values of the first `groups` groups, for VECTORS vectors of a line
  template <int VECTORS>
  [[gnu::noinline]] static void add_vectors(const T* weights, const Block<T>& block, int groups, const void* ahead,
                                            int64_t stride, int64_t d, float* out) {
    F16 acc[LINES][VECTORS];
    RowPositions<LINES> sums(out + d, stride * static_cast<int64_t>(sizeof(float)));
#pragma GCC unroll 32
    for (int i = 0; i < LINES * VECTORS; i++)
      acc[i / VECTORS][i % VECTORS] = load(reinterpret_cast<const float*>(sums[i / VECTORS]) + i % VECTORS * LANES);
    const char* next = static_cast<const char*>(ahead) + d / LANES * GROUP / P * VECTOR_BYTES;
    for (int g = 0; g < groups; g++) {
      const char* row = reinterpret_cast<const char*>(block.values[g]) + d * UNIT_BYTES;
      const T* w = weights + g * GROUP;
#pragma GCC unroll 2
      for (int u = 0; u < GROUP / P; u++, row += stride * UNIT_BYTES, w += P, next += VECTOR_BYTES) {
        asm("" : "+r"(row), "+r"(w), "+r"(next));
        prefetch_l1(next);
        U16 v[VECTORS];
#pragma GCC unroll 4
        for (int i = 0; i < VECTORS; i++) v[i] = load_units(row + i * VECTOR_BYTES);
#pragma GCC unroll 8
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(w + l * BLOCK);
#pragma GCC unroll 4
          for (int i = 0; i < VECTORS; i++) acc[l][i] = dot(acc[l][i], a, v[i], T{});
        }
      }
    }
#pragma GCC unroll 32
    for (int i = 0; i < LINES * VECTORS; i++)
      store(const_cast<float*>(reinterpret_cast<const float*>(sums[i / VECTORS])) + i % VECTORS * LANES, acc[i / VECTORS][i % VECTORS]);
  }

  static void add_values(const T* weights, const Block<T>& block, int groups, const void* ahead, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) add_vectors<4>(weights, block, groups, ahead, stride, d, out);
    for (; d < stride; d += LANES) add_vectors<1>(weights, block, groups, ahead, stride, d, out);
  }
};

#endif

}  // namespace quire
