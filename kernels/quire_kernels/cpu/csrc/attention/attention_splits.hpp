// Splits of long contexts: SPLIT positions, from multiples of SPLIT on. Each line has sums of its own for each split,
// which are merged in the order of positions. So threads may share the splits of a tile: the bits do not depend on it.
#pragma once
#include "attention/attention_tiles.hpp"
#include "sampling/softmax.hpp"

namespace quire {

constexpr int64_t SPLIT = 2048;             // positions; a multiple of BLOCK
constexpr int64_t ITEMS_PER_THREAD = 6;     // with so many items, threads finish at about the same time
constexpr int64_t MAX_STORED_BYTES = 16 << 20;  // of sums that threads exchange; tiles beyond that are not split

// What is known of one line after some positions.
struct LineSums {
  float *top, *totals, *out;  // maximum of raw scores; sums of weights, lane by lane; weighted values [width]

  static int64_t floats(int64_t width) { return width + 2 * LANES; }
  static LineSums stored(float* at) { return {at, at + LANES, at + 2 * LANES}; }

  // Adds the sums of the positions that follow.
  void add(const LineSums& next, float unit, int64_t width) const {
    const float most = std::max(*top, *next.top);
    const F16 old = exp2<float>(set1((*top - most) * unit)), added = exp2<float>(set1((*next.top - most) * unit));
    *top = most;
    store(totals, fma(load(next.totals), added, load(totals) * old));
    for (int64_t i = 0; i < width; i += LANES) store(out + i, fma(load(next.out + i), added, load(out + i) * old));
  }
  void copy(const LineSums& from, int64_t width) const {
    *top = *from.top;
    std::copy_n(from.totals, LANES, totals);
    std::copy_n(from.out, width, out);
  }
  void clear(int64_t width) const {
    *top = HIDDEN;
    std::fill_n(totals, LANES, 0.0f);
    std::fill_n(out, width, 0.0f);
  }
};

// The sums of a line in this thread: of its current split, or of all splits before it.
template <class T>
inline LineSums current_sums(Scratch<T>& mine, int64_t line, int64_t width) {
  return {mine.top.data() + line, mine.totals.data() + line * LANES, mine.out.data() + line * width};
}
template <class T>
inline LineSums earlier_sums(Scratch<T>& mine, int64_t line, int64_t width) {
  return LineSums::stored(mine.earlier.data() + line * LineSums::floats(width));
}

// Ends a split of `count` lines.
template <class T>
void end_split(const AttentionArgs& args, Scratch<T>& mine, int64_t line, int64_t count) {
  const int64_t width = padded(args.v.dim, LANES);
  const float unit = ScoreTransform(args).unit;
  for (int64_t l = line; l < line + count; l++) {
    const LineSums current = current_sums(mine, l, width);
    earlier_sums(mine, l, width).add(current, unit, width);
    current.clear(width);
  }
}

// End of the last token's context.
inline int64_t end_of(const AttentionArgs& args, const StepRows& rows, const Tile& tile) {
  if (!tile.shared) return span_of(args, rows, tile).end;
  return *std::max_element(rows.contexts + tile.row, rows.contexts + tile.row + tile.tokens);
}

// Divides tiles that are long compared with their step, so that no thread is left with one; returns the number of lines
// whose sums are stored.
inline int64_t split_parts(const AttentionArgs& args, const StepRows& rows, const std::vector<Tile>& tiles, int threads,
                           std::vector<Part>& parts) {
  parts.clear();
  int64_t work = 0, stored = 0;
  for (const Tile& tile : tiles)
    work += (FEW_LINES + tile.tokens * args.group) * (end_of(args, rows, tile) - span_of(args, rows, tile).begin);
  const int64_t most = MAX_STORED_BYTES / static_cast<int64_t>(sizeof(float)) / LineSums::floats(padded(args.v.dim, LANES));
  for (size_t i = 0; i < tiles.size(); i++) {
    const int64_t begin = span_of(args, rows, tiles[i]).begin, end = end_of(args, rows, tiles[i]);
    const int64_t own = (FEW_LINES + tiles[i].tokens * args.group) * (end - begin);
    const int64_t lines = tiles[i].tokens * args.group * args.k.heads;
    const int64_t splits = (end - 1) / SPLIT - begin / SPLIT + 1;
    const bool divide = threads > 1 && splits > 1 && own * ITEMS_PER_THREAD * threads > work && stored + splits * lines <= most;
    if (!divide) parts.push_back({static_cast<int64_t>(i), begin, end, -1});
    for (int64_t at = begin; divide && at < end; at = (at / SPLIT + 1) * SPLIT, stored += lines)
      parts.push_back({static_cast<int64_t>(i), at, std::min(end, (at / SPLIT + 1) * SPLIT), stored});
  }
  return stored;
}

// Calls work(token, query head, key-value head, line of that head) for the lines of a tile.
template <class Work>
inline void each_line(const AttentionArgs& args, const Tile& tile, int64_t first, int64_t last, Work&& work) {
  for (int64_t head = first; head < last; head++) {
    const int64_t queries = args.queries(head);
    for (int64_t l = 0; l < tile.tokens * queries; l++)
      work(tile.token + l / queries, args.first_query(head) + l % queries, head, l);
  }
}

// The sums before the first split. A sink is the first score of a line: its weight, 1, is in the sum, but nothing of it
// is in the output.
inline void begin_line(const AttentionArgs& args, int64_t head, int64_t width, const LineSums& sums) {
  sums.clear(width);
  if (args.sinks) *sums.top = ScoreTransform(args).raw(args.sinks[head]), *sums.totals = 1.0f;
}

// Divides a line's weighted values by its weights.
template <class T>
void put_line(const AttentionArgs& args, const LineSums& sums, T* to) {
  if (args.k.stored == Stored::int4) rotate_blocks(sums.out, args.v.dim, sums.out);
  const F16 inverse = set1(1.0f / sum(load(sums.totals)));
  lanes(args.v.dim, [&](int64_t i, int n) { set(to + i, load(sums.out + i) * inverse, n); });
}

// Where the sums of a line of a part are stored.
inline LineSums stored_sums(const AttentionArgs& args, const Tile& tile, const Part& part, int64_t head, int64_t line,
                            float* stored) {
  const int64_t at = part.stored + head * tile.tokens * args.group + line;
  return LineSums::stored(stored + at * LineSums::floats(padded(args.v.dim, LANES)));
}

// Writes the outputs of a whole tile, or stores the sums of a split.
template <class T>
void end_part(const AttentionArgs& args, const Tile& tile, const Part& part, int64_t first, int64_t last, int64_t stride,
              Rows<T> out, float* stored) {
  const int64_t width = padded(args.v.dim, LANES);
  const float unit = ScoreTransform(args).unit;
  Scratch<T>& mine = scratch<T>();
  each_line(args, tile, first, last, [&](int64_t token, int64_t head, int64_t kv_head, int64_t l) {
    const int64_t at = (kv_head - first) * stride + l;
    const LineSums current = current_sums(mine, at, width), earlier = earlier_sums(mine, at, width);
    if (part.stored >= 0) return stored_sums(args, tile, part, kv_head, l, stored).copy(current, width);
    if (*earlier.top == HIDDEN) return put_line(args, current, out.row(token, head));  // there are none
    earlier.add(current, unit, width);
    put_line(args, earlier, out.row(token, head));
  });
}

// Merges the splits of the tile that begins with part `at`, for one key-value head.
template <class T>
void merge_splits(const AttentionArgs& args, const std::vector<Part>& parts, size_t at, int64_t kv_head, Rows<T> out,
                  float* stored) {
  const int64_t width = padded(args.v.dim, LANES);
  const float unit = ScoreTransform(args).unit;
  Scratch<T>& mine = scratch<T>();
  const Tile& tile = mine.tiles[parts[at].tile];
  mine.earlier.fit(LineSums::floats(width));
  const LineSums all = earlier_sums(mine, 0, width);
  each_line(args, tile, kv_head, kv_head + 1, [&](int64_t token, int64_t head, int64_t, int64_t l) {
    begin_line(args, head, width, all);
    for (size_t i = at; i < parts.size() && parts[i].tile == parts[at].tile; i++)
      all.add(stored_sums(args, tile, parts[i], kv_head, l, stored), unit, width);
    put_line(args, all, out.row(token, head));
  });
}

}  // namespace quire
