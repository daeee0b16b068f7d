// A block of positions whose pages hold bytes, made what attention computes with.
#pragma once
#include "pages_int8.hpp"

namespace quire {

// Keys and values of one head, but for their scales, go to memory of this thread; tiles read the whole of it, so it is
// finite to the end.
template <class T>
void find_bytes(const AttentionArgs& args, const int32_t* pages, int64_t kv_head, int64_t end, Block<T>& block) {
  const int64_t dim = args.k.dim, stride = padded(dim, LANES), size = args.k.page_size;
  static thread_local Room<T> keys, values;
  keys.fit(BLOCK * dim + LANES), values.fit(BLOCK * stride);  // keys are written two vectors at a time
  block.count = static_cast<int>(std::min<int64_t>(BLOCK, end - block.begin));
  for (int g = 0; g < GROUPS; g++) {
    T *k = keys.data() + g * GROUP * dim, *v = values.data() + g * GROUP * stride;
    block.keys[g] = block.next_keys[g] = k;
    block.values[g] = block.next_values[g] = v;
    if (g >= block.groups()) {
      std::fill_n(v, GROUP * stride, T{});
      store(block.key_scales + g * GROUP, zero());
      store(block.value_scales + g * GROUP, zero());
      continue;
    }
    const int64_t position = block.begin + g * GROUP, page = pages[position / size], at = position % size / GROUP;
    const ByteGroup of_keys = ByteGroup::of(args.k, page, at, kv_head);
    const ByteGroup of_values = ByteGroup::of(args.v, page, at, kv_head);
    read_keys(of_keys, dim, block.next_key_bytes[g], k);
    read_values(of_values, dim, stride, block.next_value_bytes[g], v);
    const int there = std::min<int>(GROUP, block.count - g * GROUP);
    store(block.key_scales + g * GROUP, load(of_keys.scales, there));
    store(block.value_scales + g * GROUP, load(of_values.scales, there));
  }
}

}  // namespace quire
