// The instructions of a program whose operations keep states.
#pragma once
#include "state/causal_conv.hpp"
#include "state/gated_norm.hpp"
#include "state/scan.hpp"
#include "state/selective_scan.hpp"

namespace quire {

// How an interpreter (`program/program.hpp`) runs the instructions of this file; `layer` is the number of the state tensor.
template <class T, class Interpreter, class Instruction>
struct StateInstructions {
  const Interpreter& at;
  const Instruction& i;

  template <class S>
  RowStates<S> states(int64_t size) const {
    return {static_cast<S*>(at.step.states[i.layer]), at.step.state_slots, size};
  }

  // weight: [window, channels]; window: its taps
  void convolve() const {
    const ConvArgs args{static_cast<const float*>(i.weight), static_cast<const float*>(i.bias), i.window, i.act};
    const Rows<T> x = at.rows(i.in[0]);
    causal_conv(at.worker, args, at.step.rows, states<T>((i.window - 1) * x.width), x, at.rows(i.out));
  }

  // weight: the `ScanParams`; in: queries, keys and values; decays; weights (of the delta rule)
  template <bool DELTA>
  void scan_heads() const {
    const ScanParams& p = *static_cast<const ScanParams*>(i.weight);
    const ScanTensors<T> tensors{at.rows(i.in[0]), at.rows(i.in[1]), at.rows(i.in[2])};
    scan<T, DELTA>(at.worker, p, at.step.rows, states<float>(p.heads * p.key_dim * p.value_dim), tensors, at.rows(i.out));
  }

  // weight: rates; bias: the skip; window: numbers of a channel; in: steps, B, C; out: x, overwritten
  void scan_channels() const {
    const SelectiveArgs args{static_cast<const float*>(i.weight), static_cast<const float*>(i.bias), i.window};
    const Rows<T> x = at.rows(i.out);
    selective_scan(at.worker, args, at.step.rows, states<float>(i.window * x.width), at.rows(i.in[0]), at.rows(i.in[1]), at.rows(i.in[2]), x);
  }

  // weight: float32, of every part its own if `wide`; gated: whether the gate comes first
  void normalize() const {
    const GatedNormArgs args{static_cast<const float*>(i.weight), i.wide, i.factor, i.act, i.gated != 0};
    gated_rms_norm(at.worker, args, at.tokens, at.rows(i.in[0]), at.rows(i.in[1]), at.rows(i.out));
  }
};

}  // namespace quire
