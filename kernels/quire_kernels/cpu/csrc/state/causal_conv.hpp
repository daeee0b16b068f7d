// Causal depthwise convolution whose window's inputs before a step's tokens are a state.
#pragma once
#include "state/rows.hpp"

namespace quire {

constexpr int64_t CONV_CHANNELS = 128;  // of an item

struct ConvArgs {
  const float *weight, *bias;  // [window, channels]; [channels] or null
  int64_t window;
  Act act;
};

// Some channels of a row: the input `back` positions before token t, which may be in the state [window - 1, channels],
// oldest first.
template <class T>
struct ConvInputs {
  const Rows<T>& x;
  const T* state;
  int64_t first, window, channels;

  const T* before(int64_t t, int64_t back) const {
    return t >= back ? x.row(first + t - back, 0) : state + (t - back + window - 1) * channels;
  }
};

template <class T>
void convolve(const ConvArgs& args, const ConvInputs<T>& in, int64_t length, int64_t from, int64_t count, const Rows<T>& out) {
  const int64_t channels = in.channels;
  for (int64_t t = 0; t < length; t++) {
    T* to = out.row(in.first + t, 0) + from;
    lanes(count, [&](int64_t i, int n) {
      const int64_t at = from + i;
      F16 sum = args.bias ? get(args.bias + at, n) : zero();
      for (int64_t tap = 0; tap < args.window; tap++)
        sum = fma(get(args.weight + tap * channels + at, n), get(in.before(t, args.window - 1 - tap) + at, n), sum);
      set(to + i, activate<T>(args.act, sum), n);
    });
  }
}

// x [tokens, channels] -> out; the states [window - 1, channels] become the last inputs of each row.
template <class T>
void causal_conv(Worker& worker, const ConvArgs& args, const StepRows& rows, RowStates<T> states, Rows<T> x, Rows<T> out) {
  const int64_t channels = x.width, kept = args.window - 1;
  each_row_part(worker, rows, (channels + CONV_CHANNELS - 1) / CONV_CHANNELS, [&](int64_t row, int64_t part) {
    const int64_t first = rows.query_starts[row], length = rows.query_starts[row + 1] - first;
    const int64_t from = part * CONV_CHANNELS, count = std::min(CONV_CHANNELS, channels - from);
    T* state = states.of(row);
    const ConvInputs<T> in{x, state, first, args.window, channels};
    convolve(args, in, length, from, count, out);
    // ascending: position j is read before it is written for a later one
    for (int64_t j = 0; j < kept; j++)
      std::memmove(state + j * channels + from, in.before(length - 1, kept - 1 - j) + from, count * sizeof(T));
  });
}

}  // namespace quire
