// Kernels for a number of rows that is known at compile time, chosen at run time.
#pragma once
#include <cstdint>
#include <type_traits>

namespace quire {

// Calls work(ROWS), a compile-time constant, for 1 ≤ rows ≤ MAX.
template <int MAX, class Work>
inline void with_constant(int64_t rows, Work&& work) {
  if constexpr (MAX > 1)
    if (rows < MAX) return with_constant<MAX - 1>(rows, work);
  work(std::integral_constant<int, MAX>{});
}

// Calls work(first, ROWS) for tiles of about equal height, at most MAX, that make up `rows`.
template <int MAX, class Work>
inline void each_tile_of(int64_t rows, Work&& work) {
  const int64_t tiles = (rows + MAX - 1) / MAX;
  for (int64_t i = 0; i < tiles; i++) {
    const int64_t first = rows * i / tiles;
    with_constant<MAX>(rows * (i + 1) / tiles - first, [&](auto count) { work(first, count); });
  }
}

}  // namespace quire
