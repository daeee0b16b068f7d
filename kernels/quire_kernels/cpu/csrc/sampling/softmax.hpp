// Softmax of attention: scores to weights, with a running maximum.
#pragma once
#include "attention/attention_block.hpp"

namespace quire {

constexpr float HIDDEN = -1e30f;  // a score whose weight is 0; finite, so that differences are numbers

constexpr float SLACK = 8;  // a line's weights may become as large as 2 to this power

// Transformation of scores before the exponential: e^s = 2^(s · log2 e). Maxima are of raw scores.
struct ScoreTransform {
  float inner, cap;  // s = cap · tanh(inner · s), if cap
  float unit;        // final factor of a raw score
  float slack;       // how far a raw score may exceed the stored maximum
  bool is_nonlinear;        // whether more than a multiplication is needed
  const float* slopes;      // of the heads; null: none
  explicit ScoreTransform(const AttentionArgs& args)
      : inner(args.softcap != 0 ? args.scale / args.softcap : args.scale > 0 ? 1 : args.scale),
        cap(args.softcap),
        unit(args.softcap == 0 && args.scale > 0 ? args.scale * LOG2_E : LOG2_E),
        slack(SLACK / unit),
        is_nonlinear(cap != 0 || inner != 1 || args.slopes || args.biases || args.stripes),
        slopes(args.slopes) {}

  // A score that is added to others as one of a position, before `unit` multiplies it.
  float raw(float score) const { return score * (LOG2_E / unit); }
};

// What a line adds to its scores: `slope` times the distance from its token's position to that of each score, which for
// the first of the block is `distance`; and `unit` times the biases [BLOCK], unless these are null.
struct LineBias {
  float slope = 0, distance = 0, unit = 0;
  const float* biases = nullptr;
};

// Raises the maximum of a line whose scores exceed the stored one, and rescales its sums and output. This is rare,
// because the maximum may be exceeded by SLACK (as in FlashAttention-4): float32 has enough range above 1.
inline void raise_maximum(const ScoreTransform& soft, F16 best, float& top, float* totals, float* out, int64_t stride) {
  const float now = largest(best);
  if (!any_above(load(totals), 0)) {  // the first scores: sums and output are 0
    top = now;
    return;
  }
  const F16 shrink = exp2<float>(set1((top - now) * soft.unit));
  for (int64_t i = 0; i < stride; i += LANES) store(out + i, load(out + i) * shrink);
  store(totals, load(totals) * shrink);
  top = now;
}

// Not inlined, so that the usual path, without this transformation, stays in registers.
__attribute__((noinline)) inline F16 transformed(const ScoreTransform& soft, F16 s, const LineBias& bias, int first) {
  alignas(64) static constexpr float STEPS[LANES] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  s = s * set1(soft.inner);
  if (soft.cap != 0) s = tanh(s) * set1(soft.cap);
  if (bias.biases) s = fma(load(bias.biases + first), set1(bias.unit), s);
  return fma(set1(bias.distance + static_cast<float>(first)) + load(STEPS), set1(bias.slope), s);
}

// Converts the scores [BLOCK] of one line to weights and passes them to `keep_weights`; updates the line's running
// maximum, sums (lane by lane) and output. bias: used if the transformation is not linear. from, to: the visible positions of
// the block. WHOLE: all are visible, and scores are only multiplied.
template <class T, bool WHOLE, class KeepWeights>
inline void softmax_line(const ScoreTransform& soft, const LineBias& bias, const Block<T>& block, const float* scores,
                   int from, int to, float& top, float* totals, float* out, int64_t stride, KeepWeights&& keep_weights) {
  F16 s[GROUPS];
#pragma GCC unroll 4
  for (int g = 0; g < GROUPS; g++) s[g] = load(scores + g * GROUP);
  if (block.has_scales)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) s[g] = s[g] * load(block.key_scales + g * GROUP);
  if (!WHOLE && soft.is_nonlinear)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++) s[g] = transformed(soft, s[g], bias, g * GROUP);
  if (!WHOLE)
#pragma GCC unroll 4
    for (int g = 0; g < GROUPS; g++)
      s[g] = keep(s[g], std::clamp(from - g * GROUP, 0, GROUP), std::clamp(to - g * GROUP, 0, GROUP), set1(HIDDEN));
  const F16 best = max(max(s[0], s[1]), max(s[2], s[3]));
  if (any_above(best, top + soft.slack)) raise_maximum(soft, best, top, totals, out, stride);
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
