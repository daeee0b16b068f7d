// Products with a range of panels of one expert's matrix, computed by a single thread.
#pragma once
#include "gemm/gemm.hpp"
#include "gemm/gemm_int8.hpp"
#include "quantized/multiply.hpp"

namespace quire {

enum class MatrixKind : int32_t { plain, int8, quantized };

// weight: the scales of int8, the `Quantized` of few bits. bias: of T, or null.
struct ExpertMatrix {
  Packed packed;
  const void* weight;
  const void* bias;
};

// The matrices of all experts. row_bytes: memory that a row of x takes when it is quantized; 0 for plain ones.
struct ExpertMatrices {
  const ExpertMatrix* of;  // each expert
  MatrixKind kind;
  int64_t row_bytes;

  template <class T>
  int64_t panel_bytes(const Packed& w) const {
    if (kind == MatrixKind::int8) return w.panel_bytes(padded(w.inputs, BYTE_STEP) / 4);
    return w.panel_bytes(padded(w.inputs, INPUT_STEP) / PER_UNIT<T>);
  }
};

// A team of one thread, whose products do not involve the others.
class SoloWorker {
 public:
  SoloWorker() : worker_(team(), 0, 1) { worker_.barrier(); }
  Worker& get() { return worker_; }
  void finish() { worker_.barrier(); }

 private:
  static Team& team() {
    static thread_local Team mine;
    return mine;
  }
  Worker worker_;
};

// x [rows, inputs] times the panels first … last-1 of an expert's matrix. to.y: where output 0 of the matrix is, or of
// the first half if the epilogue joins halves; to.bias is not read.
template <class T>
class PanelProduct {
 public:
  PanelProduct(const ExpertMatrices& matrices, int64_t expert, int64_t first, int64_t last) : matrices_(matrices), first_(first) {
    const ExpertMatrix& whole = matrices.of[expert];
    part_ = whole.packed, weight_ = whole.weight;
    const int64_t size = whole.packed.halves ? LANES : PANEL, half = whole.packed.outputs / 2;
    begin_ = first * size;
    count_ = std::min(whole.packed.halves ? half : whole.packed.outputs, last * size) - begin_;
    part_.units += first * (matrices.panel_bytes<T>(whole.packed) / 4);
    part_.outputs = whole.packed.halves ? 2 * count_ : count_;
    if (whole.bias) take_bias(static_cast<const T*>(whole.bias), half);
  }

  int64_t begin() const { return begin_; }  // the first output, or of the first half
  int64_t count() const { return count_; }

  void multiply_rows(SoloWorker& solo, const T* x, int64_t stride, int64_t rows, GemmOutput to) {
    PrefetchQueue queue;
    to.bias = bias_;
    if (matrices_.kind == MatrixKind::int8) {
      multiply_int8<T>(solo.get(), x, stride, rows, part_, static_cast<const float*>(weight_) + first_ * PANEL, prepared(rows), to, queue);
    } else if (matrices_.kind == MatrixKind::quantized) {
      Quantized q = *static_cast<const Quantized*>(weight_);
      q.factors += first_ * PANEL;
      multiply_quantized<T>(solo.get(), x, stride, rows, part_, q, prepared(rows), to, queue);
    } else {
      multiply<T>(solo.get(), x, stride, rows, part_, to, queue);
    }
    solo.finish();
  }

 private:
  const ExpertMatrices& matrices_;
  Packed part_;
  const void* weight_;
  const T* bias_ = nullptr;
  int64_t first_, begin_, count_;

  // The biases of these outputs; those of both halves, one after another.
  void take_bias(const T* bias, int64_t half) {
    if (!part_.halves) return void(bias_ = bias + begin_);
    static thread_local ScratchBuffer<T> both;
    both.fit(2 * count_);
    std::copy_n(bias + begin_, count_, both.data());
    std::copy_n(bias + half + begin_, count_, both.data() + count_);
    bias_ = both.data();
  }

  void* prepared(int64_t rows) const {
    static thread_local ScratchBuffer<char> memory;
    memory.fit(rows * matrices_.row_bytes);
    return memory.data();
  }
};

}  // namespace quire
