// The memory of a KV cache's pages.
#pragma once
#include "rowwise.hpp"

namespace quire {

constexpr int GROUP = 16;

// How keys and values are stored; the numbers are those of `BITS` in `quantized_pages.py`.
enum class Stored : int32_t {
  plain = 0,  // as T, with the layout of `attention/pages.hpp`
  int4 = 4,   // with the layout of `attention/pages_int4.hpp`
  int8 = 8,   // with the layout of `attention/pages_int8.hpp`
};

struct Pool {
  void* base;
  int64_t page_size, heads, dim;
  Stored stored;
  int64_t shared = 1;  // number of neighboring heads that are one in memory

  int64_t group_number(int64_t page, int64_t group_in_page, int64_t head) const {
    if (shared > 1) return (page * (page_size / GROUP) + group_in_page) * (heads / shared) + head / shared;
    return (page * (page_size / GROUP) + group_in_page) * heads + head;
  }
  template <class T>
  T* group(int64_t page, int64_t group_in_page, int64_t head) const {
    return static_cast<T*>(base) + group_number(page, group_in_page, head) * GROUP * dim;
  }
  // The bytes of a group in int8 or int4.
  uint8_t* quantized_group(int64_t page, int64_t group_in_page, int64_t head) const {
    const int64_t bytes = stored == Stored::int8 ? GROUP * (dim + 4) : GROUP * dim * 5 / 8;
    return static_cast<uint8_t*>(base) + group_number(page, group_in_page, head) * bytes;
  }
};

}  // namespace quire
