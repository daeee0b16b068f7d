// The lines of a tile and one block of positions: scores, weights, sums of values.
#pragma once
#include "attention/attention_vector.hpp"
#include "sampling/softmax.hpp"

namespace quire {

// Some lines of a tile: `count` lines starting at `at` among those of one query head, or of some that are computed
// together; the token of the first is at `position`. ends: ends of the visible positions of that token and the
// following ones, unless implied by their positions.
struct Lines {
  int64_t at, count, position;
  const int32_t* ends = nullptr;

  Lines of(int64_t queries) const { return {at * queries, count * queries, position, ends}; }
};

// The lines of one head that are processed together in a block: `count` lines starting at `at` in memory.
struct Strip {
  // position of the first line's token, and number of remaining lines of that token
  int64_t at, count, position, heads_left;
  const int32_t* ends;                      // as in `Lines`, starting with that token
};

// Stores the weights of one line in the form that `values` reads.
template <class Kind, class T>
inline void keep_line(const F16* w, [[maybe_unused]] const Block<T>& block, RowElement<T>* weights, [[maybe_unused]] float& step) {
  if constexpr (Kind::BYTES) {
    step = halve_weights(w, block.finite, reinterpret_cast<uint8_t*>(weights));
  } else {
    for (int g = 0; g < GROUPS; g += 2) store(weights + g * GROUP, w[g], w[g + 1]);
  }
}

// Converts the scores of a strip to weights, line by line.
template <class Kind, class T>
void softmax_lines(const AttentionArgs& args, const ScoreTransform& soft, Strip strip, const Block<T>& block,
                   Scratch<T>& mine, const float* scores, RowElement<T>* weights, float* steps) {
  const int64_t stride = padded(args.v.dim, LANES);
  LineBias bias;
  alignas(64) float hidden[BLOCK] = {};
  for (int64_t l = 0; l < strip.count; l++, scores += BLOCK, weights += BLOCK) {
    const int64_t at = strip.at + l, head = block.head + block.queries - strip.heads_left;
    float &top = mine.top[at], *totals = mine.totals.data() + at * LANES, *out = mine.out.data() + at * stride;
    if (soft.slopes) {
      bias.slope = soft.raw(soft.slopes[head]);
      bias.distance = static_cast<float>(block.begin - strip.position);
    }
    if (args.biases) {
      bias.unit = soft.raw(1.0f);
      bias.biases = args.biases_of(head, block.begin - strip.position);
    }
    bool seen = true;
    if (args.stripes) {
      const int64_t end = std::min<int64_t>(block.count, strip.position + args.ahead + 1 - block.begin);
      seen = args.stripes->mark(strip.position, head, block.begin, 0, static_cast<int>(end), HIDDEN, hidden);
      bias.unit = 1, bias.biases = hidden;
    }
    const int64_t end = strip.ends ? *strip.ends : strip.position + args.ahead + 1;
    const int to = static_cast<int>(std::clamp<int64_t>(end - block.begin, 0, block.count));
    const int from = static_cast<int>(std::clamp<int64_t>(args.oldest(strip.position) - block.begin, 0, to));
    const auto keep_weights = [&](const F16* w) { keep_line<Kind>(w, block, weights, steps[l]); };
    if (seen && from < to)
      softmax_line<T, false>(soft, bias, block, scores, from, to, top, totals, out, stride, keep_weights);
    else
      std::fill_n(weights, BLOCK, RowElement<T>{}), steps[l] = 0;
    if (--strip.heads_left > 0) continue;
    strip.position++, strip.heads_left = block.queries;
    if (strip.ends) strip.ends++;
  }
}

// `softmax_lines` for lines that see the whole block and whose scores are only multiplied: in so short a loop the processor
// has many lines in flight.
template <class Kind, class T>
void softmax_whole_lines(const AttentionArgs& args, const ScoreTransform& soft, const Strip& strip, const Block<T>& block,
                         Scratch<T>& mine, const float* scores, RowElement<T>* weights, float* steps) {
  const int64_t stride = padded(args.v.dim, LANES);
  float *tops = mine.top.data() + strip.at, *totals = mine.totals.data() + strip.at * LANES;
  float* out = mine.out.data() + strip.at * stride;
  for (int64_t l = 0; l < strip.count; l++) {
    if constexpr (Kind::COPIES) Kind::prefetch_values(block, l, stride);
    const auto keep_weights = [&](const F16* w) { keep_line<Kind>(w, block, weights + l * BLOCK, steps[l]); };
    softmax_line<T, true>(soft, {}, block, scores + l * BLOCK, 0, BLOCK, tops[l], totals + l * LANES, out + l * stride,
                          stride, keep_weights);
  }
}

template <class Kind, class T>
void softmax_strip(const AttentionArgs& args, const ScoreTransform& soft, const Strip& strip, const Block<T>& block,
                   Scratch<T>& mine, const float* scores, RowElement<T>* weights, float* steps) {
  const int64_t last = (strip.count - 1 + block.queries - strip.heads_left) / block.queries;
  const bool whole = block.count == BLOCK && strip.position + args.ahead + 1 >= block.begin + BLOCK &&
                     args.oldest(strip.position + last) <= block.begin;
  if (whole && !soft.is_nonlinear)
    softmax_whole_lines<Kind>(args, soft, strip, block, mine, scores, weights, steps);
  else
    softmax_lines<Kind>(args, soft, strip, block, mine, scores, weights, steps);
}

// `count` blocks of one head, whose lines begin at `first`: scores, weights, sums of values, all blocks that a strip sees for
// one strip after another. heads_left: as in `Strip`, of the first line.
template <class T, class Kind>
void attend_blocks(const AttentionArgs& args, const Lines& lines, const Block<T>* blocks, int64_t count, Scratch<T>& mine,
                   int64_t first, Kind& kind, int64_t heads_left) {
  const int64_t dim = args.k.dim, stride = padded(args.v.dim, LANES), queries = blocks->queries, before = queries - heads_left;
  const ScoreTransform soft(args);
  float *scores = mine.scores.data(), *steps = mine.steps.data();
  RowElement<T>* weights = mine.weights.data();
  for (int64_t begin = 0; begin < lines.count; begin += STRIP) {
    const int64_t token = (begin + before) / queries, present = std::min(STRIP, lines.count - begin);
    const Strip strip{first + lines.at + begin, present, lines.position + token, (token + 1) * queries - begin - before,
                      lines.ends ? lines.ends + token : nullptr};
    const int64_t newest = lines.position + (begin + present - 1 + before) / queries + args.ahead, at = strip.at;
    const int64_t height = Kind::COPIES ? STRIP : present;
    for (int64_t b = 0; b < count && (lines.ends || blocks[b].begin <= newest); b++) {
      kind.scores(mine, at, height, dim, blocks[b], scores);
      softmax_strip<Kind>(args, soft, strip, blocks[b], mine, scores, weights, steps);
      std::fill_n(weights + present * BLOCK, (height - present) * BLOCK, RowElement<T>{});
      std::fill_n(steps + present, height - present, 0.0f);
      kind.values(weights, steps, height, blocks[b], stride, mine.out.data() + at * stride);
    }
  }
}

template <class T, class Kind>
void attend_block(const AttentionArgs& args, const Lines& lines, const Block<T>& block, Scratch<T>& mine, int64_t first,
                  Kind& kind, int64_t heads_left) {
  attend_blocks(args, lines, &block, 1, mine, first, kind, heads_left);
}

#if defined(__AVX512F__)

// Scores and weights of the band that begins with line `l` of `lines`; returns how many groups its lines see.
template <class T>
int weigh_band(const AttentionArgs& args, const ScoreTransform& soft, const Lines& lines, const Block<T>& block, Scratch<T>& mine,
               int64_t first, int64_t l, const void* ahead, RowElement<T>* weights) {
  using Kind = ManyLines<T>;
  const int64_t at = first + lines.at + l, token = l / block.queries, newest = (l + Kind::LINES - 1) / block.queries;
  const RowElement<T>* q = mine.q.data() + at * args.k.dim;
  float* scores = mine.scores.data();
  Strip strip{at, Kind::LINES, lines.position + token, (token + 1) * block.queries - l, lines.ends ? lines.ends + token : nullptr};
  const int64_t end = lines.ends ? *std::max_element(strip.ends, lines.ends + newest + 1) : lines.position + newest + args.ahead + 1;
  const auto groups = static_cast<int>(std::clamp<int64_t>((end - block.begin + GROUP - 1) / GROUP, 0, block.groups()));
  if (groups == GROUPS)
    Kind::score(q, args.k.dim, block, ahead, scores);
  else
    for (int g = 0; g < groups; g++) Kind::score_group(q, args.k.dim, block.keys[g], scores + g * GROUP);
  if (groups) softmax_strip<Kind>(args, soft, strip, block, mine, scores, weights, mine.steps.data());
  return groups;
}

constexpr int UNKNOWN = -1;

// `weigh_band` where scores need no transformation; UNKNOWN, and no weights, where that is not simple: where the end of
// what lines see does not follow from their positions, a line sees nothing, or a maximum rises.
template <class T>
int weigh_plain(const AttentionArgs& args, const ScoreTransform& soft, const Lines& lines, const Block<T>& block, Scratch<T>& mine,
                int64_t first, int64_t l, const void* ahead, RowElement<T>* weights) {
  using Kind = ManyLines<T>;
  const int64_t at = first + lines.at + l;
  const int queries = static_cast<int>(block.queries), token = static_cast<int>(l) / queries;
  const int64_t end = lines.position + token + args.ahead + 1 - block.begin;  // of what the first line sees
  const bool all = block.count == BLOCK && end >= BLOCK;
  if (!all && (lines.ends || end < 1)) return UNKNOWN;
  const RowElement<T>* q = mine.q.data() + at * args.k.dim;
  float *tops = mine.top.data() + at, *totals = mine.totals.data() + at * LANES;
  int visible[Kind::LINES], groups = GROUPS;
  if (!all) {
    for (int i = 0, left = (token + 1) * queries - static_cast<int>(l), t = 0; i < Kind::LINES; i++) {
      visible[i] = static_cast<int>(std::min<int64_t>(end + t, block.count));
      if (--left == 0) t++, left = queries;
    }
    groups = (visible[Kind::LINES - 1] + GROUP - 1) / GROUP;
  }
  const bool starts = *tops == HIDDEN;
  const auto done = [&](auto* first, auto* next) {
    return (starts ? first : next)(q, args.k.dim, block, ahead, soft, visible, tops, totals, weights) ? groups : UNKNOWN;
  };
  if (all) return done(&Kind::template weigh<4, true, false>, &Kind::template weigh<4, false, false>);
  if (groups == 4) return done(&Kind::template weigh<4, true, true>, &Kind::template weigh<4, false, true>);
  if (groups == 3) return done(&Kind::template weigh<3, true, true>, &Kind::template weigh<3, false, true>);
  if (groups == 2) return done(&Kind::template weigh<2, true, true>, &Kind::template weigh<2, false, true>);
  return done(&Kind::template weigh<1, true, true>, &Kind::template weigh<1, false, true>);
}

// `attend_block` for tiles of many lines.
template <class T>
void attend_bands(const AttentionArgs& args, const Lines& lines, const Block<T>& block, Scratch<T>& mine, int64_t first) {
  using Kind = ManyLines<T>;
  constexpr int64_t COUNT = Kind::LINES;
  const int64_t dim = args.k.dim, stride = padded(args.v.dim, LANES), bands = lines.count / COUNT;
  const ScoreTransform soft(args);
  const bool plain = !args.window && !args.chunk && !soft.is_nonlinear && !block.has_scales;
  RowElement<T> *weights = mine.weights.data(), *last_weights = weights + STRIP * BLOCK;
  float* last = nullptr;  // the output of the band whose values are not yet added
  int last_groups = 0;
  for (int64_t band = 0; band < bands; band++) {
    const int64_t l = band * COUNT, at = first + lines.at + l;
    float* out = mine.out.data() + at * stride;
    const RowElement<T>* q = mine.q.data() + at * dim;
    const void* ahead = band < GROUPS ? static_cast<const void*>(block.next_keys[band]) : out;
    int groups = plain ? weigh_plain(args, soft, lines, block, mine, first, l, ahead, weights) : UNKNOWN;
    if (groups == UNKNOWN) groups = weigh_band(args, soft, lines, block, mine, first, l, ahead, weights);
    if (groups == 0) continue;
    const void* behind = band <= GROUPS ? static_cast<const void*>(block.next_values[std::max<int64_t>(0, band - 1)]) : q + COUNT * dim;
    if (last) Kind::add_values(last_weights, block, last_groups, behind, stride, last);
    std::swap(weights, last_weights), last = out, last_groups = groups;
  }
  if (last) Kind::add_values(last_weights, block, last_groups, last, stride, last);
  const int64_t rest = bands * COUNT, token = rest / block.queries;
  if (rest == lines.count) return;
  VectorLines<T> kind;
  const Lines others{lines.at + rest, lines.count - rest, lines.position + token, lines.ends ? lines.ends + token : nullptr};
  attend_block<T>(args, others, block, mine, first, kind, (token + 1) * block.queries - rest);
}

#endif

}  // namespace quire
