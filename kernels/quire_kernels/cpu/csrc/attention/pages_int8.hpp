// Int8 pages: half the memory of bfloat16, with a scale for each token and head.
//
// 16 positions of a head take 16 · dim bytes, in the order in which `attention/pages.hpp` has elements of T, and
// then 16 scales (float32). They are converted to T when they are read, which is exact; their scales are applied to
// the scores and the weights.
#pragma once
#include "attention/pool.hpp"
#include "vec_int8.hpp"

namespace quire {

// Whether attention can multiply the bytes themselves. Then four neighbors are contiguous, instead of as many as a
// unit of T has.
#if defined(__AVX512VNNI__)
template <class T>
constexpr bool MULTIPLIES_BYTES = sizeof(T) == 2;
#else
template <class T>
constexpr bool MULTIPLIES_BYTES = false;
#endif

template <class T>
constexpr int NEIGHBOURS = MULTIPLIES_BYTES<T> ? 4 : PER_UNIT<T>;

struct ByteGroup {
  int8_t* bytes;
  float* scales;

  static ByteGroup of(const Pool& pool, int64_t page, int64_t group, int64_t head) {
    int8_t* at = reinterpret_cast<int8_t*>(pool.quantized_group(page, group, head));
    return {at, reinterpret_cast<float*>(at + GROUP * pool.dim)};
  }
};

// Element d is written to `bytes + step_of(d)`.
template <class T, class StepOf>
inline void write_bytes(const ByteGroup& group, int64_t offset, const T* x, int64_t dim, StepOf&& step_of) {
  const QuantScale step = quant_scale_of(x, dim);
  group.scales[offset] = step.scale;
  lanes(dim, [&](int64_t first, int n) {
    int8_t some[LANES];
    store_bytes(some, get(x + first, n) * set1(step.inverse));
    for (int i = 0; i < n; i++) group.bytes[step_of(first + i)] = some[i];
  });
}
template <class T>
inline void write_key(const ByteGroup& group, int64_t offset, const T* k, int64_t dim) {
  constexpr int P = NEIGHBOURS<T>;
  write_bytes(group, offset, k, dim, [&](int64_t d) { return (d / P * GROUP + offset) * P + d % P; });
}
template <class T>
inline void write_value(const ByteGroup& group, int64_t offset, const T* v, int64_t dim) {
  constexpr int P = NEIGHBOURS<T>;
  write_bytes(group, offset, v, dim, [&](int64_t d) { return (offset / P * dim + d) * P + offset % P; });
}

// Converts the keys of a group, [dim / P][16][P]. next: bytes of the same size that are read next, to be
// prefetched.
template <class T>
inline void read_keys(const ByteGroup& group, int64_t dim, const int8_t* next, T* to) {
  if constexpr (MULTIPLIES_BYTES<T>) {
    for (int64_t i = 0; i < dim * GROUP; i += 4 * LANES) {
      prefetch_l2(next + i);
      widen_fours(group.bytes + i, to + i, to + i + 2 * LANES);
    }
    return prefetch_l2(next + dim * GROUP);
  }
  for (int64_t i = 0; i < dim * GROUP; i += 2 * LANES) {
    prefetch_l2(next + i);
    store(to + i, load_bytes(group.bytes + i), load_bytes(group.bytes + i + LANES));
  }
  prefetch_l2(next + dim * GROUP);  // scales
}

// Converts the values of a group, [16 / P][stride][P]; zero beyond `dim`.
template <class T>
inline void read_values(const ByteGroup& group, int64_t dim, int64_t stride, const int8_t* next, T* to) {
  if constexpr (MULTIPLIES_BYTES<T>) {
    for (int u = 0; u < GROUP / 4; u++) {
      const int8_t* from = group.bytes + u * dim * 4;
      T *row = to + 2 * u * stride * 2, *below = row + stride * 2;
      for (int64_t d = 0; d < dim; d += LANES) {
        prefetch_l2(next + (u * dim + d) * 4);
        widen_fours(from + d * 4, row + d * 2, below + d * 2);
      }
      for (T* r : {row, below}) std::memset(static_cast<void*>(r + dim * 2), 0, (stride - dim) * 2 * sizeof(T));
    }
    return prefetch_l2(next + dim * GROUP);
  }
  constexpr int P = PER_UNIT<T>;
  for (int u = 0; u < GROUP / P; u++) {
    const int8_t* from = group.bytes + u * dim * P;
    T* row = to + u * stride * P;
    int64_t i = 0;
    for (; i + 2 * LANES <= dim * P; i += 2 * LANES) {
      prefetch_l2(next + u * dim * P + i);
      store(row + i, load_bytes(from + i), load_bytes(from + i + LANES));
    }
    for (; i < dim * P; i += LANES)
      set(row + i, load_bytes(from + i), static_cast<int>(std::min<int64_t>(LANES, dim * P - i)));
    if (stride > dim) std::memset(static_cast<void*>(row + dim * P), 0, (stride - dim) * P * sizeof(T));
  }
  prefetch_l2(next + dim * GROUP);
}

}  // namespace quire
