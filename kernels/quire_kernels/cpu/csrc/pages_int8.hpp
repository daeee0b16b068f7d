// Keys and values of a page as bytes: half the memory of bfloat16, and a scale for each token and head.
//
// 16 positions of a head take 16 · dim bytes, in the order in which `pages.hpp` has elements of T, and then 16 scales
// (float32). They become elements of T again when they are read: what attention computes with is no other than before.
#pragma once
#include "rowwise.hpp"
#include "vec_int8.hpp"

namespace quire {

constexpr int64_t SCALE_BYTES = 4;

struct ByteGroup {
  int8_t* bytes;
  float* scales;

  static ByteGroup of(const Pool& pool, int64_t page, int64_t group, int64_t head) {
    const int64_t number = (page * (pool.page_size / GROUP) + group) * pool.heads + head;
    int8_t* at = static_cast<int8_t*>(pool.base) + number * GROUP * (pool.dim + SCALE_BYTES);
    return {at, reinterpret_cast<float*>(at + GROUP * pool.dim)};
  }
};

// Element d of what is written goes to `bytes + step_of(d)`.
template <class T, class StepOf>
inline void write_bytes(const ByteGroup& group, int64_t place, const T* x, int64_t dim, StepOf&& step_of) {
  const Steps step = steps_of(x, dim);
  group.scales[place] = step.scale;
  lanes(dim, [&](int64_t first, int n) {
    int8_t some[LANES];
    store_bytes(some, get(x + first, n) * set1(step.inverse));
    for (int i = 0; i < n; i++) group.bytes[step_of(first + i)] = some[i];
  });
}
template <class T>
inline void write_key(const ByteGroup& group, int64_t place, const T* k, int64_t dim) {
  constexpr int P = PER_UNIT<T>;
  write_bytes(group, place, k, dim, [&](int64_t d) { return (d / P * GROUP + place) * P + d % P; });
}
template <class T>
inline void write_value(const ByteGroup& group, int64_t place, const T* v, int64_t dim) {
  constexpr int P = PER_UNIT<T>;
  write_bytes(group, place, v, dim, [&](int64_t d) { return (place / P * dim + d) * P + place % P; });
}

// Keys of a group, [dim / P][16][P].
template <class T>
inline void read_keys(const ByteGroup& group, int64_t dim, T* to) {
  constexpr int P = PER_UNIT<T>;
  F16 scale[P];
  for (int p = 0; p < P; p++) {
    alignas(64) float spread[LANES];
    for (int l = 0; l < LANES; l++) spread[l] = group.scales[(p * LANES + l) / P];
    scale[p] = load(spread);
  }
  for (int64_t i = 0; i < dim * GROUP; i += P * LANES)
#pragma GCC unroll 2
    for (int p = 0; p < P; p++) store(to + i + p * LANES, load_bytes(group.bytes + i + p * LANES) * scale[p]);
}

// Values of a group, [16 / P][stride][P]; zero beyond `there` positions, whatever their slots hold, and beyond `dim`.
template <class T>
inline void read_values(const ByteGroup& group, int there, int64_t dim, int64_t stride, T* to) {
  constexpr int P = PER_UNIT<T>;
  for (int u = 0; u < GROUP / P; u++) {
    alignas(64) float spread[LANES];
    for (int l = 0; l < LANES; l++) spread[l] = u * P + l % P < there ? group.scales[u * P + l % P] : 0.0f;
    const F16 scale = load(spread);
    const int8_t* from = group.bytes + u * dim * P;
    T* row = to + u * stride * P;
    lanes(dim * P, [&](int64_t i, int n) { set(row + i, load_bytes(from + i) * scale, n); });
    if (stride > dim) std::memset(static_cast<void*>(row + dim * P), 0, (stride - dim) * P * sizeof(T));
  }
}

}  // namespace quire
