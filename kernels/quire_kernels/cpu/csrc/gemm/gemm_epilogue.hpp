// Epilogue of a product: adds the bias, applies the activation, rounds and stores the sums to y.
#pragma once
#include <algorithm>

#include "act.hpp"
#include "gemm/packed.hpp"

namespace quire {

enum class EpilogueKind : int32_t { plain, gated, active, clamped };

// Output of a product: y [rows, outputs] of T (of float, if `wide`); gated: y [rows, outputs / 2] = act(gate) · up;
// active: y = act(sum); clamped: y [rows, outputs / 2] = a sigmoid(alpha a) (b + 1), a = min(gate, limit), b = up
// within ± limit; act must be sigmoid.
struct GemmOutput {
  void* y;
  int64_t stride;  // elements between rows of y
  const void* bias;
  EpilogueKind finish;
  Act act;
  int32_t wide;
  float alpha = 0, limit = 0;
};

template <class Y>
inline void put_lanes(Y* row, int64_t at, int64_t end, F16 x) {
  if (at + LANES <= end)
    store(row + at, x);
  else if (at < end)
    store(row + at, x, static_cast<int>(end - at));
}

// Processes the sums of some rows and one panel, [rows][PANEL]; possibly a few rows at a time, beside the next
// sums. row: number of the first row.
template <class T>
class Epilogue {
 public:
  Epilogue() = default;
  Epilogue(const Packed& w, const GemmOutput& to, int64_t panel, int64_t row, int64_t rows, const float* sums)
      : to_(&to), sums_(sums), row_(row), left_(rows) {
    const int64_t half = w.outputs / 2;
    at0_ = w.halves ? panel * LANES : panel * PANEL, at1_ = w.halves ? half + at0_ : at0_ + LANES;
    end0_ = w.halves ? half : w.outputs, end1_ = w.outputs;
    bias0_ = bias1_ = zero();
    if (to.bias) {
      const T* bias = static_cast<const T*>(to.bias);
      if (at0_ < end0_) bias0_ = load(bias + at0_, static_cast<int>(std::min<int64_t>(LANES, end0_ - at0_)));
      if (at1_ < end1_) bias1_ = load(bias + at1_, static_cast<int>(std::min<int64_t>(LANES, end1_ - at1_)));
    }
    whole_ = at0_ + LANES <= end0_ && at1_ + LANES <= end1_ && !to.wide && (to.finish == EpilogueKind::gated || !w.halves) && to.finish != EpilogueKind::clamped;
  }

  void some(int64_t rows) {
    rows = std::min(rows, left_);
    if (whole_ && to_->finish == EpilogueKind::plain) {
      for (int64_t r = 0; r < rows; r++) plain(static_cast<T*>(to_->y) + (row_ + r) * to_->stride + at0_, r);
    } else if (whole_ && to_->finish == EpilogueKind::active) {
      for (int64_t r = 0; r < rows; r++)
        store(static_cast<T*>(to_->y) + (row_ + r) * to_->stride + at0_, active(left(r)), active(right(r)));
    } else if (whole_ && to_->act == Act::silu) {
      for (int64_t r = 0; r < rows; r++)
        store(static_cast<T*>(to_->y) + (row_ + r) * to_->stride + at0_, joined<Act::silu>(r));
    } else {
      for (int64_t r = 0; r < rows; r++) piecewise(r);
    }
    row_ += rows, left_ -= rows, sums_ += rows * PANEL;
  }
  void rest() { some(left_); }

 private:
  F16 left(int64_t r) const { return load(sums_ + r * PANEL) + bias0_; }
  F16 right(int64_t r) const { return load(sums_ + r * PANEL + LANES) + bias1_; }
  void plain(T* y, int64_t r) const { store(y, left(r), right(r)); }
  template <Act ACT>
  F16 joined(int64_t r) const {
    return activate<T>(ACT, rounded<T>(left(r))) * rounded<T>(right(r));
  }
  F16 active(F16 sum) const { return activate<T>(to_->act, rounded<T>(sum)); }
  F16 clamped(int64_t r) const {
    const F16 limit = set1(to_->limit), gate = min(limit, rounded<T>(left(r)));
    const F16 up = max(zero() - limit, min(limit, rounded<T>(right(r))));
    return gate * sigmoid<T>(set1(to_->alpha) * gate) * (up + set1(1.0f));
  }
  void piecewise(int64_t r) const {
    if (to_->finish == EpilogueKind::clamped)
      return put_lanes(static_cast<T*>(to_->y) + (row_ + r) * to_->stride, at0_, end0_, clamped(r));
    if (to_->finish == EpilogueKind::gated)
      return put_lanes(static_cast<T*>(to_->y) + (row_ + r) * to_->stride, at0_, end0_,
                       activate<T>(to_->act, rounded<T>(left(r))) * rounded<T>(right(r)));
    if (to_->wide) return both(static_cast<float*>(to_->y), r);
    both(static_cast<T*>(to_->y), r);
  }
  template <class Y>
  void both(Y* y, int64_t r) const {
    const bool plain = to_->finish == EpilogueKind::plain;
    put_lanes(y + (row_ + r) * to_->stride, at0_, end0_, plain ? left(r) : active(left(r)));
    put_lanes(y + (row_ + r) * to_->stride, at1_, end1_, plain ? right(r) : active(right(r)));
  }

  const GemmOutput* to_ = nullptr;
  const float* sums_ = nullptr;
  int64_t row_ = 0, left_ = 0, at0_ = 0, at1_ = 0, end0_ = 0, end1_ = 0;
  F16 bias0_, bias1_;
  bool whole_ = false;  // the usual case: all lanes are stored
};

template <class T>
void apply_epilogue(const Packed& w, const GemmOutput& to, int64_t panel, int64_t row, int64_t rows, const float* sums) {
  Epilogue<T>(w, to, panel, row, rows, sums).rest();
}

// Prefetches the lines of y that the sums of these rows and a panel will be written to.
template <class T>
void prefetch_outputs(const Packed& w, const GemmOutput& to, int64_t panel, int64_t row, int64_t rows) {
  const int64_t bytes = to.wide ? sizeof(float) : sizeof(T), width = w.halves ? LANES : PANEL;
  const char* at = static_cast<const char*>(to.y) + (row * to.stride + panel * width) * bytes;
  for (int64_t r = 0; r < rows; r++, at += to.stride * bytes)
    for (int64_t line = 0; line < width * bytes; line += 64) prefetch_l1(at + line);
}

}  // namespace quire
