// Samples one token for each row by inverse CDF, after the filters: `quire_kernels.sampling.SampleOp`.
//
// Probabilities become integers (weights), so their sums do not depend on the order. Nothing is sorted: a filter's
// threshold is searched by buckets of the weights' bits, then among the weights of one bucket. Runs of ids whose
// largest weight is below the smallest possible threshold are skipped.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>

#include "sampling/sampling.hpp"

namespace quire {

constexpr double RESOLUTION = 1125899906842624.0;  // 2^50: the weight of probability 1
// low bits of a weight, which its bucket ignores; 5 bits of the mantissa remain
constexpr int LOW_BITS = 18;
constexpr int32_t BELOW_ONE = (127 << (23 - LOW_BITS)) - 1;  // bucket 0 is for weight 0, bucket 1 begins at weight 1
constexpr int32_t BUCKETS = 52 << (23 - LOW_BITS);           // up to 2^51

// Sampling settings of each row; arrays [rows].
struct Settings {
  const double *temperature, *uniform;
  const int64_t* top_k;
  const double *top_p, *min_p;
};

struct SampleScratch {
  explicit SampleScratch(const Logits& logits)
      : runs(logits.runs()), memory([&](Memory& m) {
          m.take(weights, runs * RUN);
          m.take(some, runs * RUN + LANES);
          m.take(largest, runs);
          m.take(sums, runs);
          m.take(block_largest, logits.blocks());
          m.take(block_sums, logits.blocks());
          m.take(buckets, 2 * BUCKETS);
        }) {}
  const int64_t runs;
  float *weights, *some;    // `some`: the weights of one bucket
  float* largest;           // largest weight of each run
  double* sums;             // sum of each run
  float* block_largest;         // largest logit of each block
  double* block_sums;       // sums of exponentials
  int64_t (*buckets)[2];    // two counters, so that neighbors in the same bucket need not wait for each other
  Memory memory;
};

inline int32_t bucket(float weight) {
  int32_t bits;
  std::memcpy(&bits, &weight, 4);
  return std::max((bits >> LOW_BITS) - BELOW_ONE, 0);
}
inline float least_of(int32_t bucket) {
  const int32_t bits = (bucket + BELOW_ONE) << LOW_BITS;
  float weight;
  std::memcpy(&weight, &bits, 4);
  return weight;
}

// Amount that a token adds towards a filter's aim.
struct One {
  int64_t operator()(float) const { return 1; }
};
struct Weight {
  int64_t operator()(float weight) const { return static_cast<int64_t>(weight); }
};

// The weight at which the amounts of [first, last), in descending order, reach `aim`; the smallest weight if they
// do not.
template <class Amount>
float reached_among(float* first, float* last, double aim, Amount amount) {
  while (last - first > 32) {
    float* middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, std::greater<float>());
    int64_t upper = 0;
    for (const float* w = first; w < middle; w++) upper += amount(*w);
    if (static_cast<double>(upper) >= aim)
      last = middle;
    else
      aim -= static_cast<double>(upper), first = middle;
  }
  std::sort(first, last, std::greater<float>());
  for (; first < last - 1; first++) {
    const double here = static_cast<double>(amount(*first));
    if (here >= aim) break;
    aim -= here;
  }
  return *first;
}

// Filters one row.
struct Nucleus {
  SampleScratch& s;

  // Calls look(weights) for every run with a weight of at least `least`.
  template <class Look>
  void runs_with(float least, Look&& look) const {
    for (int64_t r = 0; r < s.runs; r++)
      if (s.largest[r] >= least) look(s.weights + r * RUN);
  }

  // The weight at which the amounts, in descending order, reach `aim`; the caller guarantees that it is at least
  // `hint`.
  template <class Amount>
  float reached(double aim, float hint, Amount amount) const {
    std::memset(s.buckets, 0, sizeof(int64_t[2]) * BUCKETS);
    runs_with(hint, [&](const float* w) {
      for (int64_t i = 0; i < RUN; i += 2) {
        s.buckets[bucket(w[i])][0] += amount(w[i]);
        s.buckets[bucket(w[i + 1])][1] += amount(w[i + 1]);
      }
    });
    int32_t b = BUCKETS - 1;
    int64_t before = 0;
    for (; b > 0; b--) {
      const int64_t here = s.buckets[b][0] + s.buckets[b][1];
      if (here && static_cast<double>(before + here) >= aim) break;
      before += here;
    }
    if (b == 0) return 0;
    const F16 low = set1(least_of(b)), high = set1(least_of(b + 1));
    float* end = s.some;
    runs_with(least_of(b), [&](const float* w) {
      for (int64_t i = 0; i < RUN; i += LANES) {
        const F16 x = load(w + i);
        const uint32_t found = at_least(x, low) & ~at_least(x, high);
        if (!found) continue;
        pack_found(end, x, found);
        end += __builtin_popcount(found);
      }
    });
    return reached_among(s.some, end, aim - static_cast<double>(before), amount);
  }

  // The sum of the weights that are at least `least`.
  double kept(float least) const {
    if (least == 0) return std::accumulate(s.sums, s.sums + s.runs, 0.0);
    Total total;
    runs_with(least, [&](const float* w) {
      for (int64_t i = 0; i < RUN; i += LANES) total.add(zero_below(load(w + i), set1(least)));
    });
    return total.value();
  }

  // The k-th largest weight, 0 < k < vocab. It is at least the k-th largest of the runs' maxima.
  float kth(int64_t k) const {
    float hint = 0;
    if (k <= s.runs) {
      std::copy(s.largest, s.largest + s.runs, s.some);
      std::nth_element(s.some, s.some + k - 1, s.some + s.runs, std::greater<float>());
      hint = s.some[k - 1];
    }
    return reached(static_cast<double>(k), hint, One());
  }

