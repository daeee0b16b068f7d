// Activations on sixteen lanes; the names and their order are those of `quire_kernels.ops.ACTS`.
#pragma once
#include "vec.hpp"

namespace quire {

enum class Act : int32_t { silu, gelu, gelu_tanh, relu, relu2, quick_gelu, sigmoid, tanh, identity };

// 2^126 is large enough: the sum's reciprocal rounds to 0 as for infinity, and stays finite on the way. min and max
// return their second operand if one is NaN, so x is passed second, here and below, and NaN is preserved.
template <class T>
inline F16 sigmoid(F16 x) {
  return reciprocal<T>(set1(1.0f) + exp2<T>(min(set1(126.0f), x * set1(-LOG2_E))));
}

// tanh |x| = (1 - e^-2|x|) / (1 + e^-2|x|); below 1/16, where the quotient loses digits, the Taylor series
inline F16 tanh(F16 x) {
  const F16 a = abs(x);
  const F16 e = exp(a * set1(-2.0f));
  const F16 far = (set1(1.0f) - e) / (set1(1.0f) + e);
  const F16 s = a * a;
  const F16 near = a * fma(s, fma(s, set1(2.0f / 15), set1(-1.0f / 3)), set1(1.0f));
  float picked[LANES], size[LANES], other[LANES];
  store(picked, far);
  store(size, a);
  store(other, near);
  for (int i = 0; i < LANES; i++) picked[i] = size[i] < 0.0625f ? other[i] : picked[i];
  return with_sign(load(picked), x);
}

// x Φ(x) = max(x, 0) - |x| Φ(-|x|), and Φ(-y) = 2^(-1 - y R(y)): there is no cancellation, so small results are
// exact too. R is a polynomial with the smallest absolute error of the product up to y = 10; beyond, the product is
// below 10^-22.
template <class T>
inline F16 gelu(F16 x) {
  const F16 y = min(set1(10.0f), abs(x));
  F16 r = set1(8.16300361e-09f);
  for (float c : {-3.26778547e-07f, 5.33398224e-06f, -4.45465266e-05f, 1.73809371e-04f, 2.11537044e-04f, -7.19859172e-03f, 5.26103452e-02f, 4.59164023e-01f, 1.15111125e+00f})
    r = fma(r, y, set1(c));
  return max(zero(), x) - y * exp2<T>(fma(zero() - y, r, set1(-1.0f)));
}

// T: data type in which the result will be stored
template <class T>
inline F16 activate(Act act, F16 x) {
  switch (act) {
    case Act::silu:
      return x * sigmoid<T>(x);
    case Act::gelu:
      return gelu<T>(x);
    case Act::gelu_tanh:
      return set1(0.5f) * x * (set1(1.0f) + tanh(set1(0.79788456f) * fma(x * x * x, set1(0.044715f), x)));
    case Act::relu:
      return max(zero(), x);
    case Act::relu2: {
      const F16 y = max(zero(), x);
      return y * y;
    }
    case Act::quick_gelu:
      return x * sigmoid<T>(set1(1.702f) * x);
    case Act::sigmoid:
      return sigmoid<T>(x);
    case Act::tanh:
      return tanh(x);
    case Act::identity:
      return x;
  }
  return x;
}

}  // namespace quire
