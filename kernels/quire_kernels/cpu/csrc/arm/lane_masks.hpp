// Comparisons of lanes as bit masks (bit i = lane i), and sums in double precision; `simd_masks.hpp` includes this file.
#pragma once

namespace quire {

template <class Compare>
inline uint32_t mask_of(Compare compare) {
  uint32_t mask = 0;
  const Words bits = same(uint32_t{1}) << reinterpret_cast<Words>(lane_numbers());
  for (int i = 0; i < PARTS; i++) mask |= sum_of(reinterpret_cast<Words>(compare(i)) & bits) << i * WIDTH;
  return mask;
}
inline uint32_t at_least(F16 x, F16 y) {
  return mask_of([&](int i) { return x.v[i] >= y.v[i]; });
}
inline uint32_t above(F16 x, F16 y) {
  return mask_of([&](int i) { return x.v[i] > y.v[i]; });
}
inline uint32_t equal(F16 x, F16 y) {
  return mask_of([&](int i) { return x.v[i] == y.v[i]; });
}
// lanes where one of the two is NaN
inline uint32_t nan_in(F16 x, F16 y) {
  return mask_of([&](int i) { return (x.v[i] != x.v[i]) | (y.v[i] != y.v[i]); });
}
inline F16 zero_below(F16 x, F16 least) {
  return each_part<F16>([&](int i) { return x.v[i] >= least.v[i] ? x.v[i] : same(0.0f); });
}
// Stores the lanes of the mask contiguously at `to`.
inline void pack_found(float* to, F16 x, uint32_t found) {
  float lanes[LANES];
  store(lanes, x);
  for (; found; found &= found - 1) *to++ = lanes[__builtin_ctz(found)];
}

// Sums sixteen floats as doubles: exact as long as all are integers and the sum is below 2^53.
struct Total {
  double lanes[LANES] = {};
  void add(F16 x) {
    float floats[LANES];
    store(floats, x);
    for (int i = 0; i < LANES; i++) lanes[i] += floats[i];
  }
  double value() const {
    double total = 0;
    for (double lane : lanes) total += lane;
    return total;
  }
};

}  // namespace quire
