// Vectors of signed bytes, and of codes of few bits; `vec_int8.hpp` and `vec_quantized.hpp` describe the functions.
#pragma once

namespace quire {

constexpr int32_t BYTE_BIAS = 0;  // both factors of a product are signed

inline S16 starting(int32_t x) {
  return each_part<S16>([&](int) { return reinterpret_cast<Ints>(same(static_cast<uint32_t>(x))); });
}
inline S16 no_sums() { return starting(0); }
inline void store(int32_t* p, S16 x) {
  with_parts(x, [&](int i, Ints part) { store_words(reinterpret_cast<uint8_t*>(p + i * WIDTH), reinterpret_cast<Words>(part)); });
}
inline S16 added(S16 x, S16 y) {
  return each_part<S16>([&](int i) { return x.v[i] + y.v[i]; });
}
inline int32_t sum(S16 x) {
  int32_t total = 0;
  with_parts(x, [&](int, Ints part) { total += sum_of(part); });
  return total;
}
inline F16 as_floats(S16 x) {
  return each_part<F16>([&](int i) { return floats_of_ints(x.v[i]); });
}
inline F16 to_floats(const int32_t* p, int32_t less) {
  const U16 all = load_units(p);
  return each_part<F16>([&](int i) { return floats_of_ints(reinterpret_cast<Ints>(all.v[i]) - less); });
}
inline void store_bytes(int8_t* p, F16 x) {
  with_parts(x, [&](int i, Floats part) { store_low_bytes(p + i * WIDTH, nearest_ints(part)); });
}
inline F16 load_bytes(const int8_t* p) {
  return each_part<F16>([&](int i) { return floats_of_ints(load_signed_bytes(p + i * WIDTH)); });
}
inline S16 dot_bytes(S16 sums, U16 w, U16 x) {
  return each_part<S16>([&](int i) { return dot_signed(sums.v[i], w.v[i], x.v[i]); });
}

inline S16 dot_codes(S16 sums, U16 w, U16 x) { return dot_bytes(sums, w, x); }  // of seven bits at most
inline S16 whole_sums(S16 sums) { return sums; }

inline U16 masked_words(U16 x, uint32_t mask) {
  return each_part<U16>([&](int i) { return x.v[i] & mask; });
}
inline U16 masked(U16 x, int mask) { return masked_words(x, static_cast<uint32_t>(mask & 255) * 0x01010101u); }
inline U16 merged(U16 x, U16 y) {
  return each_part<U16>([&](int i) { return x.v[i] | y.v[i]; });
}
template <int N>
inline U16 shifted(U16 x) {  // 16-bit numbers times 2^N
  return each_part<U16>([&](int i) {
    const Shorts shorts = reinterpret_cast<Shorts>(x.v[i]);
    if constexpr (N > 0) return reinterpret_cast<Words>(shorts << N);
    else return reinterpret_cast<Words>(shorts >> -N);
  });
}
inline U16 byte_table(const uint8_t* sixteen) {
  return each_part<U16>([&](int) { return repeated(sixteen); });
}
inline U16 looked_up(U16 table, U16 codes) {
  return each_part<U16>([&](int i) { return table_bytes(table.v[i], codes.v[i]); });
}

inline F16 load_halves(const uint16_t* p) {
  return each_part<F16>([&](int i) { return floats_of_halves(load_shorts(p + i * WIDTH)); });
}
template <int J>
inline F16 float_codes(U16 w) {
  return each_part<F16>([&](int i) { return floats_of_ints(reinterpret_cast<Ints>(w.v[i] >> 8 * J & 255)); });
}
struct FloatTable {
  SixteenFloats all;
  explicit FloatTable(const float* sixteen) : all(sixteen) {}
  template <int J>
  F16 of(U16 w) const {  // by the lower four bits of byte J
    return each_part<F16>([&](int i) { return all.at(w.v[i] >> 8 * J & 15); });
  }
};
// Float8 (e4m3) divided by 256, from bytes in the order of `Quantized::place`: as halves of one exponent bit more.
inline void float8_values(U16 w, F16 (&to)[4]) {
  alignas(64) uint16_t pairs[2 * LANES];
  store_units(pairs, w);
  for (int i = 0; i < 4; i++)
    to[i] = each_part<F16>([&](int part) {
      const Words byte = load_shorts(pairs + i / 2 * LANES + part * WIDTH) >> i % 2 * 8;
      return floats_of_halves((byte & 128) << 8 | (byte & 127) << 7);
    });
}

inline U16 upper_halves(U16 x) { return masked_words(x, 0xffff0000); }
inline U16 raised_halves(U16 x) {
  return each_part<U16>([&](int i) { return x.v[i] << 16; });
}
inline U16 lowered_halves(U16 x) {
  return each_part<U16>([&](int i) { return x.v[i] >> 16; });
}
// The lower and the upper codes of 16 bytes.
inline void load_codes(const uint8_t* p, F16& lower, F16& upper) {
  const U16 x = each_part<U16>([&](int i) { return load_bytes_of_lanes(p + i * WIDTH); });
  lower = float_codes<0>(masked_words(x, 15)), upper = float_codes<0>(each_part<U16>([&](int i) { return x.v[i] >> 4; }));
}

// Sums over x[i], i % 4 < 2, in the lower 16 bits, and over the other x[i] in the upper ones.
inline int32_t pair_sums(const int8_t* x, int64_t columns) {
  uint32_t first = 0, second = 0;
  for (int64_t i = 0; i < columns; i += 4) {
    first += static_cast<uint32_t>(x[i] + x[i + 1]);
    second += static_cast<uint32_t>(x[i + 2] + x[i + 3]);
  }
  return static_cast<int32_t>(second << 16 | (first & 0xffff));
}

}  // namespace quire
