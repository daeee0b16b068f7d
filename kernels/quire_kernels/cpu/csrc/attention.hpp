// Attention of a step's tokens to the pages of their own seqs, 64 positions at a time with a running maximum and sum
// (online softmax: Milakov & Gimelshein 2018; Rabe & Staats 2021; FlashAttention, Dao et al. 2022).
//
// A tile is some tokens of one row of the step with all the query heads that read one key-value head: its lines are
// (token, head) pairs. Lines never see each other, and blocks of positions begin at position 0 whatever the tile: a
// line's result does not depend on how the step was cut.
#pragma once
#include <utility>
#include <vector>

#include "pages.hpp"
#include "product.hpp"
#include "room.hpp"

namespace quire {

constexpr int BLOCK = 64;  // positions
constexpr int GROUPS = BLOCK / GROUP;
constexpr int64_t STRIP = 32;  // lines that go through a block together
constexpr int64_t MOST_LINES = 256, MOST_TOKENS = 32;

// The rows of a step, as in `quire_kernels.ops.Rows`.
struct StepRows {
  const int32_t *query_starts, *contexts, *pages;
  int64_t count, pages_stride;
};

struct AttentionArgs {
  Pool k, v;
  int64_t heads;
  float scale, softcap;  // softcap 0: none
  int64_t window;        // 0: none
};

// shared: blocks at the beginning that all tokens see on the same pages; then each token is of a row of its own, the
// first of row `row`. Otherwise all are of that row, the first one at `position`.
struct Tile {
  int64_t row, token, tokens, position, shared;
};

// Memory of one thread, kept between calls.
template <class T>
struct Scratch {
  Room<T> q, values, weights;
  Room<float> out, top, totals, scores;
  std::vector<Tile> tiles;

  void fit(int64_t lines, int64_t dim) {
    q.fit(lines * dim), out.fit(lines * dim), values.fit(BLOCK * dim);
    top.fit(lines), totals.fit(lines * LANES);
    weights.fit(2 * STRIP * BLOCK), scores.fit(2 * STRIP * BLOCK);
  }
};

template <class T>
inline Scratch<T>& scratch() {
  static thread_local Scratch<T> mine;
  return mine;
}

// The keys and values of up to 64 positions of one head.
template <class T>
struct Block {
  int64_t begin;  // position of the first
  int count;      // how many there are
  const T* keys[GROUPS];
  const T* values[GROUPS];  // rows of `stride` units: [8 or 16 position units][stride]
  const T* next_keys[GROUPS];  // as much of what comes next in memory, to be asked for in time
  const T* next_values[GROUPS];
  const int8_t* next_key_bytes[GROUPS];  // instead, where pages hold bytes
  const int8_t* next_value_bytes[GROUPS];
  bool has_scales = false;  // for each position, that its score and its weight are multiplied by
  alignas(64) float key_scales[BLOCK], value_scales[BLOCK];
  int groups() const { return (count + GROUP - 1) / GROUP; }
};

// How lines of a tile are computed with vectors. Four lines at a time share what is loaded.
template <class T>
struct VectorLines {
  static constexpr int P = PER_UNIT<T>;

