// Where the positions of a block lie in the pages of a seq, and what of the next ones is asked for meanwhile.
#pragma once
#include "attention_int8.hpp"

namespace quire {

// Positions from `begin` on of some seq.
struct Span {
  const int32_t* pages;
  int64_t begin, end;
};

// Where the groups of the block at `begin` lie; those that are not there repeat the last.
inline Places places_of(const AttentionArgs& args, const Span& span, int64_t begin) {
  Places places;
  for (int g = 0; g < GROUPS; g++) {
    const auto position = static_cast<uint32_t>(std::min(begin + g * GROUP, span.end - 1));
    const auto size = static_cast<uint32_t>(args.k.page_size);
    places.page[g] = span.pages[position / size], places.at[g] = position % size / GROUP;
  }
  return places;
}

// Where a block's keys and values lie; values are copied where the tile's lines want that, or not all are there.
template <class Kind, class T>
void find(const AttentionArgs& args, const Places& places, int64_t kv_head, T* copies, Block<T>& block) {
  if (args.k.holds_bytes) return find_bytes<Kind>(args, places, kv_head, block);
  const int64_t dim = args.k.dim, stride = padded(dim, LANES);
  for (int g = 0; g < block.groups(); g++) {
    block.keys[g] = args.k.group<T>(places.page[g], places.at[g], kv_head);
    block.values[g] = args.v.group<T>(places.page[g], places.at[g], kv_head);
    const int there = std::min<int>(GROUP, block.count - g * GROUP);
    if (!Kind::COPIES && there == GROUP && stride == dim) continue;
    copy_values(block.values[g], there, dim, stride, copies + g * GROUP * stride);
    block.values[g] = copies + g * GROUP * stride;
  }
  if (Kind::COPIES)  // what tiles read of a block that is not full must be finite
    std::fill(copies + block.groups() * GROUP * stride, copies + BLOCK * stride, T{});
}

// What is read after this block, as it lies in memory: part `part` of `parts` of the next block's groups, all heads of a
// group side by side. Memory gives more to those who read it in order.
template <class T>
void announce(const AttentionArgs& args, const Places& next, int64_t part, int64_t parts, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    const int64_t chunk = (part * GROUPS + g) * args.k.heads / parts, head = chunk % args.k.heads;
    const int64_t page = next.page[chunk / args.k.heads], at = next.at[chunk / args.k.heads];
    if (args.k.holds_bytes) {
      block.next_key_bytes[g] = ByteGroup::of(args.k, page, at, head).bytes;
      block.next_value_bytes[g] = ByteGroup::of(args.v, page, at, head).bytes;
      continue;
    }
    block.next_keys[g] = args.k.group<T>(page, at, head);
    block.next_values[g] = args.v.group<T>(page, at, head);
  }
}

// The same for lines that ask for one head's keys and values at a time, shortly before they are read.
template <class T>
void announce_head(const AttentionArgs& args, const Places& places, int64_t head, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    block.next_keys[g] = args.k.group<T>(places.page[g], places.at[g], head);
    block.next_values[g] = args.v.group<T>(places.page[g], places.at[g], head);
  }
}

}  // namespace quire
