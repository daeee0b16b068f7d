// Weights of a panel as AMX kernels read them, a step of 16 units after the other: where they are, or decompressed
// (`gemm/packed_compressed.hpp`) to the first-level cache while tiles multiply the step before.
#pragma once
#include "gemm/gemm_tiling.hpp"
#include "gemm/packed_compressed.hpp"
#include "scratch.hpp"

namespace quire {

// The intrinsics do not declare what tiles read: of LDTILECFG eight bytes, of TILELOADD none. After this, all that was
// written before is in memory.
inline void write_memory(const void* from) { asm volatile("" : : "r"(from) : "memory"); }

constexpr int64_t NEAR = 8;  // prefetch distance of a single row's weights in units: 1 KiB in each stream
constexpr int64_t AHEAD = 16 * 16;  // prefetch distance in units: 32 KiB

class PlainSteps {
 public:
  explicit PlainSteps(const uint32_t* at) : at_(at) {}
  const uint32_t* next() {
    const uint32_t* now = at_;
    at_ += LANES * PANEL;
    return now;
  }
  void prefetch() const {}  // hardware does it

 private:
  const uint32_t* at_;
};

// Decompresses each step to memory before it is needed.
class CompressedSteps {
 public:
  // to: memory of all units; or, if `cycles`, of two steps in turn. done: whether all units are there already.
  CompressedSteps(const CompressedPanelReader& reader, int64_t units, uint32_t* to, bool cycles, bool done)
      : reader_(reader), to_(to), mask_(cycles ? 1 : -1), end_(done ? 0 : units / LANES) {
    if (end_) reader_.read(LANES, to_);
  }
  const uint32_t* next() {
    const uint32_t* now = to_ + (step_ & mask_) * STEP;
    if (++step_ < end_) reader_.read(LANES, to_ + (step_ & mask_) * STEP);
    write_memory(now);
    return now;
  }
  const CompressedPanelReader& reader() const { return reader_; }
  // Prefetches, to the first-level cache, a step that is read soon: few rows wait for memory otherwise.
  void prefetch() const {
    for (int64_t i = 0; i < LANES * COMPRESSED_UNIT_BYTES; i += 64) prefetch_l1(reader_.at() + SOON_BYTES + i);
  }

  static constexpr int64_t STEP = LANES * PANEL;

 private:
  static constexpr int64_t SOON_BYTES = 2048;
  CompressedPanelReader reader_;
  uint32_t* to_;
  int64_t mask_, step_ = 0, end_;
};

// How the panels of a matrix are stored.
struct PlainWeights {
  PlainSteps steps(const uint32_t* panel, int64_t, int = 0) const { return PlainSteps(panel); }
  PlainSteps steps_of(const GemmTile&, int64_t, const uint32_t* w, int64_t) const { return PlainSteps(w); }
  // Prefetches, to the second-level cache, what is read AHEAD units after `unit`; beyond the end this is harmless.
  void prefetch(const uint32_t* panel, int64_t unit) const {
    for (int i = 0; i < 32; i++) prefetch_l2(panel + (unit + AHEAD) * PANEL + i * LANES);
  }
};
struct CompressedWeights {
  const PanelCodebook* book;

  // number: of those of a thread that are read at the same time.
  CompressedSteps steps(const uint32_t* panel, int64_t units, int number = 0) const {
    alignas(64) static thread_local uint32_t some[3][2 * CompressedSteps::STEP];
    return {CompressedPanelReader(*book, panel), units, some[number], true, false};
  }
  // Of a panel of a tile: the first of several tiles decompresses it for the others.
  CompressedSteps steps_of(const GemmTile& tile, int64_t panel, const uint32_t* w, int64_t units) const {
    if (tile.tiles == 1) return steps(w, units);
    static thread_local ScratchBuffer<uint32_t> all;
    all.fit((tile.last - tile.first) * units * PANEL);
    return {CompressedPanelReader(*book, w), units, all.data() + (panel - tile.first) * units * PANEL, false, !tile.fresh};
  }
  void prefetch(const uint32_t* panel, int64_t unit) const {
    const char* from = reinterpret_cast<const char*>(panel) + book->head + (unit + AHEAD) * COMPRESSED_UNIT_BYTES;
    for (int64_t i = 0; i < LANES * COMPRESSED_UNIT_BYTES; i += 64) prefetch_l2(from + i);
  }
};

}  // namespace quire