  // q [lines, dim] · keys -> scores [lines, BLOCK]. All groups are computed: those that are not there repeat the last.
  template <int LINES>
  static void scores_of(const T* q, int64_t dim, const Block<T>& block, float* scores) {
    F16 acc[LINES][GROUPS];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * GROUPS; i++) acc[i / GROUPS][i % GROUPS] = zero();
    const T* keys[GROUPS];
    for (int g = 0; g < GROUPS; g++) keys[g] = block.keys[std::min(g, block.groups() - 1)];
    const int64_t units = dim / P;
    for (int64_t u = 0, asked = 0, from = 0; u < units; u++) {
      U16 k[GROUPS];
      const T* next = block.next_keys[asked] + (u - from) * GROUPS * GROUP * P;
#pragma GCC unroll 4
      for (int g = 0; g < GROUPS; g++) {
        k[g] = load_units(keys[g] + u * GROUP * P);
        ask_for(next + g * GROUP * P);
      }
      if ((u + 1) * GROUPS >= (asked + 1) * units) asked++, from = u + 1;  // one group after the other, as they lie
#pragma GCC unroll 4
      for (int l = 0; l < LINES; l++) {
        const U16 a = same_unit(q + l * dim + u * P);
#pragma GCC unroll 4
        for (int g = 0; g < GROUPS; g++) acc[l][g] = dot(acc[l][g], a, k[g], T{});
      }
    }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * GROUPS; i++) store(scores + i / GROUPS * BLOCK + i % GROUPS * GROUP, acc[i / GROUPS][i % GROUPS]);
  }

  // out [lines, stride] += weights [lines, BLOCK] · values, for PIECES vectors of every line
  template <int LINES, int PIECES>
  static void add_piece(const T* weights, const Block<T>& block, int64_t stride, int64_t d, float* out) {
    F16 acc[LINES][PIECES];
#pragma GCC unroll 16
    for (int i = 0; i < LINES * PIECES; i++)
      acc[i / PIECES][i % PIECES] = load(out + i / PIECES * stride + d + i % PIECES * LANES);
    for (int g = 0; g < block.groups(); g++)
      for (int u = 0; u < GROUP / P; u++) {
        const T* row = block.values[g] + (u * stride + d) * P;
        U16 v[PIECES];
#pragma GCC unroll 4
        for (int i = 0; i < PIECES; i++) {
          v[i] = load_units(row + i * LANES * P);
          ask_for(block.next_values[g] + (u * stride + d + i * LANES) * P);
        }
#pragma GCC unroll 4
        for (int l = 0; l < LINES; l++) {
          const U16 a = same_unit(weights + l * BLOCK + g * GROUP + u * P);
#pragma GCC unroll 4
          for (int i = 0; i < PIECES; i++) acc[l][i] = dot(acc[l][i], a, v[i], T{});
        }
      }
#pragma GCC unroll 16
    for (int i = 0; i < LINES * PIECES; i++)
      store(out + i / PIECES * stride + d + i % PIECES * LANES, acc[i / PIECES][i % PIECES]);
  }

  template <int LINES>
  static void add_values(const T* weights, const Block<T>& block, int64_t stride, float* out) {
    int64_t d = 0;
    for (; d + 4 * LANES <= stride; d += 4 * LANES) add_piece<LINES, 4>(weights, block, stride, d, out);
    for (; d < stride; d += LANES) add_piece<LINES, 1>(weights, block, stride, d, out);
  }

  template <class Four, class Three, class Two, class One>
  static void by_four(int64_t lines, Four&& four, Three&& three, Two&& two, One&& one) {
    int64_t l = 0;
    for (; l + 4 <= lines; l += 4) four(l);
    if (lines - l == 3) three(l);
    if (lines - l == 2) two(l);
    if (lines - l == 1) one(l);
  }
  void scores(const T* q, int64_t lines, int64_t dim, const Block<T>& b, float* s) {
    by_four(
        lines, [&](int64_t l) { scores_of<4>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<3>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<2>(q + l * dim, dim, b, s + l * BLOCK); },
        [&](int64_t l) { scores_of<1>(q + l * dim, dim, b, s + l * BLOCK); });
  }
  void values(const T* w, int64_t lines, const Block<T>& b, int64_t stride, float* o) {
    by_four(
        lines, [&](int64_t l) { add_values<4>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<3>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<2>(w + l * BLOCK, b, stride, o + l * stride); },
        [&](int64_t l) { add_values<1>(w + l * BLOCK, b, stride, o + l * stride); });
  }
  static constexpr bool COPIES = false;
};

// `there` positions of a group of values, rows padded to `stride`; the positions that are not there become zero,
// whatever their slots hold: 0 · NaN would be NaN.
template <class T>
void copy_values(const T* values, int there, int64_t dim, int64_t stride, T* copy) {
  constexpr int P = PER_UNIT<T>;
  for (int u = 0; u < GROUP / P; u++) {
    T* row = copy + u * stride * P;
    std::memcpy(row, values + u * dim * P, dim * P * sizeof(T));
    if (stride > dim) std::memset(static_cast<void*>(row + dim * P), 0, (stride - dim) * P * sizeof(T));
    for (int p = 0; p < P; p++)
      if (u * P + p >= there)
        for (int64_t d = 0; d < dim; d++) row[d * P + p] = T{};
  }
}

constexpr float HIDDEN = -1e30f;  // a score so low that its weight is 0; finite, so that differences are numbers

