// The scan over the matrix states of heads: gated delta rule and Mamba-2.
//
// Every token does the same operations in the same order, whether a row's tokens come in one step or in many: results
// and states are bit-identical however a prompt is cut. With S the state, k, v, q a token's key, value and query:
//
//     S = decay · S;  w = weight · (v - kᵀ S);  S = S + k wᵀ;  out = qᵀ S        (delta rule)
//     S = decay · S + k vᵀ;  out = qᵀ S                                          (Mamba-2)
//
// In the delta rule, qᵀ S = qᵀ (decay · S) + (q · k) wᵀ, so one pass over S reads both products, and the next token's
// pass adds k wᵀ. A few columns of S stay in the first-level cache for some tokens.
#pragma once
#include "state/scan_inputs.hpp"

namespace quire {

// Columns of a state for up to SCAN_TOKENS tokens. s: [key_dim, stride], V vectors of it.
template <bool DELTA, bool CHANNELS, int V>
struct ColumnScan {
  const ScanParams& p;
  HeadInputs& in;
  float* s;
  int64_t stride;

  F16 decay(int64_t t, int64_t n) const { return set1(CHANNELS ? in.decays[t * p.key_dim + n] : in.decays[t]); }

  // One token: adds what the token before left pending (its key is `added`) unless there was none, decays, and reads.
  template <bool ADDS>
  void pass(int64_t t, const float* added, const F16 (&pending)[V], F16 (&read)[V], F16 (&seen)[V]) const {
    const float *key = in.keys.data() + t * p.key_dim, *query = in.queries.data() + t * p.key_dim;
    for (int i = 0; i < V; i++) read[i] = seen[i] = zero();
    const F16 all = set1(in.decays[t]);
    for (int64_t n = 0; n < p.key_dim; n++) {
      const F16 k = set1(key[n]), q = set1(query[n]), d = CHANNELS ? decay(t, n) : all;
      float* row = s + n * stride;
#pragma GCC unroll 8
      for (int i = 0; i < V; i++) {
        F16 x = load(row + i * LANES);
        if constexpr (ADDS) x = fma(set1(added[n]), pending[i], x);
        x = x * d;
        store(row + i * LANES, x);
        read[i] = fma(k, x, read[i]);
        seen[i] = fma(q, x, seen[i]);
      }
    }
  }

  void add(const float* key, const F16 (&pending)[V]) const {
    for (int64_t n = 0; n < p.key_dim; n++)
#pragma GCC unroll 8
      for (int i = 0; i < V; i++)
        store(s + n * stride + i * LANES, fma(set1(key[n]), pending[i], load(s + n * stride + i * LANES)));
  }

  void delta(int64_t count, int64_t column) const {
    F16 pending[V], read[V], seen[V];
    for (int i = 0; i < V; i++) pending[i] = zero();
    const float* added = nullptr;
    for (int64_t t = 0; t < count; t++) {
      if (t)
        pass<true>(t, added, pending, read, seen);
      else
        pass<false>(t, added, pending, read, seen);
      const float* v = in.values.data() + t * in.columns + column;
      for (int i = 0; i < V; i++) {
        pending[i] = set1(in.weights[t]) * (load(v + i * LANES) - read[i]);
        store(in.outputs.data() + t * in.columns + column + i * LANES, fma(set1(in.dots[t]), pending[i], seen[i]));
      }
      added = in.keys.data() + t * p.key_dim;
    }
    add(added, pending);
  }

  void ssd(int64_t count, int64_t column) const {
    for (int64_t t = 0; t < count; t++) {
      const float *key = in.keys.data() + t * p.key_dim, *query = in.queries.data() + t * p.key_dim;
      const float* v = in.values.data() + t * in.columns + column;
      F16 value[V], seen[V];
      for (int i = 0; i < V; i++) value[i] = load(v + i * LANES), seen[i] = zero();
      const F16 d = set1(in.decays[t]);
      for (int64_t n = 0; n < p.key_dim; n++) {
        const F16 k = set1(key[n]), q = set1(query[n]);
        float* row = s + n * stride;
#pragma GCC unroll 8
        for (int i = 0; i < V; i++) {
          const F16 x = fma(k, value[i], load(row + i * LANES) * d);
          store(row + i * LANES, x);
          seen[i] = fma(q, x, seen[i]);
        }
      }
      for (int i = 0; i < V; i++) store(in.outputs.data() + t * in.columns + column + i * LANES, seen[i]);
    }
  }

