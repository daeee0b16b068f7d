// A mixture of experts: tokens are grouped by expert, and each expert's matrices are multiplied with its tokens.
//
// First the hidden rows of all experts are computed, in items of an expert and some panels; then the outputs, in
// items of some columns of all experts, whose products are added up for each token in the order of the experts. So a
// token's result does not depend on the other tokens, and no two threads add to the same number.
#pragma once
#include <algorithm>
#include <vector>

#include "moe/expert_matrix.hpp"
#include "moe/route.hpp"

namespace quire {

// The struct `MixtureStruct` in `cpu/moe/structs.py`. finish: what joins or activates the sums of `up`.
struct Mixture {
  int64_t experts, top_k, width, hidden;
  ExpertMatrices up, down;
  EpilogueKind finish;
  Act act;
  float alpha, limit;  // of the clamped activation
  int32_t weighs_inputs;
  int64_t first;  // number of the first of these experts; others that tokens have chosen add nothing
};

// The tokens of each expert: pairs (token · top_k + place), ordered by expert, then by token.
class ExpertTokens {
 public:
  template <class T>
  ExpertTokens(const Mixture& mixture, int64_t tokens, Rows<T> chosen) : top_k_(mixture.top_k), starts_(mixture.experts + 1) {
    const auto of = [&](int64_t t) { return ChosenExperts{reinterpret_cast<char*>(chosen.row(t, 0)), top_k_}; };
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t j = 0; j < top_k_; j++)
        if (const int64_t e = of(t).expert(j) - mixture.first; e >= 0 && e < mixture.experts) starts_[e + 1]++;
    for (int64_t e = 0; e < mixture.experts; e++) {
      if (starts_[e + 1]) active_.push_back(e);
      starts_[e + 1] += starts_[e];
    }
    pairs_.resize(tokens * top_k_), weights_.resize(tokens * top_k_);
    std::vector<int64_t> next(starts_.begin(), starts_.end() - 1);
    for (int64_t t = 0; t < tokens; t++)
      for (int64_t j = 0; j < top_k_; j++) {
        const int64_t e = of(t).expert(j) - mixture.first;
        if (e < 0 || e >= mixture.experts) continue;
        const int64_t at = next[e]++;
        pairs_[at] = t, weights_[at] = of(t).weight(j);
      }
  }

  const std::vector<int64_t>& active() const { return active_; }  // experts with tokens
  int64_t start(int64_t expert) const { return starts_[expert]; }
  int64_t count(int64_t expert) const { return starts_[expert + 1] - starts_[expert]; }
  int64_t most() const {
    int64_t most = 0;
    for (int64_t e : active_) most = std::max(most, count(e));
    return most;
  }
  int64_t token(int64_t at) const { return pairs_[at]; }
  float weight(int64_t at) const { return weights_[at]; }

 private:
  int64_t top_k_;
  std::vector<int64_t> starts_, active_, pairs_;
  std::vector<float> weights_;
};

constexpr int64_t FEW_EXPERT_ROWS = 4;  // up to so many, reading the weights takes all the time

// Panels of an item. With more rows, an item must be worth gathering, and perhaps quantizing, its rows.
inline int64_t panels_at_once(const ExpertTokens& tokens, MatrixKind kind) {
  return tokens.most() > FEW_EXPERT_ROWS && kind != MatrixKind::plain ? 8 : 6;
}

// The rows of x of an expert's tokens, one after another; times their weights if the mixture weighs its inputs.
template <class T>
class GatheredRows {
 public:
  GatheredRows(const Mixture& mixture, const ExpertTokens& tokens, Rows<T> x) : mixture_(mixture), tokens_(tokens), x_(x) {}

  const T* of(int64_t expert) {
    const int64_t start = tokens_.start(expert), count = tokens_.count(expert);
    if (count == 1 && !mixture_.weighs_inputs) return x_.row(tokens_.token(start), 0);
    if (expert == expert_) return memory().data();
    expert_ = expert;
    memory().fit(count * mixture_.width);
    for (int64_t r = 0; r < count; r++) {
      const T* from = x_.row(tokens_.token(start + r), 0);
      T* to = memory().data() + r * mixture_.width;
      if (!mixture_.weighs_inputs) {
        std::memcpy(to, from, mixture_.width * sizeof(T));
        continue;
      }
      const F16 weight = set1(tokens_.weight(start + r));
      lanes(mixture_.width, [&](int64_t i, int n) { set(to + i, get(from + i, n) * weight, n); });
    }
    return memory().data();
  }