constexpr float SLACK = 8;  // a line's weights may become as large as 2 to the power of this

// What scores go through before their differences become powers of 2: e^s = 2^(s · log2 e). Maxima are of raw scores.
struct Softness {
  float inner, cap;  // s = cap · tanh(inner · s), if cap
  float unit;        // what a raw score is multiplied by in the end
  float slack;       // how far a raw score may be above the maximum that is kept
  bool bends;        // whether there is anything to do but multiply
  explicit Softness(const AttentionArgs& args)
      : inner(args.softcap != 0 ? args.scale / args.softcap : args.scale > 0 ? 1 : args.scale),
        cap(args.softcap),
        unit(args.softcap == 0 && args.scale > 0 ? args.scale * LOG2_E : LOG2_E),
        slack(SLACK / unit),
        bends(cap != 0 || inner != 1) {}
};

// A new maximum for a line whose scores have outgrown the one that was kept: its sums and its output follow. This is
// rare, because the maximum may be exceeded by SLACK (as in FlashAttention-4): float32 has room enough above 1.
inline void raise(const Softness& soft, F16 best, float& top, float* totals, float* out, int64_t stride) {
  const float now = largest(best);
  const F16 shrink = exp2<float>(set1((top - now) * soft.unit));  // 0 at first
  for (int64_t i = 0; i < stride; i += LANES) store(out + i, load(out + i) * shrink);
  store(totals, load(totals) * shrink);
  top = now;
}

// Scores [BLOCK] of one line to weights; the line's running maximum, sums (lane by lane) and output follow.
// from, to: the positions of the block that it may see; WHOLE: all of them.
template <class T, bool WHOLE>
inline void soften(const Softness& soft, const Block<T>& block, const float* scores, int from, int to, float& top,
                   float* totals, T* weights, float* out, int64_t stride) {
  F16 s[GROUPS];
  for (int g = 0; g < GROUPS; g++) s[g] = load(scores + g * GROUP);
  if (block.has_scales)
    for (int g = 0; g < GROUPS; g++) s[g] = s[g] * load(block.key_scales + g * GROUP);
  if (soft.bends)
    for (int g = 0; g < GROUPS; g++) {
      s[g] = s[g] * set1(soft.inner);
      if (soft.cap != 0) s[g] = tanh(s[g]) * set1(soft.cap);
    }
  if (!WHOLE)
    for (int g = 0; g < GROUPS; g++)
      s[g] = keep(s[g], std::clamp(from - g * GROUP, 0, GROUP), std::clamp(to - g * GROUP, 0, GROUP), set1(HIDDEN));
  const F16 best = max(max(s[0], s[1]), max(s[2], s[3]));
  if (any_above(best, top + soft.slack)) raise(soft, best, top, totals, out, stride);
  const F16 zero_at = set1(-top * soft.unit), unit = set1(soft.unit);
  F16 total = load(totals);
  for (int g = 0; g < GROUPS; g += 2) {
    F16 w0 = exp2<T>(fma(s[g], unit, zero_at)), w1 = exp2<T>(fma(s[g + 1], unit, zero_at));
    total = total + (w0 + w1);
    if (block.has_scales) {
      w0 = w0 * load(block.value_scales + g * GROUP);
      w1 = w1 * load(block.value_scales + (g + 1) * GROUP);
    }
    store(weights + g * GROUP, w0, w1);
  }
  store(totals, total);
}

}  // namespace quire

#include "attention_int8.hpp"

