// Attention of a step's tokens to the pages of their own seqs, 64 positions at a time with a running maximum and
// sum (online softmax: Milakov & Gimelshein 2018; Rabe & Staats 2021; FlashAttention, Dao et al. 2022).
//
// A tile is some tokens of one row of the step with all the query heads of one key-value head; its lines are
// (token, head) pairs. Lines are independent of each other, and blocks and splits (`attention/attention_splits.hpp`)
// begin at position 0 for every tile, so a line's result does not depend on how the step was divided. The exceptions are
// bfloat16 with quantized pages, where tiles with few lines compute with more digits, and AMX tiles, which take more
// positions at a time if there are many lines: by less than that type's rounding. With `AttentionArgs::exact` there are
// none.
#pragma once
#include "attention/attention_offsets.hpp"
#include "attention/attention_splits.hpp"
#include "attention/attention_strips.hpp"
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "attention/attention_amx.hpp"
#endif

namespace quire {

// Lines of the key-value heads first … last-1 and the positions of a span, block by block over all heads, so that
// pages are read in memory order. lines: of one query head. stride: lines of a key-value head in memory. after: the
// span that is read next.
template <class T, class Kind>
void attend_span(const AttentionArgs& args, const Lines& lines, const Span& span, const Span& after, int64_t first,
                 int64_t last, int64_t stride, Kind kind) {
  Scratch<T>& mine = scratch<T>();
  Block<T> block;
  block.has_scales = args.k.stored == Stored::int8;
  GroupOffsets here = group_offsets(args, span, span.begin), next;
  for (block.begin = span.begin; block.begin < span.end; block.begin += BLOCK, here = next) {
    const bool more = block.begin + BLOCK < span.end;
    next = more ? group_offsets(args, span, block.begin + BLOCK) : group_offsets(args, after, after.begin);
    block.count = static_cast<int>(std::min<int64_t>(BLOCK, span.end - block.begin));
    for (int64_t head = first; head < last; head++) {
      if (Kind::PREFETCHES_BY_HEAD && args.k.stored == Stored::plain)
        set_next_head<T>(args, head + 1 < last ? here : next, head + 1 < last ? head + 1 : first, block);
      else
        set_next<T>(args, next, head - first, last - first, block);
      find<Kind>(args, here, head, mine.values.data(), block);
      block.head = args.first_query(head), block.queries = args.queries(head);
      const Lines own = lines.of(block.queries);
      if (block.begin % SPLIT == 0 && block.begin) end_split(args, mine, (head - first) * stride + own.at, own.count);
      if (args.stripes && !args.stripes->may_see(lines.position, block.head, block.queries, block.begin)) continue;
      if constexpr (Kind::HAS_HEIGHT) kind.set_height(own.count);
#if defined(__AVX512F__)
      if constexpr (Kind::BANDS)
        attend_bands<T>(args, own, block, mine, (head - first) * stride);
      else
#endif
        attend_block<T>(args, own, block, mine, (head - first) * stride, kind, block.queries);
    }
  }
}

// `attend_span` of unquantized pages for many lines: several blocks at once, so that the queries and outputs of a strip stay
// in the first-level cache while it passes them.
template <class T, class Kind>
void attend_span_by_strips(const AttentionArgs& args, const Lines& lines, const Span& span, int64_t first, int64_t last,
                           int64_t stride, Kind kind) {
  Scratch<T>& mine = scratch<T>();
  constexpr int64_t MOST = STRIP_BLOCKS * BLOCK;  // positions
  for (int64_t head = first; head < last; head++) {
    const Lines own = lines.of(args.queries(head));
    for (int64_t begin = span.begin, end; begin < span.end; begin = end) {
      end = std::min(span.end, (begin / MOST + 1) * MOST);
      if (begin % SPLIT == 0 && begin) end_split(args, mine, (head - first) * stride + own.at, own.count);
      int64_t count = 0;
      for (int64_t at = begin; at < end; at += BLOCK) {
        Block<T>& block = mine.blocks[count];
        block.begin = at, block.count = static_cast<int>(std::min<int64_t>(BLOCK, span.end - at));
        block.head = args.first_query(head), block.queries = args.queries(head);
        if (args.stripes && !args.stripes->may_see(lines.position, block.head, block.queries, at)) continue;
        T* copies = mine.values.data() + count++ * BLOCK * padded(args.v.dim, LANES);
        find<Kind>(args, group_offsets(args, span, at), head, copies, block);
      }
      if (count)
        attend_blocks<T>(args, own, mine.blocks, count, mine, (head - first) * stride, kind, args.queries(head));
    }
  }
}

template <class T>
void attend_lines(const AttentionArgs& args, const Lines& lines, const Span& span, const Span& after, int64_t first,
                  int64_t last, int64_t stride) {
  const int64_t most = lines.count * args.group;  // lines of a key-value head
  if (args.k.stored == Stored::int4 && most <= FEW_LINES)
    return attend_span<T>(args, lines, span, after, first, last, stride, CodeLines<T>{});
#if defined(__AVX512VNNI__)
  if constexpr (MULTIPLIES_BYTES<T>)
    if (args.k.stored == Stored::int8 && most <= FEW_LINES)
      return attend_span<T>(args, lines, span, after, first, last, stride, ByteLines{});
#endif
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) {
    const bool fits = args.k.dim % 32 == 0 && args.v.dim % 32 == 0;
    if (fits && most <= FewAmxLines::MAX)
      return attend_span<T>(args, lines, span, after, first, last, stride, FewAmxLines{most});
    if (fits && args.k.stored == Stored::plain)
      return attend_span_by_strips<T>(args, lines, span, first, last, stride, AmxLines{});
    if (fits) return attend_span<T>(args, lines, span, after, first, last, stride, AmxLines{});
  }
#endif
#if defined(__AVX512F__)
  if (most > FEW_LINES) return attend_span<T>(args, lines, span, after, first, last, stride, ManyLines<T>{});
#endif
  attend_span<T>(args, lines, span, after, first, last, stride, VectorLines<T>{});
}

