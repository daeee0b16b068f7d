// The choice of experts: scores of a router's logits, the best of them, and their weights.
#pragma once
#include <cmath>
#include <cstring>

#include "rowwise.hpp"
#include "scratch.hpp"

namespace quire {

enum class RouterScores : int32_t { softmax, sigmoid, sparsemixer };

// The struct `RoutingStruct` in `cpu/moe/structs.py`; `Routing` in `quire_kernels/moe.py` explains the fields. groups: 0
// for none. correction: [experts], or null.
struct RoutingRule {
  int32_t top_k;
  RouterScores scores;
  int32_t renormalize, groups, chosen_groups, best;
  float scale, least_sum, jitter;
  const float* correction;
};

// The experts of a token and their weights: top_k floats, then top_k int32, at any address.
struct ChosenExperts {
  char* at;
  int64_t top_k;

  float weight(int64_t j) const {
    float x;
    std::memcpy(&x, at + 4 * j, 4);
    return x;
  }
  int32_t expert(int64_t j) const {
    int32_t x;
    std::memcpy(&x, at + 4 * (top_k + j), 4);
    return x;
  }
  void set(int64_t j, float weight, int32_t expert) const {
    std::memcpy(at + 4 * j, &weight, 4);
    std::memcpy(at + 4 * (top_k + j), &expert, 4);
  }
};

inline float largest_score(const float* x, int64_t count) {
  float largest = -INFINITY;
  for (int64_t i = 0; i < count; i++) largest = std::max(largest, x[i]);
  return largest;
}

// x becomes its softmax; entries of -∞ become 0.
inline void softmax_in_place(float* x, int64_t count) {
  const F16 largest = set1(largest_score(x, count));
  lanes(count, [&](int64_t i, int n) { set(x + i, exp(get(x + i, n) - largest), n); });
  float total = 0;
  for (int64_t i = 0; i < count; i++) total += x[i];
  const F16 inverse = set1(1.0f / total);
  lanes(count, [&](int64_t i, int n) { set(x + i, get(x + i, n) * inverse, n); });
}

// The indices of the `most` largest of x, in descending order; of equal ones the first.
inline void find_best(const float* x, int64_t count, int64_t most, int32_t* best) {
  int64_t found = 0;
  for (int64_t i = 0; i < count; i++) {
    if (found == most && !(x[i] > x[best[found - 1]])) continue;
    int64_t at = found < most ? found++ : found - 1;
    for (; at > 0 && x[i] > x[best[at - 1]]; at--) best[at] = best[at - 1];
    best[at] = static_cast<int32_t>(i);
  }
}

// Sets the scores of groups that are not chosen to -∞.
inline void limit_to_groups(const RoutingRule& rule, int64_t experts, float* scores) {
  static thread_local ScratchBuffer<float> totals;
  static thread_local ScratchBuffer<int32_t> best;
  const int64_t size = experts / rule.groups;
  totals.fit(rule.groups), best.fit(experts);
  for (int64_t g = 0; g < rule.groups; g++) {
    find_best(scores + g * size, size, rule.best, best.data());
    totals[g] = 0;
    for (int64_t i = 0; i < rule.best; i++) totals[g] += scores[g * size + best[i]];
  }
  find_best(totals.data(), rule.groups, rule.chosen_groups, best.data());
  for (int64_t g = 0; g < rule.groups; g++) {
    const int32_t* end = best.data() + rule.chosen_groups;
    if (std::find(best.data(), const_cast<int32_t*>(end), g) == end) std::fill_n(scores + g * size, size, -INFINITY);
  }
}

// Chooses one expert after another; `left` is scratch memory for the logits of those that are left.
inline void sparse_mixer(const RoutingRule& rule, int64_t experts, const float* logits, float* left, float* near,
                         const ChosenExperts& to) {
  std::copy_n(logits, experts, left);
  for (int64_t j = 0; j < rule.top_k; j++) {
    int32_t best;
    find_best(left, experts, 1, &best);
    const float largest = left[best];
    for (int64_t i = 0; i < experts; i++) {
      const float distance = (largest - logits[i]) / std::max(std::fabs(logits[i]), largest);
      near[i] = distance > 2 * rule.jitter ? -INFINITY : left[i];
    }
    softmax_in_place(near, experts);
    to.set(j, near[best], best);
    left[best] = -INFINITY;
  }
}

// scores: the logits, overwritten. choice, best: scratch memory for `experts` numbers.
inline void route_token(const RoutingRule& rule, int64_t experts, float* scores, float* choice, float* other,
                        int32_t* best, const ChosenExperts& to) {
  if (rule.scores == RouterScores::sparsemixer) {
    sparse_mixer(rule, experts, scores, choice, other, to);
  } else {
    if (rule.scores == RouterScores::softmax)
      softmax_in_place(scores, experts);
    else
      lanes(experts, [&](int64_t i, int n) { set(scores + i, sigmoid<float>(get(scores + i, n)), n); });
    for (int64_t i = 0; i < experts; i++) choice[i] = scores[i] + (rule.correction ? rule.correction[i] : 0.0f);
    if (rule.groups) limit_to_groups(rule, experts, choice);
    find_best(choice, experts, rule.top_k, best);
    for (int64_t j = 0; j < rule.top_k; j++) to.set(j, scores[best[j]], best[j]);
  }
  float total = 0;
  for (int64_t j = 0; j < rule.top_k; j++) total += to.weight(j);
  const float divisor = rule.renormalize ? std::max(total, rule.least_sum) : 1.0f;
  for (int64_t j = 0; j < rule.top_k; j++) to.set(j, to.weight(j) / divisor * rule.scale, to.expert(j));
}

// x [tokens, experts] -> out: `ChosenExperts` of each token.
template <class T>
void route(Worker& worker, int64_t tokens, Rows<T> x, const RoutingRule& rule, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    static thread_local ScratchBuffer<float> memory;
    static thread_local ScratchBuffer<int32_t> best;
    memory.fit(3 * x.width), best.fit(x.width);
    float* scores = memory.data();
    for (int64_t t = first; t < first + count; t++) {
      lanes(x.width, [&](int64_t i, int n) { set(scores + i, get(x.row(t, 0) + i, n), n); });
      route_token(rule, x.width, scores, scores + x.width, scores + 2 * x.width, best.data(),
                  {reinterpret_cast<char*>(out.row(t, 0)), rule.top_k});
    }
  });
}

}  // namespace quire
