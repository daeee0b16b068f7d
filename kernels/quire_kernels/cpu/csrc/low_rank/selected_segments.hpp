// The segments of a step for the tokens that are selected in it.
#pragma once
#include <algorithm>
#include <vector>

#include "low_rank/adapter_slots.hpp"

namespace quire {

class SelectedSegments {
 public:
  // selected: `rows` tokens in ascending order; token selected[r] becomes row r.
  SelectedSegments(const StepSegments& all, const int64_t* selected, int64_t rows) : passes_{0} {
    for (int64_t pass = 0; pass < all.num_passes; pass++) {
      for (int64_t i = all.passes[pass]; i < all.passes[pass + 1]; i++) {
        const int32_t *item = all.items + 3 * i, first = static_cast<int32_t>(tokens_.size());
        for (int64_t at = item[1]; at < item[1] + item[2]; at++) {
          const int64_t* found = std::lower_bound(selected, selected + rows, static_cast<int64_t>(all.tokens[at]));
          if (found == selected + rows || *found != all.tokens[at]) continue;
          tokens_.push_back(static_cast<int32_t>(found - selected)), weights_.push_back(all.weights[at]);
        }
        const int32_t count = static_cast<int32_t>(tokens_.size()) - first;
        if (count) items_.insert(items_.end(), {item[0], first, count});
      }
      passes_.push_back(static_cast<int64_t>(items_.size()) / 3);
    }
    segments_ = {tokens_.data(), weights_.data(), items_.data(), passes_.data(), all.num_passes};
  }
  SelectedSegments(SelectedSegments&&) = default;  // the vectors keep their memory

  const StepSegments* segments() const { return &segments_; }

 private:
  std::vector<int32_t> tokens_, items_;
  std::vector<float> weights_;
  std::vector<int64_t> passes_;
  StepSegments segments_;
};

}  // namespace quire
