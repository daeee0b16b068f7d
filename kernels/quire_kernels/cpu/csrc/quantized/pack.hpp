// Packs codes with their scales and offsets into the panels of `quantized/layout.hpp`, and reads rows from them.
#pragma once
#include "quantized/layout.hpp"

namespace quire {

// What is packed: codes [outputs, inputs], scales and offsets float32 [outputs, groups], offsets null without any.
// padding: the code of inputs and outputs that are added.
struct QuantizedSource {
  const uint8_t* codes;
  const float *scales, *offsets;
  int32_t padding;
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
  const uint16_t half = _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
  std::memcpy(to + lane * 2, &half, 2);
}
inline float get_scale(const Quantized& q, const uint8_t* from, int64_t lane) {
  float x;
  uint16_t half;
  if (q.wide) return std::memcpy(&x, from + lane * 4, 4), x;
  return std::memcpy(&half, from + lane * 2, 2), _cvtsh_ss(half);
}

// The byte that is stored for each code.
inline void stored_codes(const Quantized& q, uint8_t* to) {
  for (int code = 0; code < 256; code++)
    to[code] = q.kind == CodeKind::bytes ? stored_byte(static_cast<int>(q.values[code])) : static_cast<uint8_t>(code);
}

// factors: [panels · PANEL], written.
inline void pack_quantized(Worker& worker, const QuantizedSource& from, const Packed& w, Quantized& q, float* factors) {
  uint8_t stored[256];
  stored_codes(q, stored);
  const float scaling = q.kind == CodeKind::float8 ? 256.0f : 1.0f;
  if (worker.id == 0)
    for (int i = 0; i < 16; i++) q.bytes[i] = q.kind == CodeKind::byte_table ? stored_byte(static_cast<int>(q.values[i])) : 0;
  worker.each(w.panels(), [&](int64_t panel) {
    alignas(64) uint8_t block[CODE_BLOCK * PANEL];
    uint8_t* at = reinterpret_cast<uint8_t*>(const_cast<uint32_t*>(w.panel(panel, 0)));
    int64_t outputs[PANEL];
    float inverse[PANEL];
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t output = outputs[lane] = w.output(panel, lane);
      const float factor = output < 0 || q.wide ? 1.0f : factor_of(from.scales + output * q.groups, from.offsets ? from.offsets + output * q.groups : nullptr, q.groups);
      inverse[lane] = 1.0f / factor;
      factors[panel * PANEL + lane] = factor * scaling;
    }
    for (int64_t group = 0; group < q.groups; group++) {
      for (int lane = 0; lane < PANEL; lane++) {
        const int64_t i = outputs[lane] * q.groups + group;
        put_scale(q, outputs[lane] < 0 ? 0.0f : from.scales[i] * inverse[lane], lane, at);
        if (from.offsets) put_scale(q, outputs[lane] < 0 ? 0.0f : from.offsets[i] * inverse[lane] / scaling, lane, at + q.scale_bytes());
      }
      at += q.head_bytes();
      for (int64_t b = 0; b < q.group; b += CODE_BLOCK, at += q.block_bytes()) {
        const int64_t first = group * q.group + b, count = std::clamp<int64_t>(w.inputs - first, 0, CODE_BLOCK);
        for (int lane = 0; lane < PANEL; lane++) {
          uint8_t codes[CODE_BLOCK];
          std::memset(codes, from.padding, CODE_BLOCK);
          if (outputs[lane] >= 0) std::memcpy(codes, from.codes + outputs[lane] * w.inputs + first, count);
          if (q.kind == CodeKind::bytes)
            for (uint8_t& code : codes) code = stored[code];
          uint8_t* to = block + lane / LANES * LINE_BYTES;
          if (q.kind == CodeKind::float8)
            for (int i = 0; i < CODE_BLOCK; i++) to[i / 4 * UNIT_BYTES + q.place(lane % LANES, i % 4)] = codes[i];
          else
            for (int u = 0; u < CODE_BLOCK / 4; u++) std::memcpy(to + u * UNIT_BYTES + 4 * (lane % LANES), codes + 4 * u, 4);
        }
        write_block(block, q.bits, at);
      }
    }
  });
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
