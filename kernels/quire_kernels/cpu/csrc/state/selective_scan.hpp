// Mamba-1's selective scan: every channel has a state of some numbers, which decay by rates of their own.
//
//     S[n] = exp(rate[n] · dt) · S[n] + dt · x · B[n];  out = Σ S[n] · C[n] + skip · x;  dt = softplus(step)
//
// for the channels of a vector at once; tokens one after another, so that a prompt may be cut anywhere.
#pragma once
#include "state/scan_inputs.hpp"

namespace quire {

struct SelectiveArgs {
  const float *rate, *skip;  // [numbers, channels]; [channels]
  int64_t numbers;
};

// x [tokens, channels] is overwritten by the result; steps [tokens, channels]; b, c [tokens, numbers]; states [numbers,
// channels]
template <class T>
void selective_scan(Worker& worker, const SelectiveArgs& args, const StepRows& rows, RowStates<float> states, Rows<T> steps, Rows<T> b,
                    Rows<T> c, Rows<T> x) {
  const int64_t channels = x.width;
  static thread_local ScratchBuffer<float> copy;
  copy.fit(args.numbers * LANES);
  each_row_part(worker, rows, (channels + LANES - 1) / LANES, [&](int64_t row, int64_t part) {
    const int64_t at = part * LANES;
    const int lanes_used = static_cast<int>(std::min<int64_t>(LANES, channels - at));
    float *state = states.of(row) + at, *s = copy.data();
    for (int64_t n = 0; n < args.numbers; n++) store(s + n * LANES, get(state + n * channels, lanes_used));
    const F16 skip = get(args.skip + at, lanes_used);
    for (int64_t t = rows.query_starts[row]; t < rows.query_starts[row + 1]; t++) {
      const F16 given = get(x.row(t, 0) + at, lanes_used), dt = softplus(get(steps.row(t, 0) + at, lanes_used));
      const F16 added = dt * given;
      F16 seen = skip * given;
      for (int64_t n = 0; n < args.numbers; n++) {
        const F16 decay = exp(get(args.rate + n * channels + at, lanes_used) * dt);
        const F16 now = fma(added, set1(to_float(b.row(t, 0)[n])), load(s + n * LANES) * decay);
        store(s + n * LANES, now);
        seen = fma(now, set1(to_float(c.row(t, 0)[n])), seen);
      }
      set(x.row(t, 0) + at, seen, lanes_used);
    }
    for (int64_t n = 0; n < args.numbers; n++) set(state + n * channels, load(s + n * LANES), lanes_used);
  });
}

}  // namespace quire
