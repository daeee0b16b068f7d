// Vector kernels of products with matrices of few bits. Every output is computed in one order on every path, so a row's
// result is bit-identical alone and among others: for each step of columns an exact sum of integers (or a sum of floats
// in the order of the columns), times the scale of x and the scale of the group, is added to the output.
#pragma once
#include "gemm/gemm_tiling.hpp"
#include "quantized/rows.hpp"

namespace quire {

constexpr int64_t AHEAD_BYTES = 4096;

inline void prefetch_block(const uint8_t* at, int64_t bytes) {
  for (int64_t line = 0; line < bytes; line += LINE_BYTES)
    prefetch_l1(at + AHEAD_BYTES + line);
}

// Scales or offsets of 32 outputs.
inline void load_scales(const uint8_t* from, bool wide, F16& left, F16& right) {
  if (wide) {
    left = load(reinterpret_cast<const float*>(from)), right = load(reinterpret_cast<const float*>(from) + LANES);
  } else {
    left = load_halves(reinterpret_cast<const uint16_t*>(from));
    right = load_halves(reinterpret_cast<const uint16_t*>(from) + LANES);
  }
}

// Calls work(number) for the numbers 0 … COUNT-1 as constants.
template <int COUNT, class Work>
inline void for_each_unit(Work&& work) {
  if constexpr (COUNT > 1) for_each_unit<COUNT - 1>(work);
  work(std::integral_constant<int, COUNT - 1>{});
}

struct CodeSums {
  static S16 add(S16 sums, U16 w, U16 x) { return dot_codes(sums, w, x); }
  static F16 floats(S16 sums) { return as_floats(whole_sums(sums)); }
};
struct ByteSums {
  static S16 add(S16 sums, U16 w, U16 x) { return dot_bytes(sums, w, x); }
  static F16 floats(S16 sums) { return as_floats(sums); }
};

template <class Sums>
inline F16 added_step(F16 total, S16 sums, F16 x_scale, F16 scale) {
  return fma(Sums::floats(sums) * x_scale, scale, total);
}

// Integer sums of one row and one panel at the columns of a step, from its planes.
template <class Sums, int BITS, int STEP>
inline void add_row_step(const uint8_t* at, const int8_t* x, const U16* table, S16& left, S16& right) {
  for_each_unit<STEP / 4>([&](auto number) {
    constexpr int U = decltype(number)::value;
    U16 w0, w1;
    read_unit<BITS, U % 4>(at + U / 4 * BITS * LINE_BYTES, w0, w1);
    if (table) w0 = looked_up(*table, w0), w1 = looked_up(*table, w1);
    const U16 columns = same_unit(x + 4 * U);
    left = Sums::add(left, w0, columns), right = Sums::add(right, w1, columns);
  });
}

// One row and one panel.
template <class Sums, int BITS, bool TABLE, int STEP>
void multiply_row(const Quantized& q, const uint8_t* at, const int8_t* x, const StepOfRow* step, float* out) {
  constexpr int64_t STEP_BYTES = STEP / CODE_BLOCK * BITS * LINE_BYTES;
  const U16 table = byte_table(q.bytes);
  const int64_t steps = q.group / STEP, head = q.head_bytes(), scale_bytes = q.scale_bytes();
  const bool wide = q.wide, has_offsets = q.has_offsets;
  F16 left = zero(), right = zero();
  for (int64_t group = q.groups; group > 0; group--) {
    F16 scale0, scale1, offset0 = zero(), offset1 = zero();
    prefetch_block(at, head);
    load_scales(at, wide, scale0, scale1);
    if (has_offsets) load_scales(at + scale_bytes, wide, offset0, offset1);
    at += head;
    for (int64_t s = steps; s > 0; s--, step++, at += STEP_BYTES, x += STEP) {
      prefetch_block(at, STEP_BYTES);
      S16 sums0 = starting(step->start), sums1 = sums0;
      add_row_step<Sums, BITS, STEP>(at, x, TABLE ? &table : nullptr, sums0, sums1);
      const F16 x_scale = set1(step->scale);
      left = added_step<Sums>(left, sums0, x_scale, scale0), right = added_step<Sums>(right, sums1, x_scale, scale1);
      if (has_offsets) left = fma(offset0, set1(step->sum), left), right = fma(offset1, set1(step->sum), right);
    }
  }
  store(out, left, right);
}

using RowKernel = void (*)(const Quantized&, const uint8_t*, const int8_t*, const StepOfRow*, float*);

template <class Sums, int BITS, bool TABLE = false>
RowKernel row_kernel_of(const Quantized& q) {
  return q.step == 32 ? multiply_row<Sums, BITS, TABLE, 32> : multiply_row<Sums, BITS, TABLE, 16>;
}

// The kernel for one row of bytes.
inline RowKernel row_kernel(const Quantized& q) {
  if (q.kind == CodeKind::bytes) return row_kernel_of<ByteSums, 8>(q);
  if (q.kind == CodeKind::byte_table) return row_kernel_of<ByteSums, 4, true>(q);
  switch (q.bits) {
    case 2: return row_kernel_of<CodeSums, 2>(q);
    case 3: return row_kernel_of<CodeSums, 3>(q);
    case 4: return row_kernel_of<CodeSums, 4>(q);
    case 5: return row_kernel_of<CodeSums, 5>(q);
    default: return row_kernel_of<CodeSums, 6>(q);
  }
}

// Codes of `blocks` blocks in units: [unit][32 lanes][4].
template <int BITS>
void read_blocks(const uint8_t* from, int64_t blocks, uint8_t* to) {
  for (int64_t b = 0; b < blocks; b++, from += BITS * LINE_BYTES, to += CODE_BLOCK * PANEL) {
    for_each_unit<CODE_BLOCK / 4>([&](auto number) {
      constexpr int U = decltype(number)::value;
      U16 left, right;
      read_unit<BITS, U>(from, left, right);
      store_units(to + U * UNIT_BYTES, left), store_units(to + U * UNIT_BYTES + LINE_BYTES, right);
    });
  }
}

// Replaces codes by their bytes in a table.
inline void look_up(const Quantized& q, int64_t blocks, uint8_t* codes) {
  const U16 table = byte_table(q.bytes);
  for (int64_t i = 0; i < blocks * CODE_BLOCK * PANEL; i += LINE_BYTES) store_units(codes + i, looked_up(table, load_units(codes + i)));
}

// Floats for codes, [input][32].
inline void widen_codes(const Quantized& q, int64_t blocks, const uint8_t* codes, float* to) {
  const F16 less = set1(static_cast<float>(q.zero));
  const FloatTable table(q.values);
  for (int64_t i = 0; i < blocks * CODE_BLOCK / 4 * 2; i++, codes += LINE_BYTES) {
    const U16 w = load_units(codes);
    F16 v[4];
    if (q.kind == CodeKind::floats) {
      v[0] = float_codes<0>(w) - less, v[1] = float_codes<1>(w) - less;
      v[2] = float_codes<2>(w) - less, v[3] = float_codes<3>(w) - less;
    } else if (q.kind == CodeKind::float_table) {
      v[0] = table.of<0>(w), v[1] = table.of<1>(w), v[2] = table.of<2>(w), v[3] = table.of<3>(w);
    } else if (q.kind == CodeKind::float8) {
      float8_values(w, v);
    } else {
      for (int j = 0; j < 4; j++) {
        alignas(64) float lanes[LANES];
        for (int lane = 0; lane < LANES; lane++) lanes[lane] = q.values[codes[4 * lane + j]];
        v[j] = load(lanes);
      }
    }
    for (int j = 0; j < 4; j++) store(to + (i / 2 * 4 + j) * PANEL + i % 2 * LANES, v[j]);
  }
}

// The columns of a step in units of bytes or as floats.
class StepReader {
 public:
  explicit StepReader(const Quantized& q) : q_(q), blocks_(q.step / CODE_BLOCK) {
    switch (q.bits) {
      case 2: read_ = read_blocks<2>; break;
      case 3: read_ = read_blocks<3>; break;
      case 4: read_ = read_blocks<4>; break;
      case 5: read_ = read_blocks<5>; break;
      case 6: read_ = read_blocks<6>; break;
      default: read_ = nullptr;
    }
  }
  const void* read(const uint8_t* from) {
    const uint8_t* codes = from;
    if (read_) read_(from, blocks_, codes_), codes = codes_;
    if (q_.kind == CodeKind::byte_table) look_up(q_, blocks_, codes_);
    if (!q_.multiplies_floats()) return codes;
    widen_codes(q_, blocks_, codes, floats_);
    return floats_;
  }

