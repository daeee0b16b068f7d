// Packed matrices of bfloat16 whose panels are compact (`compact.hpp`): three quarters of the memory, and of the time
// that a product of few rows waits for it.
//
// A panel is its rare values, in lines of their own (as many for every panel, so that panels are equally long), then its
// groups. A group is two units of the panel.
#pragma once
#include "compact.hpp"
#include "packed.hpp"

namespace quire {

constexpr int64_t COMPACT_UNIT_BYTES = PANEL * 3;

constexpr uint32_t NO_PLACE = UINT32_MAX;  // of what stands behind the last rare value

// Bytes of the rare values of a panel.
inline int64_t rare_bytes(int64_t count) { return padded((count + 1) * static_cast<int64_t>(sizeof(Rare)), 64); }

inline bool is_rare(const uint8_t* upper, bf16 value) { return std::find(upper, upper + 16, value.bits >> 8) == upper + 16; }

// Chooses the upper bytes of w [outputs, inputs] and the bytes before each panel's groups.
inline void plan_compact(Worker& worker, const bf16* w, int64_t outputs, int64_t inputs, int halves, PanelBook& book,
                         int64_t (*counts)[256], int64_t* most_rare) {
  std::fill_n(counts[worker.id], 256, 0);
  const int64_t begin = outputs * worker.id / worker.size, end = outputs * (worker.id + 1) / worker.size;
  count_upper_bytes(w + begin * inputs, (end - begin) * inputs, counts[worker.id]);
  worker.barrier();
  if (worker.id == 0) {
    for (int other = 1; other < worker.size; other++)
      for (int i = 0; i < 256; i++) counts[0][i] += counts[other][i];
    choose_upper_bytes(counts[0], book.upper);
  }
  worker.barrier();
  bool rare[256];
  for (int i = 0; i < 256; i++) rare[i] = is_rare(book.upper, bf16{static_cast<uint16_t>(i << 8)});
  most_rare[worker.id] = 0;
  const Packed shape{nullptr, outputs, inputs, halves, nullptr};
  worker.each(shape.panels(), [&](int64_t panel) {
    int64_t here = 0;
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t row = shape.output(panel, lane);
      if (row < 0) continue;
      for (int64_t i = 0; i < inputs; i++) here += rare[w[row * inputs + i].bits >> 8];
    }
    most_rare[worker.id] = std::max(most_rare[worker.id], here);
  });
  worker.barrier();
  if (worker.id == 0) book.head = rare_bytes(*std::max_element(most_rare, most_rare + worker.size));
}

// w [outputs, inputs] into compact panels, as its book says.
inline void pack_compact(Worker& worker, const bf16* w, const Packed& to) {
  static thread_local Room<bf16> room;
  const int64_t units = padded(to.inputs, INPUT_STEP) / PER_UNIT<bf16>, elements = units * PANEL * PER_UNIT<bf16>;
  room.fit(elements);
  worker.each(to.panels(), [&](int64_t panel) {
    pack_panel(w, to, panel, room.data());
    uint8_t* head = reinterpret_cast<uint8_t*>(const_cast<uint32_t*>(to.panel(panel, units)));
    Rare* rare = reinterpret_cast<Rare*>(head);
    rare[make_compact(room.data(), elements, to.book->upper, rare, head + to.book->head)].place = NO_PLACE;
  });
}

// One row of the matrix that was packed, [inputs].
inline void unpack_compact_row(const Packed& w, int64_t output, bf16* row) {
  const auto [panel, lane] = w.place(output);
  const uint32_t* head = w.panel(panel, padded(w.inputs, INPUT_STEP) / PER_UNIT<bf16>);
  const uint8_t* groups = reinterpret_cast<const uint8_t*>(head) + w.book->head;
  for (int64_t i = 0; i < w.inputs; i++) {
    const int64_t element = (i / 2 * PANEL + lane) * 2 + i % 2;
    const uint8_t* group = groups + element / GROUP_ELEMENTS * GROUP_BYTES;
    const CompactPlace place(element % GROUP_ELEMENTS);
    row[i].bits = static_cast<uint16_t>(w.book->upper[group[place.number] >> place.shift & 15] << 8 | group[place.byte]);
  }
  for (const Rare* rare = reinterpret_cast<const Rare*>(head); rare->place != NO_PLACE; rare++) {
    const int64_t element = rare->place, i = element / 2 / PANEL * 2 + element % 2;
    if (element / 2 % PANEL == lane && i < w.inputs) row[i].bits = static_cast<uint16_t>(rare->bits);
  }
}

}  // namespace quire
