// Products of one to five rows and compressed panels with AVX2. Its 16 registers are too few for four vectors of units beside
// sums, so a panel is decompressed in two parts, of 8 outputs of each half, and each unit of a part is multiplied at once.
#pragma once
#include "gemm/gemm_vector.hpp"
#include "gemm/packed_compressed.hpp"

namespace quire {

// With six rows and more, panels that are decompressed to memory are faster.
constexpr int64_t FEW_COMPRESSED_ROWS = 5;
// Passes over a panel. There are registers for the sums of two rows and both parts.
constexpr int passes_of(int64_t rows) { return rows <= 2 ? 1 : 2; }

// Reads parts of a compressed panel, the first of which is `part`.
class PanelPartReader {
 public:
  PanelPartReader(const PanelCodebook& book, const uint32_t* panel, int part)
      : upper_(book.upper),
        from_(reinterpret_cast<const uint8_t*>(panel) + book.head),
        rare_(reinterpret_cast<const Rare*>(panel)),
        part_(part) {}

  // Begins with the next two units; returns whether they have rare values.
  bool begin() {
    done_ += GROUP_ELEMENTS;
    return __builtin_expect(rare_->position < done_, 0);
  }
  void end(bool has_rare) {
    from_ += GROUP_BYTES;
    while (has_rare && rare_->position < done_) rare_++;
  }
  // Unit k of the two in the part after `after` others.
  U16 unit(int k, int after, bool has_rare) const {
    const uint8_t* from = from_;
    asm("" : "+r"(from));  // or compilers keep codes of two units in a register that sums need
    const U16 unit = upper_.restore_part(from, k, part_ + after);
    return __builtin_expect(has_rare, 0) ? with_rare(unit, 2 * k, part_ + after) : unit;
  }

 private:
  U16 with_rare(U16 unit, int vector, int part) const {
    constexpr uint32_t PART = LANES;  // elements
    alignas(32) bf16 elements[2 * PART];
    store_units(elements, unit);
    for (const Rare* rare = rare_; rare->position < done_; rare++) {
      const int at = rare->position % GROUP_ELEMENTS / PART - 2 * vector - part;
      if (at == 0 || at == 2) elements[at / 2 * PART + rare->position % PART].bits = static_cast<uint16_t>(rare->bits);
    }
    return load_units(elements);
  }

  UpperBytes upper_;
  const uint8_t* from_;
  const Rare* rare_;  // the last entry has a position after all elements
  const int part_;
  uint32_t done_ = 0;  // elements
};

// Sums of ROWS rows and the part `part` of a panel, and with PARTS = 2 the other one, in the order of `sum_rows`.
template <int ROWS, int PARTS = 2 / passes_of(ROWS)>
[[gnu::noinline]] void sum_compressed_parts(const float* x, int64_t stride, PanelPartReader reader, int64_t units, float* sums,
                                            PrefetchStream stream, PrefetchStream queue) {
  F16 acc[PARTS][ROWS];
#pragma GCC unroll 2
  for (auto& part : acc)
#pragma GCC unroll 8
    for (F16& sum : part) sum = zero();
  RowPositions<ROWS> rows(x, stride * 4);
  for (int64_t u = 0; u < units; u += 2, stream.at += PARTS * stream.step, queue.at += 2 * queue.step) {
    // two passes prefetch the next panel, which the first level cannot keep beside this one
    for (int64_t line = 0; line < 64 * (1 + PARTS); line += 64)
      PARTS == 2 ? prefetch_l1(stream.at + line) : prefetch_l2(stream.at + line);
    prefetch_l2(queue.at);
    prefetch_l2(queue.at + queue.step);
    const bool has_rare = reader.begin();
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
#pragma GCC unroll 2
      for (int p = 0; p < PARTS; p++) {
        const U16 unit = reader.unit(k, p, has_rare);
#pragma GCC unroll 2
        for (int i = 0; i < 2; i++) {
          const U16 weights = factor<bf16>(unit, i);
#pragma GCC unroll 8
          for (int r = 0; r < ROWS; r++)
            acc[p][r] = dot(acc[p][r], same_unit(rows[r] + 4 * (2 * k + i)), weights, float{});
        }
      }
    reader.end(has_rare);
    rows.advance(16);
  }
#pragma GCC unroll 2
  for (int p = 0; p < PARTS; p++)
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; r++) {
      _mm256_storeu_ps(sums + r * PANEL + p * LANES / 2, acc[p][r].a);
      _mm256_storeu_ps(sums + r * PANEL + LANES + p * LANES / 2, acc[p][r].b);
    }
}

template <int MAX = FEW_COMPRESSED_ROWS>
inline void sum_some_compressed(int64_t rows, const float* x, int64_t stride, const PanelCodebook& book, const uint32_t* w,
                                int64_t units, float* sums, PrefetchStream stream, PrefetchStream queue) {
  if constexpr (MAX > 1) {
    if (rows < MAX) return sum_some_compressed<MAX - 1>(rows, x, stride, book, w, units, sums, stream, queue);
  }
  for (int part = 0; part < 2; part += 2 / passes_of(MAX), stream.at += units / 2 * stream.step, queue.step = 0)
    sum_compressed_parts<MAX>(x, stride, PanelPartReader(book, w, part), units, sums + part * LANES / 2, stream, queue);
}

}  // namespace quire
