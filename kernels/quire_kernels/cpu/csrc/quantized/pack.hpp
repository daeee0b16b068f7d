// Packs codes with their scales and offsets into the panels of `quantized/layout.hpp`, and reads rows from them.
#pragma once
#include <atomic>

#include "quantized/layout.hpp"

namespace quire {

// What is packed: codes [outputs, inputs], scales and offsets float32 [outputs, groups], offsets null without any.
// padding: the code of inputs and outputs that are added. bits: of a code.
struct QuantizedSource {
  const uint8_t* codes;
  const float *scales, *offsets;
  int32_t padding, bits;
};

// A power of two by which scales and offsets of an output, [groups], are divided when they are stored: the largest
// becomes about 2^8, far from both ends of the range of float16.
inline float factor_of(const float* scales, const float* offsets, int64_t groups) {
  constexpr int LARGEST = 8;
  float most = 0.0f;
  for (int64_t g = 0; g < groups; g++) most = std::max({most, std::fabs(scales[g]), offsets ? std::fabs(offsets[g]) : 0.0f});
  return most > 0.0f ? std::ldexp(1.0f, std::max(std::ilogb(most) - LARGEST, -126)) : 1.0f;
}

inline void put_scale(const Quantized& q, float x, int64_t lane, uint8_t* to) {
  if (q.wide) return void(std::memcpy(to + lane * 4, &x, 4));
  const uint16_t half = to_half(x);
  std::memcpy(to + lane * 2, &half, 2);
}
inline float get_scale(const Quantized& q, const uint8_t* from, int64_t lane) {
  float x;
  uint16_t half;
  if (q.wide) return std::memcpy(&x, from + lane * 4, 4), x;
  return std::memcpy(&half, from + lane * 2, 2), from_half(half);
}

// The byte that is stored for each code.
struct StoredCodes {
  uint8_t of[256];
  bool shifted = true;  // each is its code plus the same number

  explicit StoredCodes(const Quantized& q) {
    for (int code = 0; code < 256; code++) {
      of[code] = q.kind == CodeKind::bytes ? stored_byte(static_cast<int>(q.values[code])) : static_cast<uint8_t>(code);
      shifted &= of[code] == static_cast<uint8_t>(of[0] + code);
    }
  }
};

// Sixteen codes of each of 32 lanes become [unit][lane][4], as stored.
inline void interleave_codes(const uint8_t (*codes)[CODE_BLOCK], const StoredCodes& stored, uint8_t* to) {
#if defined(__x86_64__)
  const __m128i shift = _mm_set1_epi8(static_cast<char>(stored.of[0]));
  for (int lane = 0; lane < PANEL; lane += 4) {
    __m128i rows[4];
    for (int i = 0; i < 4; i++) {
      if (!stored.shifted) {
        uint8_t bytes[CODE_BLOCK];
        for (int j = 0; j < CODE_BLOCK; j++) bytes[j] = stored.of[codes[lane + i][j]];
        rows[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes));
      } else {
        rows[i] = _mm_add_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(codes[lane + i])), shift);
      }
    }
    const __m128i low01 = _mm_unpacklo_epi32(rows[0], rows[1]), low23 = _mm_unpacklo_epi32(rows[2], rows[3]);
    const __m128i high01 = _mm_unpackhi_epi32(rows[0], rows[1]), high23 = _mm_unpackhi_epi32(rows[2], rows[3]);
    const __m128i units[4] = {_mm_unpacklo_epi64(low01, low23), _mm_unpackhi_epi64(low01, low23),
                              _mm_unpacklo_epi64(high01, high23), _mm_unpackhi_epi64(high01, high23)};
    for (int u = 0; u < 4; u++) _mm_store_si128(reinterpret_cast<__m128i*>(to + u * UNIT_BYTES + 4 * lane), units[u]);
  }
#else
  for (int lane = 0; lane < PANEL; lane++)
    for (int i = 0; i < CODE_BLOCK; i++) to[i / 4 * UNIT_BYTES + lane * 4 + i % 4] = stored.of[codes[lane][i]];
#endif
}

// The same for float8, whose lanes lie together for each input.
inline void interleave_floats(const uint8_t (*codes)[CODE_BLOCK], const Quantized& q, uint8_t* to) {
  for (int lane = 0; lane < PANEL; lane++)
    for (int i = 0; i < CODE_BLOCK; i++)
      to[i / 4 * UNIT_BYTES + lane / LANES * LINE_BYTES + q.place(lane % LANES, i % 4)] = codes[lane][i];
}

// A bit for each bit that a code has of those that must not be set.
inline uint8_t bits_of(const uint8_t (*codes)[CODE_BLOCK]) {
  uint8_t any[CODE_BLOCK] = {}, bits = 0;
  for (int lane = 0; lane < PANEL; lane++)
    for (int i = 0; i < CODE_BLOCK; i++) any[i] |= codes[lane][i];
  for (const uint8_t byte : any) bits |= byte;
  return bits;
}