 private:
  alignas(64) uint8_t codes_[MAX_STEP * PANEL];
  alignas(64) float floats_[MAX_STEP * PANEL];
  const Quantized& q_;
  int64_t blocks_;
  void (*read_)(const uint8_t*, int64_t, uint8_t*);
};

// Some rows of x at the columns of a step, what is known of the step, and where its products are added, [rows][32].
struct RowsOfStep {
  const uint8_t* x;
  const uint8_t* steps;  // StepOfRow, `stride` bytes apart, as are the columns
  int64_t stride, count;  // bytes; columns
  const float *scales, *offsets;  // [32]; offsets may be null
  float* totals;

  const StepOfRow& step(int64_t r) const { return *reinterpret_cast<const StepOfRow*>(steps + r * stride); }
};

inline void finish_step(const RowsOfStep& rows, int64_t r, int64_t lane, F16 products) {
  F16 total = fma(products, load(rows.scales + lane), load(rows.totals + r * PANEL + lane));
  if (rows.offsets) total = fma(load(rows.offsets + lane), set1(rows.step(r).sum), total);
  store(rows.totals + r * PANEL + lane, total);
}

// Few rows are multiplied by both halves of the lanes at once, because an instruction waits for its own sum.
constexpr int halves_at_once(int rows) { return rows <= 2 ? 2 : 1; }

// UNITS: of a step.
template <class Sums, int UNITS>
struct ByteProducts {
  template <int ROWS>
  static void add(const RowsOfStep& rows, int64_t first, const void* w) {
    constexpr int HALVES = halves_at_once(ROWS);
    const uint8_t* x = rows.x + first * rows.stride;
    for (int64_t lane = 0; lane < PANEL; lane += HALVES * LANES) {
      const uint8_t* at = static_cast<const uint8_t*>(w) + lane * 4;
      S16 sums[ROWS][HALVES];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) sums[r][h] = starting(rows.step(first + r).start);
#pragma GCC unroll 8
      for (int u = 0; u < UNITS; u++) {
        U16 unit[HALVES];
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) unit[h] = load_units(at + u * UNIT_BYTES + h * LINE_BYTES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const U16 columns = same_unit(x + r * rows.stride + 4 * u);
#pragma GCC unroll 2
          for (int h = 0; h < HALVES; h++) sums[r][h] = Sums::add(sums[r][h], unit[h], columns);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++)
          finish_step(rows, first + r, lane + h * LANES, Sums::floats(sums[r][h]) * set1(rows.step(first + r).scale));
    }
  }
};

