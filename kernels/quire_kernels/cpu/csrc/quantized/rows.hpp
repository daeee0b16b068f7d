// Rows of x as products with matrices of few bits read them: columns in the matrix's order, as bytes with a scale for
// each 32 or as floats, and what depends on the columns of each step alone.
#pragma once
#include "quantized/layout.hpp"
#include "rowwise.hpp"
#include "scratch.hpp"

namespace quire {

// scale: of the bytes; 1 for floats. sum: of the columns. start: the number that integer sums begin with.
struct StepOfRow {
  float scale, sum;
  int32_t start, unused;
};

// Each row: its columns, padded with zeros, then its steps.
struct PreparedRows {
  uint8_t* base;
  int64_t columns_bytes, num_steps;

  PreparedRows(void* base, const Quantized& q)
      : base(static_cast<uint8_t*>(base)),
        columns_bytes(padded(q.width() * (q.multiplies_floats() ? 4 : 1), LINE_BYTES)),
        num_steps(q.steps()) {}
  int64_t stride() const { return columns_bytes + padded(num_steps * static_cast<int64_t>(sizeof(StepOfRow)), LINE_BYTES); }
  uint8_t* row(int64_t r) const { return base + r * stride(); }
  StepOfRow* steps(int64_t r) const { return reinterpret_cast<StepOfRow*>(row(r) + columns_bytes); }
};

template <class T>
inline F16 load_until(const T* x, int64_t at, int64_t end) {
  if (at + LANES <= end) return load(x + at);
  return at < end ? load(x + at, static_cast<int>(end - at)) : zero();
}

template <class T>
void prepare_bytes(const T* x, int64_t inputs, const Quantized& q, int8_t* to, StepOfRow* steps_of_row) {
  const int64_t num_steps = q.steps(), in_group = MAX_STEP / q.step;
  F16 nothing = zero();
  for (int64_t i = 0, step = 0; i < q.width(); i += MAX_STEP) {
    const F16 a = load_until(x, i, inputs), b = load_until(x, i + LANES, inputs);
    nothing = fma(a, zero(), fma(b, zero(), nothing));  // 0 · ∞ and 0 · NaN are NaN
    const QuantScale scale = steps(largest(max(abs(a), abs(b))), true);
    const F16 by = set1(scale.inverse);
    store_bytes(to + i, a * by);
    store_bytes(to + i + LANES, b * by);
    for (int64_t part = 0; part < in_group && step < num_steps; part++, step++) {
      const int32_t pair = pair_sums(to + i + part * q.step, q.step);
      const int32_t start = q.kind == CodeKind::codes ? code_start(pair, q.zero) : byte_start(pair);
      steps_of_row[step] = {scale.scale, scale.scale * static_cast<float>(sum_of_pair(pair)), start, 0};
    }
  }
  if (sum(nothing) == 0.0f) return;
  for (int64_t step = 0; step < num_steps; step++) steps_of_row[step].scale = steps_of_row[step].sum = NAN;
}

template <class T>
void prepare_floats(const T* x, int64_t inputs, const Quantized& q, float* to, StepOfRow* steps_of_row) {
  for (int64_t i = 0; i < q.width(); i += LANES) store(to + i, load_until(x, i, inputs));
  for (int64_t step = 0; step < q.steps(); step++, to += q.step) {
    const F16 first = load(to);
    steps_of_row[step] = {1.0f, sum(q.step == LANES ? first : first + load(to + LANES)), 0, 0};
  }
}

template <class T>
void prepare_row(const T* x, int64_t inputs, const Quantized& q, const PreparedRows& to, int64_t r) {
  if (q.order) {
    static thread_local ScratchBuffer<T> ordered;
    ordered.fit(inputs);
    for (int64_t i = 0; i < inputs; i++) ordered[i] = x[q.order[i]];
    x = ordered.data();
  }
  if (q.multiplies_floats())
    prepare_floats(x, inputs, q, reinterpret_cast<float*>(to.row(r)), to.steps(r));
  else
    prepare_bytes(x, inputs, q, reinterpret_cast<int8_t*>(to.row(r)), to.steps(r));
}

// x [rows, inputs] with `stride` elements between rows; shared: memory for all rows. Few rows are prepared by each
// thread for itself, which is faster than waiting for another.
template <class T>
PreparedRows prepare_rows(Worker& worker, const T* x, int64_t stride, int64_t rows, int64_t inputs, const Quantized& q,
                          void* shared) {
  constexpr int64_t FEW = 4;
  PreparedRows to(shared, q);
  if (rows <= FEW) {
    static thread_local ScratchBuffer<uint8_t> mine;
    mine.fit(rows * to.stride());
    to.base = mine.data();
    for (int64_t r = 0; r < rows; r++) prepare_row(x + r * stride, inputs, q, to, r);
    return to;
  }
  each_row_block(worker, rows, inputs, [&](int64_t first, int64_t count) {
    for (int64_t r = first; r < first + count; r++) prepare_row(x + r * stride, inputs, q, to, r);
  });
  worker.barrier();
  return to;
}

}  // namespace quire