namespace quire {

// Where a block's keys and values lie; values are copied where the tile's lines want that, or not all are there.
template <class T, bool COPIES>
void find(const AttentionArgs& args, const int32_t* pages, int64_t kv_head, int64_t end, T* copies, Block<T>& block) {
  if (args.k.holds_bytes) return find_bytes(args, pages, kv_head, end, block);
  const int64_t dim = args.k.dim, stride = padded(dim, LANES), size = args.k.page_size;
  block.count = static_cast<int>(std::min<int64_t>(BLOCK, end - block.begin));
  for (int g = 0; g < block.groups(); g++) {
    const int64_t position = block.begin + g * GROUP, page = pages[position / size], at = position % size / GROUP;
    block.keys[g] = args.k.group<T>(page, at, kv_head);
    block.values[g] = args.v.group<T>(page, at, kv_head);
    const int there = std::min<int>(GROUP, block.count - g * GROUP);
    if (!COPIES && there == GROUP && stride == dim) continue;
    copy_values(block.values[g], there, dim, stride, copies + g * GROUP * stride);
    block.values[g] = copies + g * GROUP * stride;
  }
  if (COPIES)  // what tiles read of a block that is not full must be finite
    std::fill(copies + block.groups() * GROUP * stride, copies + BLOCK * stride, T{});
}

// Positions from `begin` on of some seq.
struct Span {
  const int32_t* pages;
  int64_t begin, end;
};

// What is read after this block, as it lies in memory: part `part` of `parts` of the next block's groups, all heads of a
// group side by side. Memory gives more to those who read it in order.
template <class T>
void announce(const AttentionArgs& args, const Span& next, int64_t part, int64_t parts, Block<T>& block) {
  for (int g = 0; g < GROUPS; g++) {
    const int64_t chunk = (part * GROUPS + g) * args.k.heads / parts, head = chunk % args.k.heads;
    const int64_t position = std::min(next.begin + chunk / args.k.heads * GROUP, next.end - 1);
    const int64_t page = next.pages[position / args.k.page_size], at = position % args.k.page_size / GROUP;
    if (args.k.holds_bytes) {
      block.next_key_bytes[g] = ByteGroup::of(args.k, page, at, head).bytes;
      block.next_value_bytes[g] = ByteGroup::of(args.v, page, at, head).bytes;
      continue;
    }
    block.next_keys[g] = args.k.group<T>(page, at, head);
    block.next_values[g] = args.v.group<T>(page, at, head);
  }
}

}  // namespace quire

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
#include "attention_amx.hpp"
#endif