// What makes a matrix unusable, as bits of the result of `pack_quantized`.
enum PackProblem : int32_t { SCALES_NOT_FINITE = 1, OFFSETS_NOT_FINITE = 2, CODE_TOO_LARGE = 4 };

// One panel. Returns its problems.
inline int32_t pack_codes(const QuantizedSource& from, const Packed& w, const Quantized& q, const StoredCodes& stored,
                          int64_t panel, float* factors) {
  alignas(64) uint8_t codes[PANEL][CODE_BLOCK], block[CODE_BLOCK * PANEL];
  uint8_t *at = reinterpret_cast<uint8_t*>(const_cast<uint32_t*>(w.panel(panel, 0))), used_bits = 0;
  const float scaling = q.kind == CodeKind::float8 ? 256.0f : 1.0f;
  int64_t outputs[PANEL];
  float inverse[PANEL], scales = 0.0f, offsets = 0.0f;  // NaN if one is not finite
  for (int lane = 0; lane < PANEL; lane++) {
    const int64_t output = outputs[lane] = w.output(panel, lane);
    const float* of_output = from.offsets ? from.offsets + output * q.groups : nullptr;
    const float factor = output < 0 || q.wide ? 1.0f : factor_of(from.scales + output * q.groups, of_output, q.groups);
    inverse[lane] = 1.0f / factor;
    factors[panel * PANEL + lane] = factor * scaling;
  }
  for (int64_t group = 0; group < q.groups; group++) {
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t i = outputs[lane] * q.groups + group;
      const float scale = i < 0 ? 0.0f : from.scales[i], offset = i < 0 || !from.offsets ? 0.0f : from.offsets[i];
      scales += scale * 0.0f, offsets += offset * 0.0f;
      put_scale(q, scale * inverse[lane], lane, at);
      if (from.offsets) put_scale(q, offset * inverse[lane] / scaling, lane, at + q.scale_bytes());
    }
    at += q.head_bytes();
    for (int64_t b = 0; b < q.group; b += CODE_BLOCK, at += q.block_bytes()) {
      const int64_t first = group * q.group + b, count = std::clamp<int64_t>(w.inputs - first, 0, CODE_BLOCK);
      for (int lane = 0; lane < PANEL; lane++) {
        const uint8_t* row = from.codes + outputs[lane] * w.inputs + first;
        if (outputs[lane] >= 0 && count == CODE_BLOCK) {
          std::memcpy(codes[lane], row, CODE_BLOCK);
        } else {
          std::memset(codes[lane], from.padding, CODE_BLOCK);
          if (outputs[lane] >= 0) std::memcpy(codes[lane], row, count);
        }
      }
      used_bits |= bits_of(codes);
      uint8_t* const to = q.bits == 8 ? at : block;
      q.kind == CodeKind::float8 ? interleave_floats(codes, q, to) : interleave_codes(codes, stored, to);
      if (q.bits < 8) write_block(block, q.bits, at);
    }
  }
  return (scales == 0.0f ? 0 : SCALES_NOT_FINITE) | (offsets == 0.0f ? 0 : OFFSETS_NOT_FINITE) |
         (used_bits >> from.bits ? CODE_TOO_LARGE : 0);
}

inline void set_table_bytes(Quantized& q) {
  for (int i = 0; i < 16; i++) q.bytes[i] = q.kind == CodeKind::byte_table ? stored_byte(static_cast<int>(q.values[i])) : 0;
}

// factors: [panels · PANEL], written. Adds problems to `problems`.
inline void pack_quantized(Worker& worker, const QuantizedSource& from, const Packed& w, Quantized& q, float* factors,
                           std::atomic<int32_t>& problems) {
  const StoredCodes stored(q);
  if (worker.id == 0) set_table_bytes(q);
  worker.each(w.panels(), [&](int64_t panel) { problems |= pack_codes(from, w, q, stored, panel, factors); });
}

// One dequantized row of the packed matrix, [inputs].
template <class T>
void unpack_row_quantized(const Packed& w, const Quantized& q, int64_t output, T* row) {
  const auto [panel, lane] = w.position(output);
  const uint8_t* from = reinterpret_cast<const uint8_t*>(w.panel(panel, 0));
  const float factor = q.factors[panel * PANEL + lane];
  for (int64_t group = 0, i = 0; group < q.groups; group++) {
    const float scale = get_scale(q, from, lane) * factor;
    const float offset = q.has_offsets ? get_scale(q, from + q.scale_bytes(), lane) * factor : 0.0f;
    from += q.head_bytes();
    for (int64_t b = 0; b < q.group && i < w.inputs; b += CODE_BLOCK, from += q.block_bytes())
      for (int j = 0; j < CODE_BLOCK && i < w.inputs; j++, i++) {
        const uint8_t stored = read_code(from, q.bits, j / 4, lane / LANES, q.place(lane % LANES, j % 4));
        put(row + (q.order ? q.order[i] : i), q.value(stored) * scale + offset);
      }
  }
}

}  // namespace quire
