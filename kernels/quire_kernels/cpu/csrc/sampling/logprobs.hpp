// Log-probabilities of given tokens, their ranks, and the most likely tokens: `quire_kernels.sampling.LogprobsOp`.
#pragma once
#include <algorithm>
#include <functional>

#include "sampling/sampling.hpp"

namespace quire {

struct Entry {
  float logit;
  int32_t id;
};
inline bool comes_first(const Entry& a, const Entry& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

struct LogprobsScratch {
  explicit LogprobsScratch(const Logits& logits) : memory([&](Memory& m) {
    m.take(entries, logits.vocab);
    m.take(largest, logits.runs());
    m.take(some, logits.runs());
    m.take(block_sums, logits.blocks());
    m.take(above, logits.blocks());
  }) {}
  Entry* entries;
  float *largest, *some;  // largest logit of each run
  double* block_sums;     // sums of exponentials
  int64_t* above;         // of each block, number of logits larger than the token's
  Memory memory;
};

// Outputs; own, rank [rows], ids, values [rows, top].
struct Found {
  float* own;
  int64_t* rank;
  int64_t* ids;
  float* values;
  int64_t top;
};

// Sums the exponentials of distances to the maximum, and counts the logits above `own`.
inline double exponential_sum(const float* x, int64_t n, float most, float own, int64_t& count) {
  F16 sums[4] = {zero(), zero(), zero(), zero()};
  const F16 m = set1(most), limit = set1(own);
  int64_t i = 0, larger = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (int j = 0; j < 4; j++) {
      const F16 y = load(x + i + j * LANES);
      sums[j] = sums[j] + exp(y - m);
      larger += __builtin_popcount(above(y, limit));
    }
  for (; i < n; i += LANES) {
    const F16 y = some(x + i, n - i, -INFINITE);
    sums[0] = sums[0] + exp(y - m);
    larger += __builtin_popcount(above(y, limit));
  }
  count = larger;
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Puts the `top` largest logits into `entries`, in order. They are at least the top-th largest of the runs' maxima.
inline void select_top(const Logits& logits, int64_t row, int64_t top, LogprobsScratch& s) {
  float least = -INFINITE;
  if (top <= logits.runs()) {
    std::copy(s.largest, s.largest + logits.runs(), s.some);
    std::nth_element(s.some, s.some + top - 1, s.some + logits.runs(), std::greater<float>());
    least = s.some[top - 1];
  }
  Entry* end = s.entries;
  for (int64_t r = 0; r < logits.runs(); r++) {
    if (s.largest[r] < least) continue;
    const int64_t stop = std::min(logits.vocab, (r + 1) * RUN);
    for (int64_t i = r * RUN; i < stop; i += LANES) {
      const int64_t n = stop - i;
      uint32_t found = at_least(some(logits.row(row) + i, n, 0), set1(least));
      if (n < LANES) found &= (1u << n) - 1;
      for (; found; found &= found - 1) {
        const int64_t id = i + __builtin_ctz(found);
        *end++ = {logits.row(row)[id], static_cast<int32_t>(id)};
      }
    }
  }
  if (s.entries + top < end) std::nth_element(s.entries, s.entries + top - 1, end, comes_first);
  std::sort(s.entries, s.entries + top, comes_first);
}

inline void logprobs_row(Worker& worker, const Logits& logits, const int64_t* tokens, int64_t row, LogprobsScratch& s,
                         const Found& found) {
  const float* x = logits.row(row);
  const float own = x[tokens[row]];
  worker.each(parts(logits.runs(), LOGITS_BLOCK / RUN), [&](int64_t p) {
    for (int64_t r = p * (LOGITS_BLOCK / RUN); r < std::min(logits.runs(), (p + 1) * (LOGITS_BLOCK / RUN)); r++)
      s.largest[r] = largest(x + r * RUN, std::min(RUN, logits.vocab - r * RUN));
  });
  worker.barrier();
  const float most = largest_of(s.largest, logits.runs());
  worker.each(logits.blocks(), [&](int64_t p) {
    const int64_t n = std::min(LOGITS_BLOCK, logits.vocab - p * LOGITS_BLOCK);
    s.block_sums[p] = exponential_sum(x + p * LOGITS_BLOCK, n, most, own, s.above[p]);
  });
  worker.barrier();
  if (worker.id != 0) return;
  double total = 0;
  int64_t rank = 1;
  for (int64_t p = 0; p < logits.blocks(); p++) total += s.block_sums[p], rank += s.above[p];
  // a row without a valid distribution (NaN, +inf, or nothing finite) has no log-probabilities
  const double whole = std::isfinite(most) ? most + std::log(total) : std::numeric_limits<double>::quiet_NaN();
  found.own[row] = static_cast<float>(own - whole);
  found.rank[row] = rank;
  if (found.top == 0) return;
  if (most == most)
    select_top(logits, row, found.top, s);
  else
    for (int64_t i = 0; i < found.top; i++) s.entries[i] = {most, static_cast<int32_t>(i)};
  for (int64_t i = 0; i < found.top; i++) {
    found.ids[row * found.top + i] = s.entries[i].id;
    found.values[row * found.top + i] = static_cast<float>(s.entries[i].logit - whole);
  }
}

inline void logprobs(const Logits& logits, const int64_t* tokens, const Found& found, int threads) {
  by_rows<LogprobsScratch>(logits, threads, [&](Worker& worker, int64_t row, LogprobsScratch& s) {
    logprobs_row(worker, logits, tokens, row, s, found);
  });
}

}  // namespace quire
