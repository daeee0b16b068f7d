// Shared by sampling, argmax and log-probabilities: how logits are split for the threads, their maxima, and scratch
// memory.
//
// Logits [rows, vocab] are float32. Float sums are computed block by block in a fixed order, so a row gives
// bit-identical results in any batch and with any number of threads.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "simd_masks.hpp"
#include "thread_team.hpp"

namespace quire {

constexpr int64_t RUN = 128;     // consecutive ids whose maximum or sum is stored
constexpr int64_t LOGITS_BLOCK = 8192;  // logits of a row that one thread processes at a time: 32 KiB
constexpr int64_t MIN_PARALLEL_LOGITS = 32768;   // with fewer logits, a second thread does not pay
constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline int64_t parts(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

struct Logits {
  const float* base;
  int64_t rows, vocab, stride;
  const float* row(int64_t r) const { return base + r * stride; }
  int64_t runs() const { return parts(vocab, RUN); }
  int64_t blocks() const { return parts(vocab, LOGITS_BLOCK); }
};

// Sixteen floats of which n > 0 are loaded; the others are `rest`.
inline F16 some(const float* p, int64_t n, float rest) {
  return n >= LANES ? load(p) : keep(load(p, static_cast<int>(n)), 0, static_cast<int>(n), set1(rest));
}

// The largest of n logits; NaN if one of them is NaN.
inline float largest(const float* x, int64_t n) {
  F16 a = set1(-INFINITE), b = a;
  uint32_t nan = 0;
  int64_t i = 0;
  for (; i + 2 * LANES <= n; i += 2 * LANES) {
    const F16 x0 = load(x + i), x1 = load(x + i + LANES);
    nan |= nan_in(x0, x1);
    a = max(x0, a);
    b = max(x1, b);
  }
  for (; i < n; i += LANES) {
    const F16 last = some(x + i, n - i, -INFINITE);
    nan |= nan_in(last, last);
    a = max(last, a);
  }
  return nan ? std::numeric_limits<float>::quiet_NaN() : largest(max(a, b));
}

// Index of the first of n numbers that equals `wanted`; n if there is none.
inline int64_t find(const float* x, int64_t n, float wanted) {
  for (int64_t i = 0; i < n; i += LANES) {
    const uint32_t found = equal(some(x + i, n - i, 0), set1(wanted));
    if (found) return std::min(n, i + __builtin_ctz(found));
  }
  return n;
}

// The largest of n numbers; NaN if one of them is NaN.
inline float largest_of(const float* x, int64_t n) {
  float most = -INFINITE;
  for (int64_t i = 0; i < n; i++) most = x[i] > most || x[i] != x[i] ? x[i] : most;
  return most;
}

// Index of the first largest logit, given the maximum of each block; -1 if no logit is finite or one is NaN.
inline int64_t first_largest(const Logits& logits, int64_t row, const float* block_largest) {
  float most = -INFINITE;
  int64_t where = 0;
  for (int64_t p = 0; p < logits.blocks(); p++) {
    if (block_largest[p] != block_largest[p]) return -1;
    if (block_largest[p] > most) most = block_largest[p], where = p;
  }
  if (!std::isfinite(most)) return -1;
  const int64_t start = where * LOGITS_BLOCK;
  return start + find(logits.row(row) + start, std::min(LOGITS_BLOCK, logits.vocab - start), most);
}

// most: memory for rows × blocks floats.
inline void argmax(Worker& worker, const Logits& logits, float* most, int64_t* out) {
  const int64_t blocks = logits.blocks();
  worker.each(logits.rows * blocks, [&](int64_t i) {
    const int64_t start = i % blocks * LOGITS_BLOCK;
    most[i] = largest(logits.row(i / blocks) + start, std::min(LOGITS_BLOCK, logits.vocab - start));
  });
  worker.barrier();
  worker.each(logits.rows, [&](int64_t r) { out[r] = first_largest(logits, r, most + r * blocks); });
}

inline void argmax(const Logits& logits, int64_t* out, int threads) {
  const std::unique_ptr<float[]> most(new float[logits.rows * logits.blocks()]);
  run_parallel(logits.rows * logits.vocab < MIN_PARALLEL_LOGITS ? 1 : threads,
           [&](Worker& worker) { argmax(worker, logits, most.get(), out); });
}

// One memory block from which arrays are taken: blocks of the same size at each call are allocated fastest.
class Memory {
 public:
  // Calls describe(*this) twice: first to add up the sizes, then to assign the arrays.
  template <class Describe>
  explicit Memory(Describe&& describe) {
    describe(*this);
    block_.reset(static_cast<char*>(std::aligned_alloc(64, size_)));
    if (!block_) std::abort();
    size_ = 0;
    describe(*this);
  }
  template <class T>
  void take(T*& array, int64_t count) {
    if (block_) array = reinterpret_cast<T*>(block_.get() + size_);
    size_ += parts(count * static_cast<int64_t>(sizeof(T)), 64) * 64;
  }

 private:
  struct Free {
    void operator()(char* block) const { std::free(block); }
  };
  std::unique_ptr<char, Free> block_;
  int64_t size_ = 0;
};

// Calls work(worker, row, scratch) for every row: a single row is computed by all threads run_parallel, several rows by
// one thread each.
template <class Scratch, class Work>
void by_rows(const Logits& logits, int threads, Work&& work) {
  if (logits.rows == 1) {
    Scratch scratch(logits);
    return run_parallel(logits.vocab < MIN_PARALLEL_LOGITS ? 1 : threads, [&](Worker& worker) { work(worker, 0, scratch); });
  }
  const int64_t most = logits.rows * logits.vocab < MIN_PARALLEL_LOGITS ? 1 : std::min<int64_t>(threads, logits.rows);
  run_parallel(static_cast<int>(most), [&](Worker& worker) {
    Scratch scratch(logits);
    Team of_one;
    Worker alone(of_one, 0, 1);
    worker.each(logits.rows, [&](int64_t r) {
      work(alone, r, scratch);
      alone.barrier();
    });
  });
}

}  // namespace quire
