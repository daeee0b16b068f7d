// Further terms of a product's sums: what adapters add to a panel (`low_rank/low_rank_terms.hpp`).
#pragma once
#include <array>

#include "gemm/packed.hpp"

namespace quire {

constexpr int64_t TERM_ROWS = 32;  // of a tile

// What an adapter adds to 16 outputs of a tile: x · bᵀ.
struct LowRankTerm {
  const bf16* x;      // blocks of 32 columns, [block][32 rows][32]
  const uint32_t* b;  // [unit][16]
  int64_t count, next;  // of units; from b to what the thread reads in the next panel

  int64_t blocks() const { return (count + 15) / 16; }
  const bf16* rows(int64_t block) const { return x + block * TERM_ROWS * INPUT_STEP; }
  // 16 units. If b has fewer, what follows it is read too, and multiplied by zeros.
  const uint32_t* units(int64_t block) const {
    const uint32_t* at = b + block * 16 * LANES;
    for (int64_t k = 0; k < std::min<int64_t>(count, 16); k++) prefetch_l2(at + next + k * LANES);
    return at;
  }
};

// Of both halves of a panel.
struct PanelTerm {
  LowRankTerm left, right;
};
struct PanelTerms {
  const PanelTerm *first = nullptr, *last = nullptr;
  const PanelTerm* begin() const { return first; }
  const PanelTerm* end() const { return last; }
};

// Instead of `LowRankTerms`, of a product without adapters.
struct NoTerms {
  static constexpr std::array<PanelTerm, 0> of(int64_t, int64_t) { return {}; }
  static void add_rows(int64_t, int64_t, float*) {}
};

}  // namespace quire
