// What a head's scan reads of some tokens, in float32.
//
// The gated delta rule and Mamba-2's scan are one recurrence of a matrix [key_dim, value_dim] for each head: it decays,
// takes the outer product of a key and a value, and is read by a query.
#pragma once
#include "scratch.hpp"
#include "state/rows.hpp"

namespace quire {

constexpr int64_t SCAN_TOKENS = 32;           // prepared at once
constexpr int64_t SCAN_COLUMNS = 2 * LANES;   // of a state, computed at once

// Python's `structs.ScanParams` has the same fields.
struct ScanParams {
  const float *rate, *bias, *skip;  // [heads]; [heads], or [heads, key_dim] if decays are by channel; [heads] or null
  int64_t heads, key_heads, key_dim, value_dim;
  float factor;     // of the delta rule's weights
  float low, high;  // limits of Mamba-2's time steps
  int32_t by_channel;
};

// The tensors of a step: joined has queries, keys and values (delta rule), or values, keys and queries (Mamba-2).
template <class T>
struct ScanTensors {
  Rows<T> joined, decays, weights;
};

struct HeadInputs {
  ScratchBuffer<float> keys, queries, values, decays, weights, dots, outputs;
  int64_t columns = 0;  // of values and outputs, padded

  void fit(const ScanParams& p) {
    columns = padded(p.value_dim, SCAN_COLUMNS);
    keys.fit(SCAN_TOKENS * p.key_dim), queries.fit(SCAN_TOKENS * p.key_dim);
    values.fit(SCAN_TOKENS * columns), outputs.fit(SCAN_TOKENS * columns);
    decays.fit(SCAN_TOKENS * (p.by_channel ? p.key_dim : 1));
    weights.fit(SCAN_TOKENS), dots.fit(SCAN_TOKENS);
  }
};

// log(1 + e^x) = max(x, 0) + 2 atanh(y / (2 + y)) with y = e^-|x|; nine terms of atanh's series, whose argument is at
// most 1/3.
inline F16 softplus(F16 x) {
  const F16 y = exp(zero() - abs(x)), s = y / (set1(2.0f) + y), t = s * s;
  F16 p = set1(1.0f / 17);
  for (float c : {1.0f / 15, 1.0f / 13, 1.0f / 11, 1.0f / 9, 1.0f / 7, 1.0f / 5, 1.0f / 3, 1.0f}) p = fma(p, t, set1(c));
  return max(zero(), x) + set1(2.0f) * s * p;
}
inline float first_lane(F16 x) {
  float all[LANES];
  store(all, x);
  return all[0];
}

template <class T>
inline void widen_row(const T* from, float factor, int64_t width, float* to) {
  lanes(width, [&](int64_t i, int n) { set(to + i, get(from + i, n) * set1(factor), n); });
}

template <class T>
inline float inverse_length(const T* x, int64_t width) {
  return 1.0f / std::sqrt(sum_of_squares(x, width) + 1e-6f);
}

template <class T>
void prepare_delta(const ScanParams& p, const ScanTensors<T>& x, int64_t token, int64_t head, int64_t t, HeadInputs& in) {
  const int64_t dim = p.key_dim, key_head = head / (p.heads / p.key_heads);
  const T* q = x.joined.row(token, 0) + key_head * dim;
  const T* k = q + p.key_heads * dim;
  const T* v = x.joined.row(token, 0) + 2 * p.key_heads * dim + head * p.value_dim;
  float *key = in.keys.data() + t * dim, *query = in.queries.data() + t * dim;
  widen_row(k, inverse_length(k, dim), dim, key);
  widen_row(q, inverse_length(q, dim) / std::sqrt(static_cast<float>(dim)), dim, query);
  widen_row(v, 1.0f, p.value_dim, in.values.data() + t * in.columns);
  F16 dot = zero();
  lanes(dim, [&](int64_t i, int n) { dot = fma(load(key + i, n), load(query + i, n), dot); });
  in.dots[t] = sum(dot);
  in.weights[t] = p.factor * first_lane(sigmoid<float>(set1(to_float(x.weights.row(token, 0)[head]))));
  const F16 rate = set1(p.rate[head]);
  if (!p.by_channel) {
    const F16 step = set1(to_float(x.decays.row(token, 0)[head]) + p.bias[head]);
    in.decays[t] = first_lane(exp(rate * softplus(step)));
    return;
  }
  const T* steps = x.decays.row(token, 0) + head * dim;
  const float* bias = p.bias + head * dim;
  lanes(dim, [&](int64_t i, int n) { set(in.decays.data() + t * dim + i, exp(rate * softplus(get(steps + i, n) + get(bias + i, n))), n); });
}

template <class T>
void prepare_ssd(const ScanParams& p, const ScanTensors<T>& x, int64_t token, int64_t head, int64_t t, HeadInputs& in) {
  const int64_t dim = p.key_dim, group = head / (p.heads / p.key_heads);
  const T* v = x.joined.row(token, 0);
  const T* k = v + p.heads * p.value_dim + group * dim;
  const float step = first_lane(softplus(set1(to_float(x.decays.row(token, 0)[head]) + p.bias[head])));
  const float limited = std::min(std::max(step, p.low), p.high);
  widen_row(k, 1.0f, dim, in.keys.data() + t * dim);
  widen_row(k + p.key_heads * dim, 1.0f, dim, in.queries.data() + t * dim);
  widen_row(v + head * p.value_dim, limited, p.value_dim, in.values.data() + t * in.columns);
  in.decays[t] = first_lane(exp(set1(p.rate[head] * limited)));
}

}  // namespace quire
