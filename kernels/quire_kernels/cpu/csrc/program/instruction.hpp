// Instructions and the inputs of a step. The structs are shared with Python (`structs.py` declares the same fields in the
// same order).
#pragma once
#include <vector>

#include "attention/attention_block.hpp"
#include "low_rank/low_rank.hpp"
#include "rowwise.hpp"

namespace quire {

enum class Op : int32_t { rms_norm, add_rms_norm, layer_norm, product, rotary_write, attention, gated_act, act, add, scale, product_int8, select, low_rank, argmax, row_attention, rotary, product_split, product_quantized, multiply, gated_rms_norm, causal_conv, gated_delta, ssd_scan, selective_scan, route, moe, join_parts, product_heads, clamp, all_reduce, shrink };

// Which tokens an instruction works on. all: those of the step. selected: those whose logits are computed, which
// `select` has gathered. early: the same if the step allows it (`EarlyRows`), else all. early_end: `select` of what
// `early` instructions made.
enum class Selected : int32_t { all, selected, early, early_end };

// Part of a buffer: token t, part p starts at offset + t · stride + p · width (in elements).
struct View {
  int32_t buffer, parts;
  int64_t offset, stride, width;
};

struct Instruction {
  Op op;
  Act act;
  View in[3];
  View out;
  const void *weight, *bias, *stripes;
  Packed packed;
  int64_t window, chunk, reach;
  float factor, softcap;  // eps of a norm, or the scale
  int32_t layer, angles;
  int32_t wide;         // weight (of norms) or output (of products) is float32
  int32_t interleaved;  // rotary
  int32_t gated;        // product: its EpilogueKind
  Selected selected;
  int32_t of_encoder;   // attention: to the tokens' encoder inputs
  int32_t group, before;  // attention: as in `AttentionArgs`
  int32_t shrinks;      // product: number of `shrink` instructions before it whose adapters are terms of its sums
};

struct Step {
  int32_t is_bf16, threads;
  int64_t tokens;
  void* const* buffers;
  const int64_t* slot_mapping;
  StepRows rows;
  void* const *k_pools, *const *v_pools;
  int64_t page_size;
  const float* const* cos;
  const float* const* sin;
  const int64_t* pairs;  // of each table of cosines and sines
  const int64_t* const* angle_rows;  // row of the table for each token; null: token t has row t
  const int64_t* selected;  // tokens, num_selected of them
  int64_t num_selected;
  double* seconds;  // accumulated for each instruction; or null
  Stored stored;  // how keys and values are stored in the pools
  const StepSegments* const* segments;  // of each adapter runtime; null if it has no adapters in this step
  StepRows cross_rows;  // one row per token, if the program has cross-attention
  const int64_t* state_slots;  // of each row
  void* const* states;         // the program's state tensors
  int32_t exact;  // attention: as in `AttentionArgs`
};

// The rows of a step, of which `early` instructions see the selected tokens alone. That is possible if these are the
// last ones of each row: attention then has fewer queries of the same contexts.
class EarlyRows {
 public:
  explicit EarlyRows(const Step& step) : step_(step), rows_(step.rows) {
    if (!step.selected || !step.rows.query_starts) return;
    starts_.assign(1, 0);
    const int32_t* starts = step.rows.query_starts;
    int64_t at = 0;
    for (int64_t r = 0; r < step.rows.count; r++) {
      const int64_t first = at;
      while (at < step.num_selected && step.selected[at] < starts[r + 1]) at++;
      for (int64_t i = first; i < at; i++)
        if (step.selected[i] != starts[r + 1] - (at - i) || step.selected[i] < starts[r]) return;
      starts_.push_back(static_cast<int32_t>(at));
    }
    if (at != step.num_selected) return;
    possible_ = true;
    rows_.query_starts = starts_.data();
    if (!step.rows.ends) return;
    for (int64_t i = 0; i < at; i++) ends_.push_back(step.rows.ends[step.selected[i]]);
    rows_.ends = ends_.data();
  }
  EarlyRows(const EarlyRows&) = delete;

  const StepRows& rows() const { return possible_ ? rows_ : step_.rows; }
  int64_t tokens(const Instruction& i) const {
    const bool all = i.selected == Selected::all || (i.selected == Selected::early && !possible_);
    return all ? step_.tokens : step_.num_selected;
  }
  // The tokens that a `select` gathers; null: the first ones.
  const int64_t* selected_by(const Instruction& i) const {
    const bool has_all = i.selected == Selected::selected || (i.selected == Selected::early) == possible_;
    return has_all ? step_.selected : nullptr;
  }

 private:
  const Step& step_;
  StepRows rows_;
  bool possible_ = false;
  std::vector<int32_t> starts_, ends_;
};

}  // namespace quire
