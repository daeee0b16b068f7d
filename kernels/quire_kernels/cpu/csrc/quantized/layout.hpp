// Layout of matrices of few bits: `QuantizedMatrix` in `quire_kernels/quantized.py`, packed in panels of 32 outputs.
//
// A panel is a sequence of groups. A group begins with the scales of its outputs, then their offsets if there are any,
// as float16 or float32; then come its blocks of 16 inputs. A block holds the codes in planes of 4, 2 and 1 bits, so
// that every byte read is used and a shift and a mask give codes in units (`gemm/packed.hpp`): a line of 64 bytes has
// one unit of the plane of four bits (lanes 0 … 15 in the lower halves of its bytes, lanes 16 … 31 in the upper ones),
// two units of that of two bits, or four of that of one bit. Codes of eight bits are not split.
#pragma once
#include "gemm/packed.hpp"
#include "vec_quantized.hpp"

namespace quire {

// What a code stands for, and how it is multiplied: by bytes of x, from `floats` on by floats.
enum class CodeKind : int32_t {
  codes,        // code - zero; at most six bits
  bytes,        // stored as the value, plus BYTE_BIAS
  byte_table,   // an integer for each code of four bits
  floats,       // code - zero
  float_table,  // a float for each code of at most four bits
  float_lookup, // a float for each code of more bits
  float8,       // e4m3
};

constexpr int64_t CODE_BLOCK = 16;                // inputs
constexpr int64_t LINE_BYTES = 64;
constexpr int64_t UNIT_BYTES = PANEL * 4;    // of bytes, not in planes
constexpr int64_t MAX_STEP = 32;

// The description of a matrix beside its `Packed`, whose `bytes` is the size of a panel.
struct Quantized {
  int64_t group;   // inputs of a group, a multiple of `step`
  int64_t groups;
  int64_t step;    // inputs whose products are summed before a scale is applied to the sum: 16 or 32
  int32_t bits;    // that are stored of a code
  CodeKind kind;
  int32_t zero;
  int32_t has_offsets;
  int32_t wide;    // scales and offsets are float32
  const float* factors;  // [panels · PANEL]: scales and offsets are times the factor of their output
  const float* values;   // [256]: of each code
  const int32_t* order;  // [inputs]: the column of x for each column of codes; null: the same
  uint8_t bytes[16];     // the values of `byte_table`, plus BYTE_BIAS

  bool multiplies_floats() const { return kind >= CodeKind::floats; }
  int64_t steps() const { return groups * (group / step); }
  int64_t width() const { return padded(steps() * step, MAX_STEP); }  // of rows of x
  int64_t block_bytes() const { return bits * LINE_BYTES; }
  int64_t step_bytes() const { return step / CODE_BLOCK * block_bytes(); }
  int64_t scale_bytes() const { return PANEL * (wide ? 4 : 2); }
  int64_t head_bytes() const { return scale_bytes() * (has_offsets ? 2 : 1); }
  int64_t group_bytes() const { return head_bytes() + group / CODE_BLOCK * block_bytes(); }

  // What a stored code stands for, to be multiplied by the factor of its output.
  float value(uint8_t stored) const {
    if (kind != CodeKind::bytes) return values[stored];
    return static_cast<float>(byte_value(stored));
  }
  // The place of input j of a unit in a lane, in the 64 bytes of 16 lanes: sixteen lanes of an input of float8 lie
  // together when they are widened.
  int64_t place(int64_t lane, int64_t j) const { return kind == CodeKind::float8 ? j / 2 * 32 + 2 * lane + j % 2 : 4 * lane + j; }
};

// SIZE bits at bit FROM of each byte, moved to bit TO.
template <int SIZE, int FROM, int TO>
inline U16 field(U16 line) {
  return masked(shifted<TO - FROM>(line), ((1 << SIZE) - 1) << TO);
}

// The codes of unit U of a block.
template <int BITS, int U>
inline void read_unit(const uint8_t* block, U16& left, U16& right) {
  if constexpr (BITS == 8) {
    left = load_units(block + U * UNIT_BYTES), right = load_units(block + U * UNIT_BYTES + LINE_BYTES);
    return;
  }
  constexpr int FOURS = BITS & 4, TWOS = BITS & 2;
  if constexpr (FOURS != 0) {
    const U16 line = load_units(block + U * LINE_BYTES);
    left = field<4, 0, 0>(line), right = field<4, 4, 0>(line);
  }
  if constexpr (TWOS != 0) {
    const U16 line = load_units(block + FOURS * LINE_BYTES + U / 2 * LINE_BYTES);
    const U16 l = field<2, U % 2 * 4, FOURS>(line), r = field<2, U % 2 * 4 + 2, FOURS>(line);
    if constexpr (FOURS != 0)
      left = merged(left, l), right = merged(right, r);
    else
      left = l, right = r;
  }
  if constexpr ((BITS & 1) != 0) {
    const U16 line = load_units(block + (FOURS + TWOS) * LINE_BYTES);
    left = merged(left, field<1, 2 * U, FOURS + TWOS>(line)), right = merged(right, field<1, 2 * U + 1, FOURS + TWOS>(line));
  }
}

// Splits a block of codes, [unit][32 lanes][4], into planes.
inline void write_block(const uint8_t* codes, int bits, uint8_t* block) {
  if (bits == 8) return void(std::memcpy(block, codes, CODE_BLOCK * PANEL));
  const int fours = bits & 4, twos = bits & 2;
  std::memset(block, 0, bits * LINE_BYTES);
  for (int u = 0; u < 4; u++) {
    const uint8_t *left = codes + u * UNIT_BYTES, *right = left + LINE_BYTES;
    uint8_t *four = block + u * LINE_BYTES, *two = block + (fours + u / 2) * LINE_BYTES, *one = block + (fours + twos) * LINE_BYTES;
    for (int i = 0; fours && i < LINE_BYTES; i++) four[i] = static_cast<uint8_t>((left[i] & 15) | (right[i] & 15) << 4);
    for (int i = 0; twos && i < LINE_BYTES; i++)
      two[i] = static_cast<uint8_t>(two[i] | ((left[i] >> fours & 3) | (right[i] >> fours & 3) << 2) << u % 2 * 4);
    for (int i = 0; bits & 1 && i < LINE_BYTES; i++)
      one[i] = static_cast<uint8_t>(one[i] | ((left[i] >> (fours + twos) & 1) | (right[i] >> (fours + twos) & 1) << 1) << 2 * u);
  }
}

// One code of a block.
inline uint8_t read_code(const uint8_t* block, int bits, int64_t unit, int64_t half, int64_t place) {
  if (bits == 8) return block[unit * UNIT_BYTES + half * LINE_BYTES + place];
  const int fours = bits & 4, twos = bits & 2;
  int code = 0;
  if (fours) code = block[unit * LINE_BYTES + place] >> 4 * half & 15;
  if (twos) code |= (block[(fours + unit / 2) * LINE_BYTES + place] >> (unit % 2 * 4 + 2 * half) & 3) << fours;
  if (bits & 1) code |= (block[(fours + twos) * LINE_BYTES + place] >> (2 * unit + half) & 1) << (fours + twos);
  return static_cast<uint8_t>(code);
}

}  // namespace quire
