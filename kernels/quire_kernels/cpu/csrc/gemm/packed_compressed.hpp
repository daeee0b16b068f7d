// Packed bfloat16 matrices with compressed panels (`gemm/bf16_compressed.hpp`): three quarters of the memory, and
// of the time that a product of few rows waits for it.
//
// A panel begins with its rare values, padded to the same number of cache lines in every panel, so that panels have
// equal length; its groups follow. A group is two units of the panel.
#pragma once
#include "gemm/bf16_compressed.hpp"
#include "gemm/packed.hpp"

namespace quire {

constexpr int64_t COMPRESSED_UNIT_BYTES = PANEL * 3;

constexpr uint32_t NO_POSITION = UINT32_MAX;  // position in the entry after the last rare value

constexpr int64_t SAMPLED_OUTPUTS = 512, SAMPLE_SKIP = 8;

// Bytes of a panel's list of rare values.
inline int64_t rare_bytes(int64_t count) { return padded((count + 1) * static_cast<int64_t>(sizeof(Rare)), 64); }

// Chooses the upper bytes for w [outputs, inputs] and the number of bytes before each panel's groups.
inline void plan_compression(Worker& worker, const bf16* w, int64_t outputs, int64_t inputs, int halves,
                         PanelCodebook& book, int64_t (*counts)[256], int64_t* most_rare) {
  std::fill_n(counts[worker.id], 256, 0);
  // of a large matrix, a sample says which upper bytes are common; all values then say how many are not
  const int64_t skip = outputs < SAMPLED_OUTPUTS ? 1 : SAMPLE_SKIP;
  for (int64_t row = worker.id * skip; row < outputs; row += worker.size * skip)
    count_upper_bytes(w + row * inputs, inputs, counts[worker.id]);
  worker.barrier();
  if (worker.id == 0) {
    for (int other = 1; other < worker.size; other++)
      for (int i = 0; i < 256; i++) counts[0][i] += counts[other][i];
    choose_upper_bytes(counts[0], book.upper);
  }
  worker.barrier();
  most_rare[worker.id] = 0;
  const Packed shape{nullptr, outputs, inputs, halves, nullptr};
  worker.each(shape.panels(), [&](int64_t panel) {
    int64_t here = 0;
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t row = shape.output(panel, lane);
      if (row >= 0) here += count_rare(w + row * inputs, inputs, book.upper);
    }
    most_rare[worker.id] = std::max(most_rare[worker.id], here);
  });
  worker.barrier();
  if (worker.id == 0) book.head = rare_bytes(*std::max_element(most_rare, most_rare + worker.size));
}

// Packs w [outputs, inputs] into compressed panels with the book of `to`.
inline void pack_compressed(Worker& worker, const bf16* w, const Packed& to) {
  static thread_local ScratchBuffer<bf16> buffer;
  const int64_t units = padded(to.inputs, INPUT_STEP) / PER_UNIT<bf16>, elements = units * PANEL * PER_UNIT<bf16>;
  buffer.fit(elements);
  worker.each(to.panels(), [&](int64_t panel) {
    pack_panel(w, to, panel, buffer.data());
    uint8_t* head = reinterpret_cast<uint8_t*>(const_cast<uint32_t*>(to.panel(panel, units)));
    Rare* rare = reinterpret_cast<Rare*>(head);
    rare[compress(buffer.data(), elements, to.book->upper, rare, head + to.book->head)].position = NO_POSITION;
  });
}

// One row of the packed matrix, [inputs].
inline void unpack_compressed_row(const Packed& w, int64_t output, bf16* row) {
  const auto [panel, lane] = w.position(output);
  const uint32_t* head = w.panel(panel, padded(w.inputs, INPUT_STEP) / PER_UNIT<bf16>);
  const uint8_t* groups = reinterpret_cast<const uint8_t*>(head) + w.book->head;
  for (int64_t i = 0; i < w.inputs; i++) {
    const int64_t element = (i / 2 * PANEL + lane) * 2 + i % 2;
    const uint8_t* group = groups + element / GROUP_ELEMENTS * GROUP_BYTES;
    const CompressedOffset position(element % GROUP_ELEMENTS);
    row[i].bits = static_cast<uint16_t>(w.book->upper[group[position.number] >> position.shift & 15] << 8 | group[position.byte]);
  }
  for (const Rare* rare = reinterpret_cast<const Rare*>(head); rare->position != NO_POSITION; rare++) {
    const int64_t element = rare->position, i = element / 2 / PANEL * 2 + element % 2;
    if (element / 2 % PANEL == lane && i < w.inputs) row[i].bits = static_cast<uint16_t>(rare->bits);
  }
}

}  // namespace quire
