// The adapters of a step: of instructions of their own, and those that are terms of products (`low_rank/low_rank_terms.hpp`).
#pragma once
#include <map>
#include <vector>

#include "low_rank/selected_segments.hpp"
#include "program/instruction.hpp"

namespace quire {

// The segments of the tokens that instructions with adapters work on.
class InstructionSegments {
 public:
  InstructionSegments(const Step& step, const EarlyRows& early, const Instruction* program, int64_t count) : step_(step), early_(early) {
    for (const Instruction* i = program; i < program + count; i++)
      if ((i->op == Op::low_rank || i->op == Op::shrink) && is_selected(*i) && step.segments[i->layer] && !selected_.count(i->layer))
        selected_.emplace(i->layer, SelectedSegments(*step.segments[i->layer], step.selected, step.num_selected));
  }

  // Null: no adapters.
  const StepSegments* of(const Instruction& i) const {
    const StepSegments* all = step_.segments[i.layer];
    return all && is_selected(i) ? selected_.at(i.layer).segments() : all;
  }

 private:
  bool is_selected(const Instruction& i) const { return early_.tokens(i) < step_.tokens; }

  const Step& step_;
  const EarlyRows& early_;
  std::map<int32_t, SelectedSegments> selected_;  // by runtime
};

#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
// A product has the terms of the `shrink` instructions before it, of which there are `shrinks`: one for each runtime.
class StepAdapters {
 public:
  StepAdapters(const Step& step, const EarlyRows& early, const InstructionSegments& segments, const Instruction* program, int64_t count) {
    struct Sizes {
      int64_t middle = 0, added = 0;
    };
    static thread_local ScratchBuffer<float> memory;  // of one product after another
    std::map<int32_t, Sizes> sizes;                   // by runtime
    std::vector<const Instruction*> shrinks;          // of runtimes that have adapters in this step
    for (const Instruction* i = program; i < program + count; i++)
      if (i->op == Op::shrink && step.segments[i->layer]) shrinks.push_back(i), sizes[i->layer] = {};
    for (const Instruction* i : shrinks) {
      const int64_t rows = early.tokens(*i);
      auto found = uses_.find(key(*i));
      if (found == uses_.end())
        found = uses_.emplace(key(*i), TileUses(*segments.of(*i), rows, sizes.size() == 1)).first;
      const AdapterSlots& slots = *static_cast<const AdapterSlots*>(i->weight);
      Sizes& size = sizes[i->layer];
      size.middle = std::max(size.middle, ShrinkBuffers::middle_sizes(slots, found->second));
      size.added = std::max(size.added, ShrinkBuffers::added_size(slots, found->second));
    }
    int64_t all = 0;
    for (const auto& [runtime, size] : sizes) all += size.middle + size.added;
    memory.fit(all);
    float* at = memory.data();
    for (const auto& [runtime, size] : sizes) buffers_[runtime] = {at, at + size.middle}, at += size.middle + size.added;
  }

  // The rows that use adapters of the runtime of a `shrink` instruction; null: none.
  const TileUses* uses(const Instruction& shrink) const {
    const auto found = uses_.find(key(shrink));
    return found == uses_.end() ? nullptr : &found->second;
  }
  const ShrinkBuffers& buffers(const Instruction& shrink) const { return buffers_.at(shrink.layer); }

  LowRankTerms terms(const Instruction& product, const bf16* bias) const {
    LowRankTerms terms;
    for (const Instruction* shrink = &product - product.shrinks; shrink < &product; shrink++)
      if (const TileUses* found = uses(*shrink))
        terms.add({*static_cast<const AdapterSlots*>(shrink->weight), *found, buffers(*shrink), product.packed, bias});
    return terms;
  }

 private:
  static std::pair<int32_t, bool> key(const Instruction& shrink) { return {shrink.layer, shrink.selected != Selected::all}; }

  std::map<std::pair<int32_t, bool>, TileUses> uses_;  // by runtime, of all rows and of the selected ones
  std::map<int32_t, ShrinkBuffers> buffers_;           // by runtime
};
#else
struct StepAdapters {
  StepAdapters(const Step&, const EarlyRows&, const InstructionSegments&, const Instruction*, int64_t) {}
};
#endif

}  // namespace quire