// Copies the queries of a tile and resets its outputs.
template <class T>
void begin_tile(const AttentionArgs& args, const Tile& tile, int64_t first, int64_t last, int64_t stride, Rows<T> q) {
  const int64_t dim = args.k.dim, heads = last - first;
  Scratch<T>& mine = scratch<T>();
  const int64_t all = heads * stride + (stride > FEW_LINES ? STRIP : 0);  // the last head's strips may exceed its lines
  const int64_t width = padded(args.v.dim, LANES);
  mine.fit(all, padded(dim, LANES), width);
  for (int64_t h = 0; h < heads; h++) {
    const int64_t queries = args.queries(first + h);
    RowElement<T>* to = mine.q.data() + h * stride * dim;
    for (int64_t t = 0; t < tile.tokens; t++, to += queries * dim)
      if (const T* from = q.row(tile.token + t, args.first_query(first + h)); args.k.stored == Stored::int4)
        rotate_blocks(from, queries * dim, to);
      else
        widen_row(from, queries * dim, queries * dim, to);
    std::fill_n(to, (stride - tile.tokens * queries) * dim, RowElement<T>{});
    if constexpr (MULTIPLIES_BYTES<T>) {
      if (args.k.stored != Stored::int8 || (tile.tokens * args.group > FEW_LINES && !tile.shared)) continue;
      for (int64_t l = h * stride; l < h * stride + tile.tokens * queries; l++)
        mine.halved[l] = halve(mine.q.data() + l * dim, dim, mine.halves.data() + l * 2 * dim);
    }
  }
  std::fill_n(mine.out.data(), all * width, 0.0f);
  std::fill_n(mine.top.data(), all, HIDDEN);
  std::fill_n(mine.totals.data(), all * LANES, 0.0f);
  each_line(args, tile, first, last, [&](int64_t, int64_t head, int64_t kv_head, int64_t l) {
    begin_line(args, head, width, earlier_sums(mine, (kv_head - first) * stride + l, width));
  });
}

