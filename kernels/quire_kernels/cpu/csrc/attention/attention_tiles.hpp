// How a step is split into tiles, and which positions a tile reads.
#pragma once
#include <algorithm>

#include "attention/attention_offsets.hpp"

namespace quire {

// The shared positions that all tokens of a tile read, or all positions that they read if none are shared.
inline Span span_of(const AttentionArgs& args, const StepRows& rows, const Tile& tile) {
  const int32_t* pages = rows.pages + tile.row * rows.pages_stride;
  if (tile.shared) return {pages, 0, tile.shared * BLOCK};
  const int64_t oldest = args.oldest(tile.position);
  const int64_t end = tile.position + tile.tokens;
  if (!rows.ends) return {pages, oldest / BLOCK * BLOCK, end};
  const int32_t* ends = rows.ends + tile.token;
  return {pages, oldest / BLOCK * BLOCK, std::max<int64_t>(end, *std::max_element(ends, ends + tile.tokens))};
}

constexpr int64_t MIN_SHARED_BLOCKS = 2;  // minimum blocks worth reading once for several rows

// Number of consecutive rows from `row` on, of one token each, that begin with the same pages, and number of blocks
// that they share.
inline std::pair<int64_t, int64_t> alike(const StepRows& rows, int64_t row, int64_t most, int64_t page_size) {
  const int32_t* pages = rows.pages + row * rows.pages_stride;
  int64_t count = 1, shared = (rows.contexts[row] - 1) / BLOCK;
  for (; count < most && row + count < rows.count; count++) {
    const int64_t other = row + count;
    if (rows.query_starts[other + 1] - rows.query_starts[other] != 1) break;
    const int32_t* theirs = pages + count * rows.pages_stride;
    int64_t same = 0;
    const int64_t whole = std::min<int64_t>(shared, (rows.contexts[other] - 1) / BLOCK) * BLOCK / page_size;
    while (same < whole && theirs[same] == pages[same]) same++;
    const int64_t blocks = same * page_size / BLOCK;
    if (blocks < MIN_SHARED_BLOCKS) break;
    shared = blocks;
  }
  return {count, shared};
}

// Splits a step into tiles. Within a row, longer contexts come first.
inline void split_tiles(const StepRows& rows, const AttentionArgs& args, std::vector<Tile>& tiles) {
  tiles.clear();
  // some kernels of few lines sum in another order than those of many, so then all tiles have few
  const int64_t most = std::max<int64_t>(1, std::min(MAX_TILE_TOKENS, (args.exact ? FEW_LINES : MAX_LINES) / args.group));
  // what a token reads depends on its own position
  const bool apart = args.window || args.chunk || args.slopes || args.biases || args.stripes;
  const int64_t together = BLOCK % args.k.page_size || apart || args.exact ? 1 : std::max<int64_t>(1, STRIP / args.group);
  for (int64_t r = 0; r < rows.count;) {
    const int64_t first = rows.query_starts[r], length = rows.query_starts[r + 1] - first;
    const int64_t start = rows.contexts[r] - length;
    if (length == 1 && together > 1) {
      const int64_t all = alike(rows, r, 4 * together, args.k.page_size).first, parts = (all + together - 1) / together;
      // so that all tiles have the same size
      const auto [count, shared] = alike(rows, r, (all + parts - 1) / parts, args.k.page_size);
      if (count > 1) {
        tiles.push_back({r, first, count, start, shared});
        r += count;
        continue;
      }
    }
    for (int64_t at = (length + most - 1) / most * most - most; at >= 0; at -= most)  // no tile if present are no tokens
      tiles.push_back({r, first + at, std::min(most, length - at), start + at, 0});
    r++;
  }
}

// All query heads of latent attention share one head of keys. With few tokens they are divided among the threads, as if
// each had keys of its own.
inline void divide_heads(AttentionArgs& args, int64_t tokens, int threads) {
  int64_t parts = 1;
  while (tokens * parts < 2 * threads && args.heads % (2 * parts * args.k.heads) == 0) parts *= 2;
  args.k.heads *= parts, args.k.shared = parts;
}

}  // namespace quire
