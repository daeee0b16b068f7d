// Operations on each token separately: norms, activations, sums. Sums are in float32 and in a fixed order.
#pragma once
#include <algorithm>

#include "act.hpp"
#include "thread_team.hpp"

namespace quire {

// Rows of a tensor: token t, part p (a head) start at base + t · stride + p · width.
template <class T>
struct Rows {
  T* base;
  int64_t stride;
  int64_t parts, width;
  T* row(int64_t token, int64_t part) const { return base + token * stride + part * width; }
};

// Calls work(first, count) for blocks of the `rows` rows of `width` elements; blocks are large enough to be worth
// distributing.
template <class Work>
void each_row_block(Worker& worker, int64_t rows, int64_t width, Work&& work) {
  const int64_t step = std::max<int64_t>(1, 4096 / std::max<int64_t>(width, 1));
  worker.each((rows + step - 1) / step, [&](int64_t i) { work(i * step, std::min(step, rows - i * step)); });
}

// Calls work(i, n) for chunks of n ≤ 16 lanes that make up `width`.
template <class Work>
inline void lanes(int64_t width, Work&& work) {
  int64_t i = 0;
  for (; i + LANES <= width; i += LANES) work(i, LANES);
  if (i < width) work(i, static_cast<int>(width - i));
}
template <class T>
inline F16 get(const T* p, int n) {
  return n == LANES ? load(p) : load(p, n);
}
template <class T>
inline void set(T* p, F16 x, int n) {
  if (n == LANES)
    store(p, x);
  else
    store(p, x, n);
}

template <class T>
inline float sum_of_squares(const T* x, int64_t width) {
  F16 even = zero(), odd = zero();
  int64_t i = 0;
  for (; i + 2 * LANES <= width; i += 2 * LANES) {
    const F16 a = load(x + i), b = load(x + i + LANES);
    even = fma(a, a, even);
    odd = fma(b, b, odd);
  }
  lanes(width - i, [&](int64_t j, int n) {
    const F16 a = get(x + i + j, n);
    even = fma(a, a, even);
  });
  return sum(even + odd);
}

template <class T, class W>
inline void rms_norm_row(const T* x, const W* weight, float eps, int64_t width, T* out) {
  const F16 scale = set1(1.0f / std::sqrt(sum_of_squares(x, width) / static_cast<float>(width) + eps));
  lanes(width, [&](int64_t i, int n) { set(out + i, get(x + i, n) * scale * get(weight + i, n), n); });
}

template <class T, class W>
void rms_norm(Worker& worker, int64_t tokens, Rows<T> x, const W* weight, float eps, Rows<T> out) {
  each_row_block(worker, tokens * x.parts, x.width, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; i++)
      rms_norm_row(x.row(i / x.parts, i % x.parts), weight, eps, x.width, out.row(i / x.parts, i % x.parts));
  });
}

template <class T>
inline void add_row(T* to, const T* x, int64_t width) {
  lanes(width, [&](int64_t i, int n) { set(to + i, get(to + i, n) + get(x + i, n), n); });
}

// residual += x; out = rms_norm(residual)
template <class T, class W>
void add_rms_norm(Worker& worker, int64_t tokens, Rows<T> x, Rows<T> residual, const W* weight, float eps, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++) {
      add_row(residual.row(t, 0), x.row(t, 0), x.width);
      rms_norm_row(residual.row(t, 0), weight, eps, x.width, out.row(t, 0));
    }
  });
}

// weight and bias may be null
template <class T>
void layer_norm(Worker& worker, int64_t tokens, Rows<T> x, const T* weight, const T* bias, float eps, Rows<T> out) {
  each_row_block(worker, tokens * x.parts, x.width, [&](int64_t first, int64_t count) {
    for (int64_t j = first; j < first + count; j++) {
      const T* row = x.row(j / x.parts, j % x.parts);
      T* to = out.row(j / x.parts, j % x.parts);
      F16 total = zero();
      lanes(x.width, [&](int64_t i, int n) { total = total + get(row + i, n); });
      const float mean = sum(total) / static_cast<float>(x.width);
      F16 squares = zero();
      lanes(x.width, [&](int64_t i, int n) {
        const F16 d = keep(get(row + i, n) - set1(mean), 0, n, zero());
        squares = fma(d, d, squares);
      });
      const F16 scale = set1(1.0f / std::sqrt(sum(squares) / static_cast<float>(x.width) + eps));
      lanes(x.width, [&](int64_t i, int n) {
        F16 y = (get(row + i, n) - set1(mean)) * scale;
        if (weight) y = y * get(weight + i, n);
        if (bias) y = y + get(bias + i, n);
        set(to + i, y, n);
      });
    }
  });
}

