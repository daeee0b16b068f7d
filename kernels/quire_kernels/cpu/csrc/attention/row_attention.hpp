// Bidirectional attention of a step's tokens to the tokens of their own row, without pages.
//
// Keys and values of a row and head are packed in the layout of a page (`attention/pages.hpp`), in memory of the
// thread, and padded with zeros to whole blocks of positions and to dimensions that tiles take. Then attention
// works as in `attention/attention.hpp`: blocks begin at the row's first token, so a token's result depends only on
// its row.
#pragma once
#include "attention/attention.hpp"

namespace quire {

struct RowAttentionArgs {
  int64_t heads, kv_heads, dim;
  float scale;
  int64_t window;  // 0: none
  const float* biases = nullptr;  // as in `AttentionArgs`
  int64_t reach = 0;
};

// Some tokens of a row, `tokens` of them starting at `at`, and the key-value heads to compute.
struct RowTile {
  int64_t row, at, tokens, first_head, last_head;
};

// The packed keys and values of one row and head, and which these are.
template <class T>
struct PackedRow {
  ScratchBuffer<T> keys, values;
  int64_t row = -1, head = -1;
  std::vector<RowTile> tiles;
};

template <class T>
inline PackedRow<T>& packed_row() {
  static thread_local PackedRow<T> mine;
  return mine;
}

// Padded dimensions of a head: additional ones only multiply zeros.
template <class T>
inline int64_t padded_dim(int64_t dim) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if (sizeof(T) == 2) return padded(dim, 32);
#endif
  return padded(dim, PER_UNIT<T>);
}

// x[i] = y[i], for counts so small that calling memcpy takes longer.
template <class T>
inline void copy_few(T* x, const T* y, int64_t count) {
  constexpr int64_t STEP = 64 / sizeof(T);
  int64_t i = 0;
  for (; i + STEP <= count; i += STEP) store_units(x + i, load_units(y + i));
  for (; i < count; i++) x[i] = y[i];
}

// [position unit][stride] units of neighboring positions; elements beyond `dim` are zero already.
inline void pack_values(const Rows<float>& v, int64_t token, int64_t head, int64_t length, int64_t stride, float* to) {
  for (int64_t t = 0; t < length; t++, to += stride) copy_few(to, v.row(token + t, head), v.width);
}
inline void pack_values(const Rows<bf16>& v, int64_t token, int64_t head, int64_t length, int64_t stride, bf16* to) {
  for (int64_t t = 0; t < length; t += 2, to += 2 * stride) {
    const bf16* even = v.row(token + t, head);
    for (int64_t d = 0; d < v.width; d++) to[2 * d] = even[d];
    if (t + 1 == length) return;
    const bf16* odd = v.row(token + t + 1, head);
    for (int64_t d = 0; d < v.width; d++) to[2 * d + 1] = odd[d];
  }
}

// Packs up to 16 keys, `present` of them, into a group: transposes units in blocks of sixteen by sixteen, as far as
// possible.
template <class T>
void pack_keys(const Rows<T>& k, int64_t token, int64_t head, int present, T* group) {
  constexpr int P = PER_UNIT<T>;
  int64_t at = 0;
#if defined(__AVX512F__)
  for (; at + LANES * P <= k.width; at += LANES * P) {
    U16 units[LANES];
    for (int i = 0; i < LANES; i++) units[i] = i < present ? load_units(k.row(token + i, head) + at) : U16{};
    transpose(units);
    for (int i = 0; i < LANES; i++) store_units(group + at * GROUP + i * LANES * P, units[i]);
  }
#endif
  for (int i = 0; i < present; i++) {
    const T* key = k.row(token + i, head);
    for (int64_t d = at; d < k.width; d++) group[(d / P * GROUP + i) * P + d % P] = key[d];
  }
}

template <class T>
void pack_row(int64_t token, int64_t length, int64_t head, int64_t dim, int64_t stride, const Rows<T>& k,
              const Rows<T>& v, PackedRow<T>& to) {
  const int64_t all = padded(length, BLOCK);
  // padding: positions beyond the row from its last group on, or everything if heads are widened
  const int64_t keys = k.width == dim ? length / GROUP * GROUP * dim : 0;
  const int64_t values = v.width == stride ? length / PER_UNIT<T> * PER_UNIT<T> * stride : 0;
  to.keys.fit(all * dim), to.values.fit(all * stride);
  std::fill(to.keys.data() + keys, to.keys.data() + all * dim, T{});
  std::fill(to.values.data() + values, to.values.data() + all * stride, T{});
  for (int64_t t = 0; t < length; t += GROUP)
    pack_keys(k, token + t, head, static_cast<int>(std::min<int64_t>(GROUP, length - t)), to.keys.data() + t * dim);
  pack_values(v, token, head, length, stride, to.values.data());
}

// Computes the blocks of a row that the lines of a tile attend to.
template <class T, class Kind>
void attend_row(const AttentionArgs& args, const Lines& lines, int64_t length, PackedRow<T>& row, Kind kind) {
  Scratch<T>& mine = scratch<T>();
  const int64_t dim = args.k.dim, stride = padded(dim, LANES);
  const int64_t last = lines.position + (lines.count - 1) / (args.heads / args.k.heads);
  const int64_t from = args.window ? std::max<int64_t>(0, lines.position - args.window + 1) / BLOCK * BLOCK : 0;
  const int64_t to = args.window ? std::min(length, last + args.window) : length;
  Block<T> block;
  block.queries = args.heads / args.k.heads, block.head = row.head * block.queries;
  for (block.begin = from; block.begin < to; block.begin += BLOCK) {
    block.count = static_cast<int>(std::min<int64_t>(BLOCK, length - block.begin));
    for (int g = 0; g < GROUPS; g++) {
      block.keys[g] = block.next_keys[g] = row.keys.data() + (block.begin + g * GROUP) * dim;
      block.values[g] = block.next_values[g] = row.values.data() + (block.begin + g * GROUP) * stride;
    }
    attend_block<T>(args, lines, block, mine, 0, kind, block.queries);
  }
}

