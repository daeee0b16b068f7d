// What drawing and reporting share: how logits are cut for the threads, their largest, and memory to work in.
//
// Logits [rows, vocab] are float32. Whatever is summed in floats is summed piece by piece in a fixed order, so a row
// gives the same bits in any batch and with any number of threads.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <limits>
#include <memory>

#include "masks.hpp"
#include "team.hpp"

namespace quire {

constexpr int64_t RUN = 128;     // neighbouring ids whose largest, or whose sum, is remembered
constexpr int64_t PIECE = 8192;  // of a row, for one thread at a time: 32 KiB
constexpr int64_t FEW = 32768;   // logits that are not worth a second thread
constexpr float INFINITE = std::numeric_limits<float>::infinity();

inline int64_t parts(int64_t whole, int64_t size) { return (whole + size - 1) / size; }

struct Logits {
  const float* base;
  int64_t rows, vocab, stride;
  const float* row(int64_t r) const { return base + r * stride; }
  int64_t runs() const { return parts(vocab, RUN); }
  int64_t pieces() const { return parts(vocab, PIECE); }
};

// Sixteen floats of which n > 0 are there; the others are `rest`.
inline F16 some(const float* p, int64_t n, float rest) {
  return n >= LANES ? load(p) : keep(load(p, static_cast<int>(n)), 0, static_cast<int>(n), set1(rest));
}

// The largest of some logits; NaN if one of them is NaN.
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

// The place of the first of n numbers that equals `wanted`; n if none does.
inline int64_t find(const float* x, int64_t n, float wanted) {
  for (int64_t i = 0; i < n; i += LANES) {
    const uint32_t found = equal(some(x + i, n - i, 0), set1(wanted));
    if (found) return std::min(n, i + __builtin_ctz(found));
  }
  return n;
}

// The largest of numbers of which some may be NaN; then it is NaN.
inline float largest_of(const float* x, int64_t n) {
  float most = -INFINITE;
  for (int64_t i = 0; i < n; i++) most = x[i] > most || x[i] != x[i] ? x[i] : most;
  return most;
}

// The first of the largest, given those of each piece; -1 if nothing is finite or something is NaN.
inline int64_t first_largest(const Logits& logits, int64_t row, const float* of_pieces) {
  float most = -INFINITE;
  int64_t where = 0;
  for (int64_t p = 0; p < logits.pieces(); p++) {
    if (of_pieces[p] != of_pieces[p]) return -1;
    if (of_pieces[p] > most) most = of_pieces[p], where = p;
  }
  if (!std::isfinite(most)) return -1;
  const int64_t start = where * PIECE;
  return start + find(logits.row(row) + start, std::min(PIECE, logits.vocab - start), most);
}

// most: memory for rows × pieces floats.
inline void argmax(Worker& worker, const Logits& logits, float* most, int64_t* out) {
  const int64_t pieces = logits.pieces();
  worker.each(logits.rows * pieces, [&](int64_t i) {
    const int64_t start = i % pieces * PIECE;
    most[i] = largest(logits.row(i / pieces) + start, std::min(PIECE, logits.vocab - start));
  });
  worker.barrier();
  worker.each(logits.rows, [&](int64_t r) { out[r] = first_largest(logits, r, most + r * pieces); });
}

inline void argmax(const Logits& logits, int64_t* out, int threads) {
  const std::unique_ptr<float[]> most(new float[logits.rows * logits.pieces()]);
  together(logits.rows * logits.vocab < FEW ? 1 : threads,
           [&](Worker& worker) { argmax(worker, logits, most.get(), out); });
}

// One block of memory, from which arrays are taken: parts of equal size at each call are the quickest to get again.
class Memory {
 public:
  // Calls describe(*this) twice: first to see how much is taken, then to give it out.
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

// Calls work(worker, row, scratch) for every row: one row is computed by all threads together, several by one each.
template <class Scratch, class Work>
void by_rows(const Logits& logits, int threads, Work&& work) {
  if (logits.rows == 1) {
    Scratch scratch(logits);
    return together(logits.vocab < FEW ? 1 : threads, [&](Worker& worker) { work(worker, 0, scratch); });
  }
  const int64_t most = logits.rows * logits.vocab < FEW ? 1 : std::min<int64_t>(threads, logits.rows);
  together(static_cast<int>(most), [&](Worker& worker) {
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
