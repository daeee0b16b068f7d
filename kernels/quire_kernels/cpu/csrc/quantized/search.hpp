// Search for the scales of integer codes with the least squared error: `quire_plugins/quantization/scale_search.py`
// states the method and is the reference. Each lane searches for the scale of one group.
#pragma once
#include <atomic>

#include "scratch.hpp"
#include "thread_team.hpp"
#include "vec.hpp"

namespace quire {

enum class StoredAs : int32_t { float32, bfloat16, float16 };  // data types of scales and offsets

// Groups lie one after another. `clippings` are the starting scales, relative to the one that spans all values.
struct ScaleSearch {
  int64_t groups, size;  // size: elements of a group
  int32_t bits;
  int32_t has_offsets;  // codes are from 0, with any offset; otherwise around the middle code
  int32_t positive;     // scales are; only without offsets
  StoredAs stored;
  const float* clippings;
  int64_t num_clippings;
  uint8_t* codes;  // [groups · size]
  float* scales;   // [groups]
  float* offsets;  // [groups] if there are any
};

constexpr float LEAST_SEARCHED = 1e-30f;  // smaller magnitudes count as zero

// 1 / x, and 0 for 0
inline F16 inverse_or_zero(F16 x) { return where_above(abs(x), zero(), set1(1.0f) / x, zero()); }
inline F16 zero_if_small(F16 x) { return where_above(set1(LEAST_SEARCHED), abs(x), zero(), x); }
inline F16 clamped(F16 x, F16 low, F16 high) { return min(max(x, low), high); }

inline F16 as_stored(F16 x, StoredAs stored) {
  if (stored == StoredAs::float32) return x;
  if (stored == StoredAs::bfloat16) return rounded<bf16>(x);
  float lanes[LANES];
  store(lanes, x);
  for (float& lane : lanes) lane = from_half(to_half(lane));
  return load(lanes);
}

// Sixteen groups, [size][LANES].
struct GroupLanes {
  const float* x;
  int64_t size;
  F16 at(int64_t i) const { return load(x + i * LANES); }
};

struct FoundScales {
  F16 scales, offsets;
};

// Codes around zero: with codes q and the least-squares scale, the error is Σx² - (Σqx)² / Σq².
inline FoundScales search_around_zero(const GroupLanes& group, const ScaleSearch& search, F16 low, F16 high) {
  const int top = (1 << search.bits) - 1, middle = (top + 1) / 2;
  const F16 farthest = where_above(zero() - low, high, low, high);
  const F16 largest = zero_if_small(search.positive ? abs(farthest) : farthest), inverse = inverse_or_zero(largest);
  const float step = (search.positive ? 2.0f : -2.0f) / static_cast<float>(top + 1);
  const F16 least_code = set1(static_cast<float>(-middle)), most = set1(static_cast<float>(top - middle));
  F16 best = set1(step), gain = zero();
  for (int64_t attempt = 0; attempt <= search.num_clippings; attempt++) {
    const F16 start = attempt < search.num_clippings ? set1(step * search.clippings[attempt]) : best;
    const F16 by = inverse_or_zero(start);
    F16 dots = zero(), squares = zero();
    for (int64_t i = 0; i < group.size; i++) {
      const F16 unit = group.at(i) * inverse, q = clamped(round(unit * by), least_code, most);
      dots = fma(q, unit, dots);
      squares = fma(q, q, squares);
    }
    const F16 fitted = dots / squares, gains = dots * fitted;
    const F16 usable = where_above(fitted * set1(step), zero(), gains, zero());
    best = where_above(usable, gain, fitted, best);
    gain = where_above(usable, gain, gains, gain);
  }
  const F16 scales = as_stored(best * largest, search.stored);
  return {scales, scales * set1(static_cast<float>(-middle))};
}

// Codes with an offset: with the least-squares line through (code, value), the error is var(x) - cov(q, x)² / var(q).
inline FoundScales search_with_offsets(const GroupLanes& group, const ScaleSearch& search, F16 low, F16 high) {
  const float top = static_cast<float>((1 << search.bits) - 1), size = static_cast<float>(group.size);
  const F16 half = set1(0.5f), middle = low * half + high * half;  // halves, because the range may overflow
  const F16 width = zero_if_small(high * half - low * half), inverse = inverse_or_zero(width);
  const F16 count = set1(size), share = set1(1.0f / size);
  F16 total = zero();
  for (int64_t i = 0; i < group.size; i++) total = fma(group.at(i) - middle, inverse, total);
  const F16 mean = total * share;
  F16 scale = set1(2.0f / top), offset = set1(-1.0f), gain = zero();
  for (int64_t attempt = 0; attempt <= search.num_clippings; attempt++) {
    const bool given = attempt < search.num_clippings;
    const F16 start = given ? set1(-search.clippings[attempt]) : offset;
    const F16 by = inverse_or_zero(given ? set1(2.0f * search.clippings[attempt] / top) : scale);
    F16 sum = zero(), products = zero(), squares = zero();
    for (int64_t i = 0; i < group.size; i++) {
      const F16 unit = (group.at(i) - middle) * inverse, q = clamped(round((unit - start) * by), zero(), set1(top));
      sum = sum + q;
      products = fma(q, unit - mean, products);
      squares = fma(q, q, squares);
    }
    const F16 center = sum * share;
    const F16 fitted = products / (squares - center * center * count), gains = products * fitted;
    const F16 usable = where_above(fitted, zero(), gains, zero());
    const F16 better_scale = where_above(usable, gain, fitted, scale);
    offset = where_above(usable, gain, mean - fitted * center, offset);
    scale = better_scale;
    gain = where_above(usable, gain, gains, gain);
  }
  return {as_stored(scale * width, search.stored), as_stored(offset * width + middle, search.stored)};
}

// Fills lanes [size][LANES] from groups [LANES][size]; `count` of them are there.
template <class T>
void group_lanes(const T* groups, int64_t count, int64_t size, float* lanes) {
  for (int64_t g = 0; g < LANES; g++)
    for (int64_t i = 0; i < size; i++) lanes[i * LANES + g] = g < count ? to_float(groups[g * size + i]) : 0.0f;
}

// Groups first … first+count-1 of w, at most LANES; whether all weights are finite.
template <class T>
bool search_lanes(const T* w, const ScaleSearch& search, int64_t first, int64_t count) {
  static thread_local ScratchBuffer<float> lanes;
  lanes.fit(search.size * LANES);
  group_lanes(w + first * search.size, count, search.size, lanes.data());
  const GroupLanes group{lanes.data(), search.size};
  F16 low = group.at(0), high = low, nothing = zero();
  for (int64_t i = 0; i < group.size; i++) {
    const F16 x = group.at(i);
    low = min(low, x), high = max(high, x), nothing = fma(x, zero(), nothing);  // 0 · ∞ and 0 · NaN are NaN
  }
  if (sum(nothing) != 0.0f) return false;
  const FoundScales found = (search.has_offsets ? search_with_offsets : search_around_zero)(group, search, low, high);
  const F16 by = inverse_or_zero(found.scales), top = set1(static_cast<float>((1 << search.bits) - 1));
  const F16 middle = set1(static_cast<float>(1 << (search.bits - 1)));
  store(search.scales + first, found.scales, static_cast<int>(count));
  if (search.has_offsets) store(search.offsets + first, found.offsets, static_cast<int>(count));
  for (int64_t i = 0; i < group.size; i++) {
    float codes[LANES];
    const F16 x = group.at(i);
    store(codes, clamped(round(search.has_offsets ? (x - found.offsets) * by : fma(x, by, middle)), zero(), top));
    for (int64_t g = 0; g < count; g++)
      search.codes[(first + g) * group.size + i] = static_cast<uint8_t>(static_cast<int32_t>(codes[g]));
  }
  return true;
}

// Whether all weights were finite; otherwise codes and scales are incomplete.
template <class T>
bool search_scales(const T* w, const ScaleSearch& search, int threads) {
  constexpr int64_t AT_ONCE = 64;
  std::atomic<bool> finite{true};
  run_parallel(threads, [&](Worker& worker) {
    worker.each_few((search.groups + LANES - 1) / LANES, AT_ONCE, [&](int64_t first, int64_t count) {
      for (int64_t at = first * LANES; at < std::min((first + count) * LANES, search.groups); at += LANES)
        if (!search_lanes(w, search, at, std::min<int64_t>(LANES, search.groups - at))) finite = false;
    });
  });
  return finite;
}

}  // namespace quire