namespace quire {

// Some lines of a tile: `count` of them, from `at` on among those of every head, the first one's token at `position`.
struct Lines {
  int64_t at, count, position;
};

// The lines of one head that go through a block together: `count` of them from `at` on in memory.
struct Strip {
  int64_t at, count, position, heads_left;  // of the first line: its token's position, and how many lines that still has
};

// Scores of a strip to weights, line by line.
template <class T>
void soften_strip(const AttentionArgs& args, const Softness& soft, Strip& strip, const Block<T>& block, Scratch<T>& mine,
                  const float* scores, T* weights) {
  const int64_t per_head = args.heads / args.k.heads, stride = padded(args.k.dim, LANES);
  const bool whole = args.window == 0 && strip.position + 1 >= block.begin + BLOCK;
  for (int64_t l = 0; l < strip.count; l++, scores += BLOCK, weights += BLOCK) {
    const int64_t at = strip.at + l;
    float &top = mine.top[at], *totals = mine.totals.data() + at * LANES, *out = mine.out.data() + at * stride;
    if (whole) {
      soften<T, true>(soft, block, scores, 0, BLOCK, top, totals, weights, out, stride);
    } else {
      const int64_t oldest = args.window ? strip.position - args.window + 1 : 0;
      const int to = static_cast<int>(std::clamp<int64_t>(strip.position + 1 - block.begin, 0, BLOCK));
      const int from = static_cast<int>(std::clamp<int64_t>(oldest - block.begin, 0, to));
      if (from < to)
        soften<T, false>(soft, block, scores, from, to, top, totals, weights, out, stride);
      else
        std::fill_n(weights, BLOCK, T{});
    }
    if (--strip.heads_left == 0) strip.position++, strip.heads_left = per_head;
  }
}

// One block of one head, whose lines begin at `first`: scores, weights, sums of values. The scores of the next strip are
// begun before those of this one are softened: tiles and vectors work side by side.
template <class T, class Kind>
void attend_block(const AttentionArgs& args, const Lines& lines, const Block<T>& block, Scratch<T>& mine, int64_t first,
                  Kind& kind) {
  const int64_t dim = args.k.dim, stride = padded(dim, LANES);
  const Softness soft(args);
  const auto padded_count = [&](int64_t strip) { return Kind::COPIES ? STRIP : std::min(STRIP, lines.count - strip); };
  const auto score = [&](int64_t strip, int turn) {
    kind.scores(mine.q.data() + (first + lines.at + strip) * dim, padded_count(strip), dim, block,
                mine.scores.data() + turn * STRIP * BLOCK);
  };
  Strip strip{first + lines.at, 0, lines.position, args.heads / args.k.heads};
  score(0, 0);
  for (int64_t begin = 0, turn = 0; begin < lines.count; begin += STRIP, turn = 1 - turn) {
    if (begin + STRIP < lines.count) score(begin + STRIP, 1 - turn);
    strip.at = first + lines.at + begin, strip.count = std::min(STRIP, lines.count - begin);
    T* weights = mine.weights.data() + turn * STRIP * BLOCK;
    soften_strip(args, soft, strip, block, mine, mine.scores.data() + turn * STRIP * BLOCK, weights);
    const int64_t some = padded_count(begin);
    std::fill_n(weights + strip.count * BLOCK, (some - strip.count) * BLOCK, T{});
    kind.values(weights, some, block, stride, mine.out.data() + strip.at * stride);
  }
}

// Lines of the key-value heads first … last-1 and the positions of a span. Block by block all heads, so that pages are
// read as they lie. stride: lines of a head in memory. after: what is read next.
template <class T, class Kind>
void attend_span(const AttentionArgs& args, const Lines& lines, const Span& span, const Span& after, int64_t first,
                 int64_t last, int64_t stride, Kind kind) {
  Scratch<T>& mine = scratch<T>();
  Block<T> block;
  block.has_scales = args.k.holds_bytes;
  for (block.begin = span.begin; block.begin < span.end; block.begin += BLOCK) {
    const bool more = block.begin + BLOCK < span.end;
    const Span next = more ? Span{span.pages, block.begin + BLOCK, span.end} : after;
    for (int64_t head = first; head < last; head++) {
      announce<T>(args, next, head - first, last - first, block);
      find<T, Kind::COPIES>(args, span.pages, head, span.end, mine.values.data(), block);
      attend_block<T>(args, lines, block, mine, (head - first) * stride, kind);
    }
  }
}

template <class T>
void attend_lines(const AttentionArgs& args, const Lines& lines, const Span& span, const Span& after, int64_t first,
                  int64_t last, int64_t stride) {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  if constexpr (sizeof(T) == 2) {
    if (args.k.dim % 32 == 0 && lines.count <= FewAmxLines::MOST)
      return attend_span<T>(args, lines, span, after, first, last, stride, FewAmxLines{lines.count});
    if (args.k.dim % 32 == 0) return attend_span<T>(args, lines, span, after, first, last, stride, AmxLines{});
  }
#endif
  attend_span<T>(args, lines, span, after, first, last, stride, VectorLines<T>{});
}

// The queries of a tile, and nothing attended to yet.
template <class T>
void begin_tile(const AttentionArgs& args, const Tile& tile, int64_t first, int64_t last, int64_t stride, Rows<T> q) {
  const int64_t dim = args.k.dim, per_head = args.heads / args.k.heads, heads = last - first;
  Scratch<T>& mine = scratch<T>();
  mine.fit(heads * stride + STRIP, padded(dim, LANES));
  for (int64_t h = 0; h < heads; h++) {
    T* to = mine.q.data() + h * stride * dim;
    for (int64_t t = 0; t < tile.tokens; t++, to += per_head * dim)
      std::memcpy(to, q.row(tile.token + t, (first + h) * per_head), per_head * dim * sizeof(T));
    std::fill_n(to, (stride - tile.tokens * per_head) * dim, T{});
  }
  std::fill_n(mine.out.data(), (heads * stride + STRIP) * padded(dim, LANES), 0.0f);
  std::fill_n(mine.top.data(), heads * stride + STRIP, HIDDEN);
  std::fill_n(mine.totals.data(), (heads * stride + STRIP) * LANES, 0.0f);
}

template <class T>
void end_tile(const AttentionArgs& args, const Tile& tile, int64_t first, int64_t last, int64_t stride, Rows<T> out) {
  const int64_t dim = args.k.dim, per_head = args.heads / args.k.heads, width = padded(dim, LANES);
  Scratch<T>& mine = scratch<T>();
  for (int64_t head = first; head < last; head++)
    for (int64_t l = 0; l < tile.tokens * per_head; l++) {
      const int64_t at = (head - first) * stride + l;
      T* to = out.row(tile.token + l / per_head, head * per_head + l % per_head);
      const F16 share = set1(1.0f / sum(load(mine.totals.data() + at * LANES)));
      lanes(dim, [&](int64_t i, int n) { set(to + i, load(mine.out.data() + at * width + i) * share, n); });
    }
}

// The positions that all tokens of a tile read, or all that they read if they share nothing.
inline Span span_of(const AttentionArgs& args, const StepRows& rows, const Tile& tile) {
  const int32_t* pages = rows.pages + tile.row * rows.pages_stride;
  if (tile.shared) return {pages, 0, tile.shared * BLOCK};
  const int64_t oldest = args.window ? std::max<int64_t>(0, tile.position - args.window + 1) : 0;
  return {pages, oldest / BLOCK * BLOCK, tile.position + tile.tokens};
}

// after: what this thread will read next, as far as that is known.
template <class T>
void attend_tile(const AttentionArgs& args, const StepRows& rows, const Tile& tile, const Span& after, int64_t first,
                 int64_t last, Rows<T> q, Rows<T> out) {
  const int64_t per_head = args.heads / args.k.heads, count = tile.tokens * per_head, stride = padded(count, STRIP);
  begin_tile(args, tile, first, last, stride, q);
  const Span span = span_of(args, rows, tile);
  if (tile.shared == 0) {
    attend_lines<T>(args, {0, count, tile.position}, span, after, first, last, stride);
  } else {
    const auto rest = [&](int64_t t) {
      return Span{span.pages + t * rows.pages_stride, span.end, rows.contexts[tile.row + t]};
    };
    attend_lines<T>(args, {0, count, span.end}, span, rest(0), first, last, stride);
    for (int64_t t = 0; t < tile.tokens; t++) {
      const Span own = rest(t);
      attend_lines<T>(args, {t * per_head, per_head, own.end - 1}, own, t + 1 < tile.tokens ? rest(t + 1) : after, first,
                      last, stride);
    }
  }
  end_tile(args, tile, first, last, stride, out);
}

constexpr int64_t FEWEST_SHARED = 2;  // blocks that are worth being read once for several rows

// How many rows from `row` on, of one token each, begin on the same pages, and how many blocks they share.
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
    if (blocks < FEWEST_SHARED) break;
    shared = blocks;
  }
  return {count, shared};
}