// Copies the queries of a tile and one head, padded to the width of keys.
template <class T>
void begin_rows(const AttentionArgs& args, const Rows<T>& q, int64_t token, int64_t tokens, int64_t head, int64_t lines) {
  const int64_t dim = args.k.dim, per_head = args.heads / args.k.heads, stride = padded(dim, LANES);
  Scratch<T>& mine = scratch<T>();
  mine.fit(lines, stride, stride);
  RowElement<T>* to = mine.q.data();
  for (int64_t l = 0; l < tokens * per_head; l++, to += dim) {
    if constexpr (FACTORS<T> > 1)
      widen_row(q.row(token + l / per_head, head * per_head + l % per_head), q.width, q.width, to);
    else
      copy_few(to, q.row(token + l / per_head, head * per_head + l % per_head), q.width);
    std::fill(to + q.width, to + dim, RowElement<T>{});
  }
  std::fill(to, mine.q.data() + lines * dim, RowElement<T>{});
  std::fill_n(mine.out.data(), lines * stride, 0.0f);
  std::fill_n(mine.top.data(), lines, HIDDEN);
  std::fill_n(mine.totals.data(), lines * LANES, 0.0f);
}

template <class T>
void end_rows(const AttentionArgs& args, const Rows<T>& out, int64_t token, int64_t tokens, int64_t head) {
  const int64_t per_head = args.heads / args.k.heads, stride = padded(args.k.dim, LANES);
  Scratch<T>& mine = scratch<T>();
  for (int64_t l = 0; l < tokens * per_head; l++) {
    T* to = out.row(token + l / per_head, head * per_head + l % per_head);
    const F16 inverse = set1(1.0f / sum(load(mine.totals.data() + l * LANES)));
    lanes(out.width, [&](int64_t i, int n) { set(to + i, load(mine.out.data() + l * stride + i) * inverse, n); });
  }
}

template <class T>
void attend_row_tile(const AttentionArgs& args, const RowTile& tile, int64_t token, int64_t length, int64_t head,
                     const Rows<T>& q, const Rows<T>& k, const Rows<T>& v, const Rows<T>& out) {
  PackedRow<T>& row = packed_row<T>();
  if (row.row != tile.row || row.head != head) {
    pack_row(token, length, head, args.k.dim, padded(args.k.dim, LANES), k, v, row);
    row.row = tile.row, row.head = head;
  }
  const int64_t count = tile.tokens * (args.heads / args.k.heads);
  const Lines lines{0, count, tile.at};
  begin_rows(args, q, token + tile.at, tile.tokens, head, padded(count, STRIP));
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) {
    if (count <= FewAmxLines::MAX)
      attend_row(args, lines, length, row, FewAmxLines{count});
    else
      attend_row(args, lines, length, row, AmxLines{});
  } else
#endif
    attend_row(args, lines, length, row, VectorLines<T>{});
  end_rows(args, out, token + tile.at, tile.tokens, head);
}

// A row of one tile is computed for all heads at once if present are enough other rows; for a longer one each head's
// tiles are consecutive, so that its keys and values are packed once.
inline void split_row_tiles(const StepRows& rows, int64_t heads, int64_t most, int64_t enough,
                            std::vector<RowTile>& tiles) {
  tiles.clear();
  for (int64_t r = 0; r < rows.count; r++) {
    const int64_t length = rows.query_starts[r + 1] - rows.query_starts[r];
    const int64_t step = length <= most && rows.count >= enough ? heads : 1;
    for (int64_t head = 0; head < heads; head += step)
      for (int64_t at = 0; at < length; at += most) tiles.push_back({r, at, std::min(most, length - at), head, head + step});
  }
}

template <class T>
void attend_rows(Worker& worker, const RowAttentionArgs& given, const StepRows& rows, Rows<T> q, Rows<T> k, Rows<T> v,
                 Rows<T> out) {
  AttentionArgs args{};
  args.k.heads = given.kv_heads, args.k.dim = args.v.dim = padded_dim<T>(given.dim);
  args.heads = given.heads, args.scale = given.scale, args.window = given.window;
  args.biases = given.biases, args.reach = given.reach;
  args.ahead = given.window ? given.window - 1 : WITHOUT_END;
  PackedRow<T>& row = packed_row<T>();
  row.row = -1;  // discards what was packed for another step
  const int64_t most = std::max<int64_t>(1, MAX_LINES / (given.heads / given.kv_heads));
  split_row_tiles(rows, given.kv_heads, most, ITEMS_PER_THREAD * worker.size, row.tiles);
  worker.each(static_cast<int64_t>(row.tiles.size()), [&](int64_t i) {
    const RowTile& tile = row.tiles[i];
    const int64_t token = rows.query_starts[tile.row], length = rows.query_starts[tile.row + 1] - token;
    for (int64_t head = tile.first_head; head < tile.last_head; head++)
      attend_row_tile(args, tile, token, length, head, q, k, v, out);
  });
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  _tile_release();
#endif
}

}  // namespace quire