// after: the span that this thread will probably read next.
template <class T>
void attend_part(const AttentionArgs& args, const StepRows& rows, const Tile& tile, const Part& part, const Span& after,
                 int64_t first, int64_t last, Rows<T> q, Rows<T> out, float* stored) {
  const int64_t count = tile.tokens * args.group;
  const int64_t stride = count > FEW_LINES ? padded(count, STRIP) : count;
  begin_tile(args, tile, first, last, stride, q);
  const auto clipped = [&](Span span) {
    return Span{span.pages, std::max(span.begin, part.begin), std::min(span.end, part.end)};
  };
  const Span whole = span_of(args, rows, tile), span = clipped(whole);
  if (tile.shared == 0) {
    const int32_t* ends = rows.ends ? rows.ends + tile.token : nullptr;
    attend_lines<T>(args, {0, tile.tokens, tile.position, ends}, span, after, first, last, stride);
  } else {
    const auto rest = [&](int64_t t) {
      return clipped({whole.pages + t * rows.pages_stride, whole.end, rows.contexts[tile.row + t]});
    };
    const auto next = [&](int64_t t) {  // the next that has positions here
      while (t < tile.tokens && rest(t).begin >= rest(t).end) t++;
      return t;
    };
    const auto span_after = [&](int64_t t) { return next(t) < tile.tokens ? rest(next(t)) : after; };
    if (span.begin < span.end) attend_lines<T>(args, {0, tile.tokens, whole.end}, span, span_after(0), first, last, stride);
    for (int64_t t = next(0); t < tile.tokens; t = next(t + 1))
      attend_lines<T>(args, {t, 1, rows.contexts[tile.row + t] - 1}, rest(t), span_after(t + 1), first, last, stride);
  }
  end_part(args, tile, part, first, last, stride, out, stored);
}

template <class T>
void attend(Worker& worker, AttentionArgs args, const StepRows& rows, Rows<T> q, Rows<T> out) {
  if (args.latent && !args.exact) divide_heads(args, rows.query_starts[rows.count], worker.size);
  if (args.group == 0) args.group = args.heads / args.k.heads;
  Scratch<T>& mine = scratch<T>();
  split_tiles(rows, args, mine.tiles);
  const std::vector<Part>& parts = mine.parts;
  const int64_t lines = split_parts(args, rows, mine.tiles, worker.size, mine.parts);
  const int64_t width = padded(args.v.dim, LANES), count = static_cast<int64_t>(parts.size());
  const auto memory = [&] { return mine.stored.fit(lines * LineSums::floats(width)), mine.stored.data(); };
  float* stored = lines ? static_cast<float*>(worker.common(memory)) : nullptr;
  const auto is_large = [&](const Tile& tile) { return tile.tokens * args.group > FEW_LINES && !tile.shared; };
  const bool apart = count < ITEMS_PER_THREAD * worker.size || static_cast<int64_t>(mine.tiles.size()) < rows.count ||
                     (DIVIDES_HEADS && std::any_of(mine.tiles.begin(), mine.tiles.end(), is_large));
  const int64_t heads = apart ? 1 : args.k.heads, pieces = args.k.heads / heads;
  worker.each(count * pieces, [&](int64_t i) {
    const Part &part = parts[i / pieces], &next = parts[std::min(count - 1, (i + 1) / pieces)];
    Span after = span_of(args, rows, mine.tiles[next.tile]);
    after.begin = std::max(after.begin, std::min(next.begin, after.end - 1));
    const int64_t head = i % pieces * heads;
    attend_part<T>(args, rows, mine.tiles[part.tile], part, after, head, head + heads, q, out, stored);
  });
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  _tile_release();
#endif
  if (!lines) return;
  worker.barrier();
  worker.each(count * args.k.heads, [&](int64_t i) {
    const size_t at = i / args.k.heads;
    const bool first = parts[at].stored >= 0 && (at == 0 || parts[at - 1].tile != parts[at].tile);
    if (first) merge_splits(args, parts, at, i % args.k.heads, out, stored);
  });
}

}  // namespace quire
