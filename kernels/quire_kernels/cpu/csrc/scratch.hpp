// Memory that a thread reuses between calls, aligned to a cache line: a vector that straddles two lines costs
// twice.
#pragma once
#include <cstdlib>
#include <new>

namespace quire {

template <class T>
class ScratchBuffer {
 public:
  ScratchBuffer() = default;
  ScratchBuffer(const ScratchBuffer&) = delete;
  ScratchBuffer& operator=(const ScratchBuffer&) = delete;
  ~ScratchBuffer() { std::free(data_); }

  // Make space for at least `count` elements; growing discards the contents.
  void fit(size_t count) {
    if (count <= count_) return;
    std::free(data_);
    const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;
    data_ = static_cast<T*>(std::aligned_alloc(64, bytes));
    if (data_ == nullptr) throw std::bad_alloc();
    count_ = count;
  }
  T* data() { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace quire
