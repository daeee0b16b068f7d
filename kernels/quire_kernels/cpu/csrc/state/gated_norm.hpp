// RMS norms with a gate, before or after the norm.
#pragma once
#include "rowwise.hpp"

namespace quire {

struct GatedNormArgs {
  const float* weight;     // [width], or [parts, width] if `by_part`
  int64_t by_part;
  float eps;
  Act act;
  bool gate_first;
};

template <class T>
void gated_norm_row(const GatedNormArgs& args, const T* x, const T* gate, const float* weight, int64_t width, T* out) {
  const auto gated = [&](int64_t i, int n) { return get(x + i, n) * activate<float>(args.act, get(gate + i, n)); };
  F16 squares = zero();
  lanes(width, [&](int64_t i, int n) {
    F16 y = args.gate_first ? gated(i, n) : get(x + i, n);
    if (n < LANES) y = keep(y, 0, n, zero());
    squares = fma(y, y, squares);
  });
  const F16 scale = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(width) + args.eps));
  lanes(width, [&](int64_t i, int n) { set(out + i, gated(i, n) * scale * get(weight + i, n), n); });
}

// Each part of x [tokens, parts, width] is normalized by itself.
template <class T>
void gated_rms_norm(Worker& worker, const GatedNormArgs& args, int64_t tokens, Rows<T> x, Rows<T> gate, Rows<T> out) {
  each_row_block(worker, tokens * x.parts, x.width, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++) {
      const int64_t token = i / x.parts, part = i % x.parts;
      const float* weight = args.weight + (args.by_part ? part * x.width : 0);
      gated_norm_row(args, x.row(token, part), gate.row(token, part), weight, x.width, out.row(token, part));
    }
  });
}

}  // namespace quire
