// Layout of keys and values in a page, and writing to it.
//
// A page holds groups of 16 positions. In a group each head's keys are [unit][16 positions] (a unit is four bytes
// of neighboring dimensions), its values [position unit][dimension] (four bytes of neighboring positions). So a
// vector of scores, and a vector of output, is computed from loads of whole vectors, and both layouts suit AMX
// tiles. A page [page_size, heads, dim] of the pool is page_size / 16 groups of [heads][16 · dim]; its size is
// unchanged.
#pragma once
#include "attention/pages_int4.hpp"
#include "attention/pages_int8.hpp"

namespace quire {

// `dim` must be a multiple of the dimensions in a unit.
template <class T>
inline void write_key(T* group, int64_t offset, const T* k, int64_t dim) {
  constexpr int P = PER_UNIT<T>;
  for (int64_t u = 0; u < dim / P; u++) std::memcpy(group + (u * GROUP + offset) * P, k + u * P, 4);
}
template <class T>
inline void write_value(T* group, int64_t offset, const T* v, int64_t dim) {
  constexpr int P = PER_UNIT<T>;
  T* row = group + offset / P * dim * P + offset % P;
  for (int64_t d = 0; d < dim; d++) row[d * P] = v[d];
}

// Cosines and sines, float [rows, pairs]; interleaved: dimensions 2i and 2i+1 are a pair, not i and i + pairs.
struct Angles {
  const float *cos, *sin;
  const int64_t* rows;  // row of each token; null: token t has row t
  int64_t pairs;
  bool interleaved;
};

template <class T>
inline void rotate(T* x, const float* cos, const float* sin, const Angles& angles) {
  if (angles.interleaved) {
    for (int64_t i = 0; i < angles.pairs; i++) {
      const float a = to_float(x[2 * i]), b = to_float(x[2 * i + 1]);
      put(x + 2 * i, a * cos[i] - b * sin[i]);
      put(x + 2 * i + 1, b * cos[i] + a * sin[i]);
    }
    return;
  }
  lanes(angles.pairs, [&](int64_t i, int n) {
    const F16 a = get(x + i, n), b = get(x + angles.pairs + i, n), c = get(cos + i, n), s = get(sin + i, n);
    set(x + i, a * c - b * s, n);
    set(x + angles.pairs + i, fma(b, c, a * s), n);
  });
}

// Rotates q and k in offset.
template <class T>
void rotate_heads(Worker& worker, int64_t tokens, Rows<T> q, Rows<T> k, const Angles& angles) {
  each_row_block(worker, tokens, (q.parts + k.parts) * q.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++) {
      const int64_t at = (angles.rows ? angles.rows[t] : t) * angles.pairs;
      for (int64_t h = 0; h < q.parts; h++) rotate(q.row(t, h), angles.cos + at, angles.sin + at, angles);
      for (int64_t h = 0; h < k.parts; h++) rotate(k.row(t, h), angles.cos + at, angles.sin + at, angles);
    }
  });
}

// Prefetches the memory that a token's key and value of a head will be written to: a cache line for each unit of the key, and
// a row of values. To the second level, which can wait for more lines at once than the first.
template <class T>
inline void prefetch_token(const Pool& k_pool, const Pool& v_pool, int64_t slot, int64_t head) {
  const int64_t page = slot / k_pool.page_size, offset = slot % k_pool.page_size, group = offset / GROUP;
  const char* key = reinterpret_cast<const char*>(k_pool.group<T>(page, group, head));
  for (int64_t u = 0; u < k_pool.dim / PER_UNIT<T>; u++) prefetch_l2(key + u * GROUP * 4);
  const int64_t row = v_pool.dim * 4;
  const char* value = reinterpret_cast<const char*>(v_pool.group<T>(page, group, head)) + offset % GROUP / PER_UNIT<T> * row;
  for (int64_t at = 0; at < row; at += 64) prefetch_l2(value + at);
}

// Stores a token's key and value of head `head`; where values are not stored, v_pool.dim is 0.
template <class T>
inline void store_token(const Pool& k_pool, const Pool& v_pool, int64_t page, int64_t offset, int64_t head, const T* k,
                        const T* v) {
  const int64_t group = offset / GROUP, at = offset % GROUP, dim = k_pool.dim;
  const auto write = [&](const auto& keys, const auto& values) {
    write_key(keys, at, k, dim);
    if (v_pool.dim) write_value(values, at, v, v_pool.dim);
  };
  if (k_pool.stored == Stored::int4)
    write(CodeGroup::of(k_pool, page, group, head), CodeGroup::of(v_pool, page, group, head));
  else if (k_pool.stored == Stored::int8)
    write(ByteGroup::of(k_pool, page, group, head), ByteGroup::of(v_pool, page, group, head));
  else
    write(k_pool.group<T>(page, group, head), v_pool.group<T>(page, group, head));
}

constexpr int64_t TOKENS_AHEAD = 2;  // whose slots are prefetched

// Rotates q and k in offset (without cosines: not at all) and stores k and v in their slots. Neighbors in a page
// share cache lines, so a thread processes many tokens at once.
template <class T>
void rotary_write(Worker& worker, int64_t tokens, Rows<T> q, Rows<T> k, Rows<T> v, const Angles& angles,
                  const Pool& k_pool, const Pool& v_pool, const int64_t* slots) {
  const int64_t step = tokens / (4 * worker.size) + 1;
  worker.each((tokens + step - 1) / step, [&](int64_t i) {
    for (int64_t t = i * step; t < std::min(tokens, (i + 1) * step); t++) {
      const int64_t at = (angles.rows ? angles.rows[t] : t) * angles.pairs;
      const float *cos = angles.cos + at, *sin = angles.sin + at;
      const int64_t page = slots[t] / k_pool.page_size, offset = slots[t] % k_pool.page_size;
      const int64_t later = t + TOKENS_AHEAD;
      if (k_pool.stored == Stored::plain && later < tokens)
        for (int64_t h = 0; h < k.parts; h++) prefetch_token<T>(k_pool, v_pool, slots[later], h);
      if (angles.cos)
        for (int64_t h = 0; h < q.parts; h++) rotate(q.row(t, h), cos, sin, angles);
      for (int64_t h = 0; h < k.parts; h++) {
        if (angles.cos) rotate(k.row(t, h), cos, sin, angles);
        store_token(k_pool, v_pool, page, offset, h, k.row(t, h), v.row(t, h));
      }
    }
  });
}

}  // namespace quire