// The tiles of a step. Longer contexts come first within a row.
inline void cut(const StepRows& rows, const AttentionArgs& args, std::vector<Tile>& tiles) {
  tiles.clear();
  const int64_t per_head = args.heads / args.k.heads;
  const int64_t most = std::max<int64_t>(1, std::min(MOST_TOKENS, MOST_LINES / per_head));
  const int64_t together = BLOCK % args.k.page_size || args.window ? 1 : std::max<int64_t>(1, STRIP / per_head);
  for (int64_t r = 0; r < rows.count;) {
    const int64_t first = rows.query_starts[r], length = rows.query_starts[r + 1] - first;
    const int64_t start = rows.contexts[r] - length;
    if (length == 1 && together > 1) {
      const auto [count, shared] = alike(rows, r, together, args.k.page_size);
      if (count > 1) {
        tiles.push_back({r, first, count, start, shared});
        r += count;
        continue;
      }
    }
    for (int64_t at = (length + most - 1) / most * most - most; at >= 0; at -= most)  // none if there are no tokens
      tiles.push_back({r, first + at, std::min(most, length - at), start + at, 0});
    r++;
  }
}

constexpr int64_t ITEMS_PER_THREAD = 6;  // with so many, threads finish at about the same time

template <class T>
void attend(Worker& worker, const AttentionArgs& args, const StepRows& rows, Rows<T> q, Rows<T> out) {
  std::vector<Tile>& tiles = scratch<T>().tiles;
  cut(rows, args, tiles);
  const int64_t count = static_cast<int64_t>(tiles.size());
  const int64_t heads = count >= ITEMS_PER_THREAD * worker.size && count >= rows.count ? args.k.heads : 1;
  worker.each(count * (args.k.heads / heads), [&](int64_t i) {
    const int64_t parts = args.k.heads / heads, head = i % parts * heads;
    const Tile& tile = tiles[i / parts];
    const Span after = span_of(args, rows, tiles[std::min(count - 1, (i + 1) / parts)]);
    attend_tile<T>(args, rows, tile, after, head, head + heads, q, out);
  });
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
  _tile_release();
#endif
}

}  // namespace quire
