// Packed bfloat16 matrices with compressed panels (`gemm/bf16_compressed.hpp`): three quarters of the memory, and
// of the time that a product of few rows waits for it.
//
// A panel begins with its rare values, padded to the same number of cache lines in every panel, so that panels have
// equal length; its groups follow. A group is two units of the panel.
#pragma once
#include "gemm/compress.hpp"
#include "gemm/packed.hpp"

namespace quire {

constexpr int64_t COMPRESSED_UNIT_BYTES = PANEL * 3;

constexpr uint32_t NO_POSITION = UINT32_MAX;  // position in the entry after the last rare value

// Of a large matrix, rows with this many elements or more are sampled, at most SAMPLE_SKIP rows apart.
constexpr int64_t SAMPLED_ELEMENTS = 1 << 18, SAMPLE_SKIP = 32;

// Bytes of a panel's list of rare values.
inline int64_t rare_bytes(int64_t count) { return padded((count + 1) * static_cast<int64_t>(sizeof(Rare)), 64); }

// Space for this many rare values suffices in nearly all panels if there are `mean` in one on average.
inline int64_t likely_most(int64_t mean) { return 2 * mean + 7; }

// Chooses the upper bytes for a matrix of these rows, and the number of bytes before each panel's groups that is
// likely to suffice.
inline void sample_code_book(Worker& worker, const bf16* const* rows, int64_t outputs, int64_t inputs,
                             PanelCodebook& book, int64_t (*counts)[256]) {
  std::fill_n(counts[worker.id], 256, 0);
  const int64_t skip = std::clamp<int64_t>(outputs * inputs / SAMPLED_ELEMENTS, 1, SAMPLE_SKIP);
  for (int64_t row = worker.id * skip; row < outputs; row += worker.size * skip)
    count_upper_bytes(rows[row], inputs, counts[worker.id]);
  worker.barrier();
  if (worker.id == 0) {
    for (int other = 1; other < worker.size; other++)
      for (int i = 0; i < 256; i++) counts[0][i] += counts[other][i];
    const int64_t rare = choose_upper_bytes(counts[0], book.upper), sampled = (outputs + skip - 1) / skip;
    book.head = rare_bytes(likely_most((rare * PANEL + sampled - 1) / std::max<int64_t>(sampled, 1)));
  }
  worker.barrier();
}

// Sets the number of bytes before each panel's groups to what the panel with most rare values needs.
inline void count_rare_values(Worker& worker, const bf16* const* rows, int64_t outputs, int64_t inputs, int halves,
                              PanelCodebook& book, int64_t* most_rare) {
  most_rare[worker.id] = 0;
  const Packed shape{nullptr, outputs, inputs, halves, nullptr};
  worker.each(shape.panels(), [&](int64_t panel) {
    int64_t here = 0;
    for (int lane = 0; lane < PANEL; lane++) {
      const int64_t row = shape.output(panel, lane);
      if (row >= 0) here += count_rare(rows[row], inputs, book.upper);
    }
    most_rare[worker.id] = std::max(most_rare[worker.id], here);
  });
  worker.barrier();
  if (worker.id == 0) book.head = rare_bytes(*std::max_element(most_rare, most_rare + worker.size));
}

// Packs a matrix of these rows into compressed panels with the book of `to`. fits: set to false if a panel has more rare
// values than `book.head` has space for; the panels are then of no use.
inline void pack_compressed(Worker& worker, const bf16* const* rows, const Packed& to, std::atomic<bool>& fits) {
  static thread_local ScratchBuffer<bf16> buffer;
  static thread_local ScratchBuffer<Rare> found;
  const int64_t units = padded(to.inputs, INPUT_STEP) / PER_UNIT<bf16>, elements = units * PANEL * PER_UNIT<bf16>;
  buffer.fit(elements), found.fit(elements);
  const int64_t space = to.book->head / static_cast<int64_t>(sizeof(Rare)) - 1;
  worker.each(to.panels(), [&](int64_t panel) {
    if (!fits.load(std::memory_order_relaxed)) return;
    pack_panel(rows, to, panel, buffer.data());
    uint8_t* head = reinterpret_cast<uint8_t*>(const_cast<uint32_t*>(to.panel(panel, units)));
    const int64_t count = compress(buffer.data(), elements, to.book->upper, found.data(), head + to.book->head);
    if (count > space) return fits.store(false, std::memory_order_relaxed);
    Rare* rare = std::copy_n(found.data(), count, reinterpret_cast<Rare*>(head));
    rare->position = NO_POSITION;
  });
}

// Reads a compressed panel from its first unit to its last.
class CompressedPanelReader {
 public:
  CompressedPanelReader(const PanelCodebook& book, const uint32_t* panel)
      : upper_(book.upper),
        from_(reinterpret_cast<const uint8_t*>(panel) + book.head),
        rare_(reinterpret_cast<const Rare*>(panel)) {}

  // Decompresses the vectors of the next two units.
  void next(U16 (&group)[GROUP_VECTORS]) {
    upper_.restore(from_, group);
    from_ += GROUP_BYTES, done_ += GROUP_ELEMENTS;
    if (rare_->position < done_) put_rare(group);
  }
  // Decompresses the next `units` units, an even number.
  void read(int64_t units, uint32_t* to) {
    for (int64_t u = 0; u < units; u += 2, to += GROUP_VECTORS * LANES) {
      U16 group[GROUP_VECTORS];
      next(group);
      for (int i = 0; i < GROUP_VECTORS; i++) store_units(to + i * LANES, group[i]);
    }
  }
  // Decompresses the next `units` units, an even number, and widens them to float32: [input][PANEL].
  void read_widened(int64_t units, uint32_t* to) {
    for (int64_t u = 0; u < units; u += 2, to += 2 * GROUP_VECTORS * LANES) {
      U16 group[GROUP_VECTORS];
      next(group);
      for (int i = 0; i < GROUP_VECTORS; i++) {
        uint32_t* unit = to + i / 2 * 2 * PANEL + i % 2 * LANES;
        store_units(unit, widened<0>(group[i]));
        store_units(unit + PANEL, widened<1>(group[i]));
      }
    }
  }
  const uint8_t* at() const { return from_; }

 private:
  UpperBytes upper_;
  const uint8_t* from_;
  const Rare* rare_;  // the last entry has a position after all elements
  uint32_t done_ = 0;  // elements

  void put_rare(U16 (&group)[GROUP_VECTORS]) {
    alignas(64) bf16 elements[GROUP_ELEMENTS];
    for (int i = 0; i < GROUP_VECTORS; i++) store_units(elements + i * 2 * LANES, group[i]);
    bf16* at = elements - (done_ - GROUP_ELEMENTS);
    for (; rare_->position < done_; rare_++) at[rare_->position].bits = static_cast<uint16_t>(rare_->bits);
    for (int i = 0; i < GROUP_VECTORS; i++) group[i] = load_units(elements + i * 2 * LANES);
  }
};

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