 private:
  const Mixture& mixture_;
  const ExpertTokens& tokens_;
  Rows<T> x_;
  int64_t expert_ = -1;
  static ScratchBuffer<T>& memory() {
    static thread_local ScratchBuffer<T> rows;
    return rows;
  }
};

// hidden [pairs, hidden], in the order of `tokens`.
template <class T>
void compute_hidden(Worker& worker, const Mixture& mixture, const ExpertTokens& tokens, Rows<T> x, T* hidden) {
  const auto& active = tokens.active();
  const int64_t panels = mixture.up.of[0].packed.panels();
  GatheredRows<T> gathered(mixture, tokens, x);
  SoloWorker solo;
  worker.each_few(static_cast<int64_t>(active.size()) * panels, panels_at_once(tokens, mixture.up.kind), [&](int64_t item, int64_t count) {
    for (const int64_t end = item + count; item < end;) {
      const int64_t expert = active[item / panels], first = item % panels, some = std::min(end - item, panels - first);
      PanelProduct<T> product(mixture.up, expert, first, first + some);
      T* to = hidden + tokens.start(expert) * mixture.hidden + product.begin();
      const GemmOutput output{to, mixture.hidden, nullptr, mixture.finish, mixture.act, 0, mixture.alpha, mixture.limit};
      product.multiply_rows(solo, gathered.of(expert), mixture.width, tokens.count(expert), output);
      item += some;
    }
  });
}

// sums[t] += weight · y[r] for the tokens of an expert; all rows have `columns` floats.
inline void add_weighted(const Mixture& mixture, const ExpertTokens& tokens, int64_t expert, int64_t columns, const float* y,
                         float* sums) {
  const int64_t start = tokens.start(expert);
  for (int64_t r = 0; r < tokens.count(expert); r++) {
    float* to = sums + tokens.token(start + r) * columns;
    const F16 weight = set1(mixture.weighs_inputs ? 1.0f : tokens.weight(start + r));
    for (int64_t i = 0; i < columns; i += LANES) store(to + i, fma(load(y + r * columns + i), weight, load(to + i)));
  }
}

template <class T>
void compute_outputs(Worker& worker, int64_t num_tokens, const Mixture& mixture, const ExpertTokens& tokens,
                     const T* hidden, Rows<T> out) {
  static thread_local ScratchBuffer<float> all_sums, products;
  const int64_t panels = mixture.down.of[0].packed.panels(), step = panels_at_once(tokens, mixture.down.kind);
  all_sums.fit(num_tokens * step * PANEL), products.fit(tokens.most() * step * PANEL);
  float *sums = all_sums.data(), *y = products.data();
  SoloWorker solo;
  worker.each_few(panels, step, [&](int64_t first, int64_t some) {
    const int64_t columns = some * PANEL;
    std::fill_n(sums, num_tokens * columns, 0.0f);
    for (int64_t expert : tokens.active()) {
      PanelProduct<T> product(mixture.down, expert, first, first + some);
      product.multiply_rows(solo, hidden + tokens.start(expert) * mixture.hidden, mixture.hidden, tokens.count(expert),
                            {y, columns, nullptr, EpilogueKind::plain, Act::identity, 1});
      add_weighted(mixture, tokens, expert, columns, y, sums);
    }
    const int64_t begin = first * PANEL, width = std::min(mixture.width - begin, columns);
    for (int64_t t = 0; t < num_tokens; t++)
      lanes(width, [&](int64_t i, int n) { set(out.row(t, 0) + begin + i, get(sums + t * columns + i, n), n); });
  });
}

// x [tokens, width]; chosen: `ChosenExperts` of each token; scratch: memory for top_k · hidden numbers of each token.
template <class T>
void compute_experts(Worker& worker, int64_t tokens, const Mixture& mixture, Rows<T> x, Rows<T> chosen, Rows<T> scratch, Rows<T> out) {
  if (tokens == 0) return;
  const ExpertTokens grouped(mixture, tokens, chosen);
  compute_hidden(worker, mixture, grouped, x, scratch.base);
  worker.barrier();
  compute_outputs(worker, tokens, mixture, grouped, scratch.base, out);
}

}  // namespace quire
