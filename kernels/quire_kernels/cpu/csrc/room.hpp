// Memory that one thread keeps between calls, aligned to a line of cache: a vector that straddles two costs twice.
#pragma once
#include <cstdlib>
#include <new>

namespace quire {

template <class T>
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() { std::free(data_); }

  // At least `count` elements; what they hold is lost when there were fewer.
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
