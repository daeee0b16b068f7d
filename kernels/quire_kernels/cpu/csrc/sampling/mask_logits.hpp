// Sets the logits of some rows to -inf where a bit mask forbids them.
#pragma once
#include "sampling/sampling.hpp"

namespace quire {

// words: those of `count` masks one after another, bit j % 32 of word j / 32 for id j; of_rows: row of each mask.
struct BitMasks {
  const uint32_t* words;
  const int64_t* of_rows;
  int64_t count;
};

// Forbids those of n ≤ 32 ids whose bit is 0.
inline void forbid(float* x, int64_t n, uint32_t allowed) {
  if (!allowed) return std::fill(x, x + n, -INFINITE), void();
  for (int64_t i = 0; i < n; i++) x[i] = allowed >> i & 1 ? x[i] : -INFINITE;
}

inline void mask_logits(const Logits& logits, const BitMasks& masks, int threads) {
  const int64_t words = parts(logits.vocab, 32), blocks = logits.blocks();
  run_parallel(masks.count * logits.vocab < MIN_PARALLEL_LOGITS ? 1 : threads, [&](Worker& worker) {
    worker.each(masks.count * blocks, [&](int64_t i) {
      const int64_t m = i / blocks, start = i % blocks * LOGITS_BLOCK, end = std::min(start + LOGITS_BLOCK, logits.vocab);
      float* row = const_cast<float*>(logits.row(masks.of_rows[m]));
      for (int64_t j = start; j < end; j += 32) {
        const uint32_t allowed = masks.words[m * words + j / 32];
        if (allowed != 0xFFFFFFFF) forbid(row + j, std::min<int64_t>(32, end - j), allowed);
      }
    });
  });
}
}  // namespace quire
