// A block of positions whose pages hold bytes, made what attention computes with.
#pragma once
#include "pages_int8.hpp"

namespace quire {

// Keys and values of one head go to memory of this thread; tiles read the whole of it, so it is finite to the end.
template <class T>
void find_bytes(const AttentionArgs& args, const int32_t* pages, int64_t kv_head, int64_t end, Block<T>& block) {
  const int64_t dim = args.k.dim, stride = padded(dim, LANES), size = args.k.page_size;
  static thread_local Room<T> keys, values;
  keys.fit(BLOCK * dim), values.fit(BLOCK * stride);
  block.count = static_cast<int>(std::min<int64_t>(BLOCK, end - block.begin));
  for (int g = 0; g < GROUPS; g++) {
    T *k = keys.data() + g * GROUP * dim, *v = values.data() + g * GROUP * stride;
    block.keys[g] = block.next_keys[g] = k;
    block.values[g] = block.next_values[g] = v;
    if (g >= block.groups()) {
      std::fill_n(v, GROUP * stride, T{});
      continue;
    }
    const int64_t position = block.begin + g * GROUP, page = pages[position / size], at = position % size / GROUP;
    read_keys(ByteGroup::of(args.k, page, at, kv_head), dim, k);
    read_values(ByteGroup::of(args.v, page, at, kv_head), std::min<int>(GROUP, block.count - g * GROUP), dim, stride, v);
  }
}

}  // namespace quire
