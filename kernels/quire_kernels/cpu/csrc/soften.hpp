// From scores to weights, with a running maximum.
#pragma once
#include "attention_block.hpp"

namespace quire {

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

// Apart, so that what every score goes through stays in registers where there is nothing to bend.
__attribute__((noinline)) inline F16 bent(const Softness& soft, F16 s) {
  s = s * set1(soft.inner);
  return soft.cap != 0 ? tanh(s) * set1(soft.cap) : s;
}

// Scores [BLOCK] of one line to weights, which `keep_weights` gets; the line's running maximum, sums (lane by lane) and
// output follow. from, to: the positions of the block that it may see; WHOLE: all of them.
template <class T, bool WHOLE, class KeepWeights>
inline void soften(const Softness& soft, const Block<T>& block, const float* scores, int from, int to, float& top,
                   float* totals, float* out, int64_t stride, KeepWeights&& keep_weights) {
  F16 s[GROUPS];
#pragma GCC unroll 4
  for (int g = 0; g < GROUPS; g++) s[g] = load(scores + g * GROUP);
  if (block.has_scales)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) s[g] = s[g] * load(block.key_scales + g * GROUP);
  if (soft.bends)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) s[g] = bent(soft, s[g]);
  if (!WHOLE)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++)
      s[g] = keep(s[g], std::clamp(from - g * GROUP, 0, GROUP), std::clamp(to - g * GROUP, 0, GROUP), set1(HIDDEN));
  const F16 best = max(max(s[0], s[1]), max(s[2], s[3]));
  if (any_above(best, top + soft.slack)) raise(soft, best, top, totals, out, stride);
  const F16 zero_at = set1(-top * soft.unit), unit = set1(soft.unit);
  F16 total = load(totals), w[GROUPS];
#pragma GCC unroll 4
  for (int g = 0; g < GROUPS; g += 2) {
    w[g] = exp2<T>(fma(s[g], unit, zero_at)), w[g + 1] = exp2<T>(fma(s[g + 1], unit, zero_at));
    total = total + (w[g] + w[g + 1]);
  }
  if (block.has_scales)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) w[g] = w[g] * load(block.value_scales + g * GROUP);
  keep_weights(w);
  store(totals, total);
}

}  // namespace quire