struct FloatProducts {
  template <int ROWS>
  static void add(const RowsOfStep& rows, int64_t first, const void* w) {
    constexpr int HALVES = halves_at_once(ROWS);
    const float* x = reinterpret_cast<const float*>(rows.x + first * rows.stride);
    const int64_t stride = rows.stride / 4;
    for (int64_t lane = 0; lane < PANEL; lane += HALVES * LANES) {
      const float* at = static_cast<const float*>(w) + lane;
      F16 sums[ROWS][HALVES];
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) sums[r][h] = zero();
      for (int64_t i = 0; i < rows.count; i++, at += PANEL) {
        F16 values[HALVES];
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) values[h] = load(at + h * LANES);
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
          const F16 column = set1(x[r * stride + i]);
#pragma GCC unroll 2
          for (int h = 0; h < HALVES; h++) sums[r][h] = fma(values[h], column, sums[r][h]);
        }
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 2
        for (int h = 0; h < HALVES; h++) finish_step(rows, first + r, lane + h * LANES, sums[r][h]);
    }
  }
};

#if defined(__AVX512F__)
constexpr int64_t QUANTIZED_ROWS = 8;
#else
constexpr int64_t QUANTIZED_ROWS = 4;
#endif

// Adds the products of a step to the totals of `count` rows, `ROWS` rows at a time.
template <class Products, int ROWS = QUANTIZED_ROWS>
inline void add_products(const RowsOfStep& rows, int64_t first, int64_t count, const void* w) {
  for (; first + ROWS <= count; first += ROWS) Products::template add<ROWS>(rows, first, w);
  if constexpr (ROWS > 1) add_products<Products, ROWS / 2>(rows, first, count, w);
}

}  // namespace quire
