// Packs rows of ggml's blocks into panels, from the bytes of a file: codes of one panel at a time are unpacked.
#pragma once
#include <vector>

#include "quantized/ggml_blocks.hpp"
#include "quantized/pack.hpp"

namespace quire {

// Rows of a matrix whose types are equal. rows: address of each output's blocks. count: blocks of a row.
struct BlockRows {
  BlockType type;
  int32_t padding, bits;  // as in `QuantizedSource`
  int32_t shift;          // times the scale, is added to offsets, because codes are packed with another zero
  int64_t count;
  const uint8_t* const* rows;
};

inline void pack_blocks(Worker& worker, const BlockRows& from, const Packed& w, Quantized& q, float* factors,
                        std::atomic<int32_t>& problems) {
  const StoredCodes stored(q);
  if (worker.id == 0) set_table_bytes(q);
  const int64_t groups = q.has_offsets ? q.groups : 0;
  std::vector<uint8_t> codes(PANEL * w.inputs);
  std::vector<float> scales(PANEL * q.groups), offsets(PANEL * groups);
  worker.each(w.panels(), [&](int64_t panel) {
    int64_t rows = 0;
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t output = w.output(panel, lane);
      if (output < 0) continue;
      unpack_blocks(from.type, {from.rows[output], from.count, codes.data() + rows * w.inputs,
                                scales.data() + rows * q.groups, offsets.data() + rows * groups});
      if (from.shift != 0)
        for (int64_t g = 0; g < q.groups; g++) {
          float& offset = offsets[rows * groups + g];
          offset = (has_offsets(from.type) ? offset : 0.0f) + static_cast<float>(from.shift) * scales[rows * q.groups + g];
        }
      rows++;
    }
    // the rows of this panel as a matrix of their own
    const uint32_t* at = w.panel(panel, 0);
    const Packed one{at, rows, w.inputs, w.halves, nullptr, w.bytes};
    const QuantizedSource source{codes.data(), scales.data(), q.has_offsets ? offsets.data() : nullptr, from.padding, from.bits};
    problems |= pack_codes(source, one, q, stored, 0, factors + panel * PANEL);
  });
}

}  // namespace quire
