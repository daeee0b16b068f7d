// Offsets of a block's positions in the pages of a seq, and what to prefetch of the next block.
#pragma once
#include "attention/attention_int4.hpp"
#include "attention/attention_int8.hpp"

namespace quire {

// Positions begin … end-1 of a seq.
struct Span {
  const int32_t* pages;
  int64_t begin, end;
};

// Pages and indices of the groups of the block at `begin`; missing groups repeat the last one.
inline GroupOffsets group_offsets(const AttentionArgs& args, const Span& span, int64_t begin) {
  GroupOffsets offsets;
  for (int g = 0; g < GROUPS; g++) {
    const auto position = static_cast<uint32_t>(std::min(begin + g * GROUP, span.end - 1));
    const auto size = static_cast<uint32_t>(args.k.page_size);
    offsets.page[g] = span.pages[position / size], offsets.at[g] = position % size / GROUP;
  }
  return offsets;
}

// Sets a block's keys and values; values are copied where the kernel needs it or positions are missing.
template <class Kind, class T>
void find(const AttentionArgs& args, const GroupOffsets& offsets, int64_t kv_head, T* copies, Block<T>& block) {
  if (args.k.stored == Stored::int8) return find_bytes<Kind>(args, offsets, kv_head, block);
  if (args.k.stored == Stored::int4) return find_codes<Kind>(args, offsets, kv_head, block);
  const int64_t dim = args.v.dim, stride = padded(dim, LANES);
  for (int g = 0; g < block.groups(); g++) {
    block.keys[g] = args.k.group<T>(offsets.page[g], offsets.at[g], kv_head);
    const int present = std::min<int>(GROUP, block.count - g * GROUP);
    if (args.latent) {
      transpose_keys(block.keys[g], present, dim, stride, copies + g * GROUP * stride);
      block.values[g] = copies + g * GROUP * stride;
      continue;
    }
    block.values[g] = args.v.group<T>(offsets.page[g], offsets.at[g], kv_head);
    if (!Kind::COPIES && present == GROUP && stride == dim) continue;
    copy_values(block.values[g], present, dim, stride, copies + g * GROUP * stride);
    block.values[g] = copies + g * GROUP * stride;
  }
  if (Kind::COPIES)  // AMX tiles read the whole block, so the rest of a partial one must be finite
    std::fill(copies + block.groups() * GROUP * stride, copies + BLOCK * stride, T{});
}

// Sets what to prefetch during this block in memory order: part `part` of `parts` of the next block's groups, with
// all heads of a group contiguous. Sequential reads get more bandwidth.
template <class T>
void set_next(const AttentionArgs& args, const GroupOffsets& next, int64_t part, int64_t parts, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    const int64_t chunk = (part * GROUPS + g) * args.k.heads / parts, head = chunk % args.k.heads;
    const int64_t page = next.page[chunk / args.k.heads], at = next.at[chunk / args.k.heads];
    if (args.k.stored != Stored::plain) {
      block.next_key_bytes[g] = reinterpret_cast<const int8_t*>(args.k.quantized_group(page, at, head));
      block.next_value_bytes[g] = reinterpret_cast<const int8_t*>(args.v.quantized_group(page, at, head));
      continue;
    }
    block.next_keys[g] = args.k.group<T>(page, at, head);
    block.next_values[g] = args.latent ? block.next_keys[g] : args.v.group<T>(page, at, head);
  }
}

// `set_next` for kernels that prefetch one head's keys and values at a time, shortly before they read them.
template <class T>
void set_next_head(const AttentionArgs& args, const GroupOffsets& offsets, int64_t head, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    block.next_keys[g] = args.k.group<T>(offsets.page[g], offsets.at[g], head);
    block.next_values[g] = args.latent ? block.next_keys[g] : args.v.group<T>(offsets.page[g], offsets.at[g], head);
  }
}

}  // namespace quire