  // The smallest weight that is kept.
  float threshold(int64_t vocab, int64_t top_k, double top_p, double min_p) const {
    float least = 0;
    if (top_k > 0 && top_k < vocab) least = kth(top_k);
    if (top_p < 1) {
      const double total = kept(least);
      // all tokens below this weight run_parallel weigh less than the part that is cut off; half of it, for rounding
      const float hint = static_cast<float>(0.5 * (1 - top_p) * total / static_cast<double>(vocab));
      least = std::max(least, reached(top_p * total, std::max(least, hint), Weight()));
    }
    if (min_p > 0) {
      const float most = *std::max_element(s.largest, s.largest + s.runs);
      least = std::max(least, static_cast<float>(min_p * most));
    }
    return least;
  }

  // The first id at which the cumulative sum of the kept weights exceeds uniform · their sum; -1 if none does.
  int64_t search(float least, double uniform) const {
    double total = 0;
    for (int64_t r = 0; r < s.runs; r++) {
      if (s.largest[r] < least) {
        s.sums[r] = 0;
      } else if (least > 0) {
        Total run;
        for (int64_t i = 0; i < RUN; i += LANES) run.add(zero_below(load(s.weights + r * RUN + i), set1(least)));
        s.sums[r] = run.value();
      }
      total += s.sums[r];
    }
    double left = std::min(std::floor(uniform * total), total - 1);
    int64_t run = 0;
    while (run < s.runs - 1 && s.sums[run] <= left) left -= s.sums[run++];
    for (int64_t i = run * RUN; i < (run + 1) * RUN; i++) {
      if (s.weights[i] < least) continue;
      if (s.weights[i] > left) return i;
      left -= s.weights[i];
    }
    return -1;
  }
};

// Stores the exponentials of a block's distances to the maximum as weights; returns their sum.
inline double exponentials(const float* x, int64_t n, float most, float inverse, float* out) {
  F16 sums[4] = {zero(), zero(), zero(), zero()};
  const F16 m = set1(most), scale = set1(inverse);
  int64_t i = 0;
  for (; i + 4 * LANES <= n; i += 4 * LANES)
    for (int j = 0; j < 4; j++) {
      const F16 e = exp((load(x + i + j * LANES) - m) * scale);
      store(out + i + j * LANES, e);
      sums[j] = sums[j] + e;
    }
  for (; i < n; i += LANES) {
    const F16 e = exp((some(x + i, n - i, -INFINITE) - m) * scale);
    store(out + i, e);
    sums[0] = sums[0] + e;
  }
  for (; i < parts(n, RUN) * RUN; i += LANES) store(out + i, zero());
  return sum((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

// Rounds the exponentials of some runs down to integer weights.
inline void to_integers(SampleScratch& s, int64_t first, int64_t last, float factor) {
  for (int64_t r = first; r < last; r++) {
    Total total;
    F16 most = zero();
    for (int64_t i = r * RUN; i < (r + 1) * RUN; i += LANES) {
      const F16 w = floor(load(s.weights + i) * set1(factor));
      store(s.weights + i, w);
      total.add(w);
      most = max(w, most);
    }
    s.sums[r] = total.value();
    s.largest[r] = largest(most);
  }
}

inline void sample_row(Worker& worker, const Logits& logits, const Settings& with, int64_t row, SampleScratch& s,
                     int64_t* out) {
  const int64_t blocks = logits.blocks();
  const auto block_size = [&](int64_t p) { return std::min(LOGITS_BLOCK, logits.vocab - p * LOGITS_BLOCK); };
  worker.each(blocks, [&](int64_t p) { s.block_largest[p] = largest(logits.row(row) + p * LOGITS_BLOCK, block_size(p)); });
  worker.barrier();
  const float most = largest_of(s.block_largest, blocks);
  if (!std::isfinite(most) || with.temperature[row] == 0) {
    if (worker.id == 0) out[row] = first_largest(logits, row, s.block_largest);
    return;
  }
  constexpr double MIN_TEMPERATURE = std::numeric_limits<float>::min();  // its inverse is a finite float
  const float inverse = static_cast<float>(1 / std::max(with.temperature[row], MIN_TEMPERATURE));
  worker.each(blocks, [&](int64_t p) {
    s.block_sums[p] = exponentials(logits.row(row) + p * LOGITS_BLOCK, block_size(p), most, inverse, s.weights + p * LOGITS_BLOCK);
  });
  worker.barrier();
  double total = 0;
  for (int64_t p = 0; p < blocks; p++) total += s.block_sums[p];
  const float factor = static_cast<float>(RESOLUTION / total);
  worker.each(blocks, [&](int64_t p) {
    to_integers(s, p * LOGITS_BLOCK / RUN, std::min(s.runs, (p + 1) * LOGITS_BLOCK / RUN), factor);
  });
  worker.barrier();
  if (worker.id != 0) return;
  const Nucleus nucleus{s};
  const float least = nucleus.threshold(logits.vocab, with.top_k[row], with.top_p[row], with.min_p[row]);
  out[row] = nucleus.search(least, with.uniform[row]);
}

inline void sample(const Logits& logits, const Settings& with, int64_t* out, int threads) {
  by_rows<SampleScratch>(logits, threads, [&](Worker& worker, int64_t row, SampleScratch& s) {
    sample_row(worker, logits, with, row, s, out);
  });
}

}  // namespace quire