// x [tokens, 2 · out.width] -> out = act(first half) · second half
template <class T>
void gated_act(Worker& worker, int64_t tokens, Rows<T> x, Act act, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++) {
      const T* gate = x.row(t, 0);
      const T* up = gate + out.width;
      T* to = out.row(t, 0);
      if (act == Act::silu && out.width % (2 * LANES) == 0) {  // the usual case, without a branch per vector
        const auto joined = [&](int64_t i) { return activate<T>(Act::silu, load(gate + i)) * load(up + i); };
        for (int64_t i = 0; i < out.width; i += 2 * LANES) store(to + i, joined(i), joined(i + LANES));
        continue;
      }
      lanes(out.width, [&](int64_t i, int n) { set(to + i, activate<T>(act, get(gate + i, n)) * get(up + i, n), n); });
    }
  });
}

template <class T>
void activation(Worker& worker, int64_t tokens, Rows<T> x, Act act, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, activate<T>(act, get(x.row(t, 0) + i, n)), n); });
  });
}

// Parts of x and parts of y side by side; one that has fewer parts gives its only part to all.
template <class T>
void join_parts(Worker& worker, int64_t tokens, Rows<T> x, Rows<T> y, Rows<T> out) {
  each_row_block(worker, tokens, out.parts * out.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      for (int64_t p = 0; p < out.parts; p++) {
        std::memcpy(out.row(t, p), x.row(t, x.parts > 1 ? p : 0), x.width * sizeof(T));
        std::memcpy(out.row(t, p) + x.width, y.row(t, y.parts > 1 ? p : 0), y.width * sizeof(T));
      }
  });
}

// out = x + y, out = x · y, out = x · factor
template <class T>
void add(Worker& worker, int64_t tokens, Rows<T> x, Rows<T> y, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, get(x.row(t, 0) + i, n) + get(y.row(t, 0) + i, n), n); });
  });
}
template <class T>
void multiply_rows(Worker& worker, int64_t tokens, Rows<T> x, Rows<T> y, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      if (y.width == 1 && x.width != 1)  // one factor for each token
        lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, get(x.row(t, 0) + i, n) * set1(to_float(*y.row(t, 0))), n); });
      else
        lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, get(x.row(t, 0) + i, n) * get(y.row(t, 0) + i, n), n); });
  });
}
template <class T>
void scale(Worker& worker, int64_t tokens, Rows<T> x, float factor, Rows<T> out) {
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, get(x.row(t, 0) + i, n) * set1(factor), n); });
  });
}

// out = x between -bound and bound; NaN stays NaN
template <class T>
void clamp(Worker& worker, int64_t tokens, Rows<T> x, float bound, Rows<T> out) {
  const F16 most = set1(bound), least = set1(-bound);
  each_row_block(worker, tokens, x.width, [&](int64_t first, int64_t count) {
    for (int64_t t = first; t < first + count; t++)
      lanes(x.width, [&](int64_t i, int n) { set(out.row(t, 0) + i, max(least, min(most, get(x.row(t, 0) + i, n))), n); });
  });
}

// out = rows `which` of x
template <class T>
void gather(Worker& worker, int64_t count, const int64_t* which, Rows<T> x, Rows<T> out) {
  each_row_block(worker, count, x.width, [&](int64_t first, int64_t some) {
    for (int64_t t = first; t < first + some; t++) std::memcpy(out.row(t, 0), x.row(which ? which[t] : t, 0), x.width * sizeof(T));
  });
}

}  // namespace quire