  void run(int64_t count, int64_t column) const {
    if constexpr (DELTA)
      delta(count, column);
    else
      ssd(count, column);
  }
};

// Scans one token in place, for whole groups of V vectors of columns; false if the state has others.
template <bool DELTA, bool CHANNELS, int V>
bool scan_token(const ScanParams& p, HeadInputs& in, float* state) {
  constexpr int64_t WIDE = V * LANES;
  if (p.value_dim % WIDE) return false;
  for (int64_t column = 0; column < p.value_dim; column += WIDE)
    ColumnScan<DELTA, CHANNELS, V>{p, in, state + column, p.value_dim}.run(1, column);
  return true;
}

#if defined(__AVX512F__)
constexpr int WIDE_SCAN = 8, NARROW_SCAN = 4;
#else
constexpr int WIDE_SCAN = 2, NARROW_SCAN = 1;
#endif

// Scans `count` prepared tokens of one head, whose state is [key_dim, value_dim]. Columns that are used only once are
// not copied.
template <bool DELTA, bool CHANNELS>
void scan_head(const ScanParams& p, HeadInputs& in, int64_t count, float* state) {
  if (count == 1 && (scan_token<DELTA, CHANNELS, WIDE_SCAN>(p, in, state) || scan_token<DELTA, CHANNELS, NARROW_SCAN>(p, in, state)))
    return;
  static thread_local ScratchBuffer<float> copy;
  copy.fit(p.key_dim * SCAN_COLUMNS);
  for (int64_t column = 0; column < p.value_dim; column += SCAN_COLUMNS) {
    const int64_t width = std::min(SCAN_COLUMNS, p.value_dim - column);
    for (int64_t n = 0; n < p.key_dim; n++) {
      float *from = state + n * p.value_dim + column, *to = copy.data() + n * SCAN_COLUMNS;
      if (width < SCAN_COLUMNS) store(to, zero(), zero());
      lanes(width, [&](int64_t i, int m) { set(to + i, get(from + i, m), m); });
    }
    ColumnScan<DELTA, CHANNELS, 2>{p, in, copy.data(), SCAN_COLUMNS}.run(count, column);
    for (int64_t n = 0; n < p.key_dim; n++) {
      float *to = state + n * p.value_dim + column, *from = copy.data() + n * SCAN_COLUMNS;
      lanes(width, [&](int64_t i, int m) { set(to + i, get(from + i, m), m); });
    }
  }
}

// out [tokens, heads, value_dim]
template <class T>
void write_outputs(const ScanParams& p, const ScanTensors<T>& x, HeadInputs& in, int64_t token, int64_t head,
                   int64_t count, const Rows<T>& out) {
  for (int64_t t = 0; t < count; t++) {
    const float* from = in.outputs.data() + t * in.columns;
    const T* values = x.joined.row(token + t, 0) + head * p.value_dim;
    const F16 skip = set1(p.skip ? p.skip[head] : 0.0f);
    lanes(p.value_dim, [&](int64_t i, int n) {
      F16 y = load(from + i);
      if (p.skip) y = fma(skip, get(values + i, n), y);
      set(out.row(token + t, head) + i, y, n);
    });
  }
}

template <class T, bool DELTA>
void scan(Worker& worker, const ScanParams& p, const StepRows& rows, RowStates<float> states, const ScanTensors<T>& x, Rows<T> out) {
  static thread_local HeadInputs in;
  in.fit(p);
  std::fill_n(in.values.data(), SCAN_TOKENS * in.columns, 0.0f);
  each_row_part(worker, rows, p.heads, [&](int64_t row, int64_t head) {
    float* state = states.of(row) + head * p.key_dim * p.value_dim;
    const int64_t end = rows.query_starts[row + 1];
    for (int64_t token = rows.query_starts[row]; token < end; token += SCAN_TOKENS) {
      const int64_t count = std::min(SCAN_TOKENS, end - token);
      for (int64_t t = 0; t < count; t++) {
        if constexpr (DELTA)
          prepare_delta(p, x, token + t, head, t, in);
        else
          prepare_ssd(p, x, token + t, head, t, in);
      }
      if (DELTA && p.by_channel)
        scan_head<DELTA, DELTA>(p, in, count, state);
      else
        scan_head<DELTA, false>(p, in, count, state);
      write_outputs(p, x, in, token, head, count, out);
    }
  });
}

}  // namespace quire
