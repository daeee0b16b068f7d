// A program: a list of the operations of a step, or of a single call, which all threads run run_parallel.
//
// The structs are shared with Python (`structs.py` declares the same fields in the same order).
#pragma once
#include <chrono>

#include "groups/all_reduce.hpp"
#include "attention/attention.hpp"
#include "low_rank/low_rank.hpp"
#include "attention/pages.hpp"
#include "gemm/gemm.hpp"
#include "gemm/gemm_int8.hpp"
#include "gemm/gemm_bf16x3.hpp"
#include "moe/experts.hpp"
#include "quantized/multiply.hpp"
#include "attention/row_attention.hpp"
#include "program/instruction.hpp"
#include "program/step_adapters.hpp"
#include "rowwise.hpp"
#include "sampling/sampling.hpp"
#include "state/instructions.hpp"

namespace quire {

constexpr int64_t MIN_TOKENS_BESIDE = 8;   // minimum tokens of a product during which other memory is prefetched

inline bool multiplies(Op op) { return op == Op::product || op == Op::product_int8 || op == Op::product_quantized; }

template <class T>
struct Interpreter {
  const Step& step;
  Worker& worker;
  int64_t tokens;
  PrefetchQueue& queue;
  const EarlyRows& early;
  const StepAdapters& adapters;
  const InstructionSegments& segments;

  Rows<T> rows(const View& v) const {
    return {static_cast<T*>(step.buffers[v.buffer]) + v.offset, v.stride, v.parts, v.width};
  }
  Pool pool(void* const* pools, const Instruction& i, const View& kv) const {
    return {pools[i.layer], step.page_size, kv.parts, kv.width, step.stored};
  }

  template <class W>
  void norm(const Instruction& i) const {
    const W* weight = static_cast<const W*>(i.weight);
    if (i.op == Op::rms_norm)
      rms_norm(worker, tokens, rows(i.in[0]), weight, i.factor, rows(i.out));
    else
      add_rms_norm(worker, tokens, rows(i.in[0]), rows(i.in[1]), weight, i.factor, rows(i.out));
  }

  void product(const Instruction& i) const {
    const Rows<T> x = rows(i.in[0]);
    void* y = i.wide ? static_cast<void*>(static_cast<float*>(step.buffers[i.out.buffer]) + i.out.offset)
                     : static_cast<void*>(rows(i.out).base);
    const GemmOutput to{y, i.out.stride, i.bias, static_cast<EpilogueKind>(i.gated), i.act, i.wide};
    if (i.op == Op::product_int8)  // weight: the scales; in[1]: scratch memory for the quantized x
      return multiply_int8<T>(worker, x.base, x.stride, tokens, i.packed, static_cast<const float*>(i.weight),
                              rows(i.in[1]).base, to, queue);
    if (i.op == Op::product_quantized)  // weight: the `Quantized`; in[1]: scratch memory for the prepared x
      return multiply_quantized<T>(worker, x.base, x.stride, tokens, i.packed, *static_cast<const Quantized*>(i.weight),
                                   rows(i.in[1]).base, to, queue);
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
    if constexpr (sizeof(T) == 4)
      if (i.op == Op::product_split)
        return multiply_split(worker, x.base, x.stride, tokens, x.width * x.parts, i.packed, to);
    if constexpr (sizeof(T) == 2)
      if (i.shrinks)
        if (const LowRankTerms terms = adapters.terms(i, static_cast<const T*>(i.bias)); terms.any())
          return multiply_tiles(worker, x.base, x.stride, tokens, i.packed, to, queue, terms);
#endif
    multiply<T>(worker, x.base, x.stride, tokens, i.packed, to, queue);
  }

  // The adapters' first product, for the product that follows.
  void shrink_rows([[maybe_unused]] const Instruction& i) const {
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
    if constexpr (sizeof(T) == 2)
      if (const TileUses* uses = adapters.uses(i))
        shrink(worker, *static_cast<const AdapterSlots*>(i.weight), *uses, rows(i.in[0]), adapters.buffers(i));
#endif
  }

  Angles angles(const Instruction& i) const {
    const bool rotates = i.angles >= 0;
    return {rotates ? step.cos[i.angles] : nullptr, rotates ? step.sin[i.angles] : nullptr,
            rotates && step.angle_rows ? step.angle_rows[i.angles] : nullptr, rotates ? step.pairs[i.angles] : 0,
            i.interleaved != 0};
  }

  void rotary(const Instruction& i) const {
    rotary_write<T>(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.in[2]), angles(i),
                    pool(step.k_pools, i, i.in[1]), pool(step.v_pools, i, i.in[2]), step.slot_mapping);
  }

  // in[1] and in[2] describe keys and values; only their parts and widths are used. Values without parts are part of
  // the keys. weight: sinks. bias: slopes, or biases if there is a reach
  void attention(const Instruction& i) const {
    AttentionArgs args{pool(step.k_pools, i, i.in[1]), pool(step.v_pools, i, i.in[2]), i.in[0].parts, i.factor,
                       i.softcap, i.window};
    args.chunk = i.chunk, args.latent = i.in[2].parts == 0;
    args.sinks = static_cast<const float*>(i.weight), args.reach = i.reach;
    args.stripes = static_cast<const Stripes*>(i.stripes), args.group = i.group, args.before = i.before;
    args.exact = step.exact != 0;
    (i.reach ? args.biases : args.slopes) = static_cast<const float*>(i.bias);
    attend<T>(worker, args, i.of_encoder ? step.cross_rows : i.selected == Selected::all ? step.rows : early.rows(), rows(i.in[0]), rows(i.out));
  }

  void row_attention(const Instruction& i) const {
    const RowAttentionArgs args{i.in[0].parts, i.in[1].parts, i.in[0].width, i.factor, i.window,
                                static_cast<const float*>(i.bias), i.reach};
    attend_rows<T>(worker, args, step.rows, rows(i.in[0]), rows(i.in[1]), rows(i.in[2]), rows(i.out));
  }

  template <class Y>
  void apply_adapters(const Instruction& i) const {
    const Rows<Y> y{static_cast<Y*>(step.buffers[i.out.buffer]) + i.out.offset, i.out.stride, i.out.parts, i.out.width};
    if (const StepSegments* found = segments.of(i))
      low_rank(worker, *static_cast<const AdapterSlots*>(i.weight), *found, rows(i.in[0]), y);
  }

  // Queues what the adapters after a product, from `next` to `end`, will read before the next product: the weights of all
  // active ones. With fewer tokens the product alone saturates the memory bandwidth.
  void queue_adapter_reads(const Instruction* next, const Instruction* end) const {
    queue.clear();
    if (tokens < MIN_TOKENS_BESIDE) return;
    for (; next < end && !multiplies(next->op) && next->op != Op::attention; next++) {
      if (next->op != Op::low_rank && next->op != Op::shrink) continue;
      const AdapterSlots& slots = *static_cast<const AdapterSlots*>(next->weight);
      if (const StepSegments* found = next->op == Op::low_rank ? segments.of(*next) : nullptr) queue_adapters(worker, slots, *found, queue);
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
      if (const TileUses* uses = next->op == Op::shrink ? adapters.uses(*next) : nullptr) queue_shrink(worker, slots, *uses, queue);
#endif
    }
  }

  // in[0]: float32; in[1]: scratch memory of `argmax`; out: an int64 for each token
  void find_argmax(const Instruction& i) const {
    const Logits logits{static_cast<const float*>(step.buffers[i.in[0].buffer]), tokens, i.in[0].width, i.in[0].stride};
    argmax(worker, logits, static_cast<float*>(step.buffers[i.in[1].buffer]), static_cast<int64_t*>(step.buffers[i.out.buffer]));
  }

  StateInstructions<T, Interpreter, Instruction> state(const Instruction& i) const { return {*this, i}; }

  void run(const Instruction& i) const {
    switch (i.op) {
      case Op::rms_norm:
      case Op::add_rms_norm:
        return i.wide ? norm<float>(i) : norm<T>(i);
      case Op::layer_norm:
        return layer_norm(worker, tokens, rows(i.in[0]), static_cast<const T*>(i.weight),
                          static_cast<const T*>(i.bias), i.factor, rows(i.out));
      case Op::product:
      case Op::product_int8:
      case Op::product_split:
      case Op::product_quantized:
        return product(i);
      case Op::rotary_write:
        return rotary(i);
      case Op::rotary:
        return rotate_heads<T>(worker, tokens, rows(i.in[0]), rows(i.in[1]), angles(i));
      case Op::attention:
        return attention(i);
      case Op::row_attention:
        return row_attention(i);
      case Op::gated_act:
        return gated_act(worker, tokens, rows(i.in[0]), i.act, rows(i.out));
      case Op::act:
        return activation(worker, tokens, rows(i.in[0]), i.act, rows(i.out));
      case Op::join_parts:
        return join_parts(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.out));
      case Op::product_heads:
        return multiply_heads<T>(worker, rows(i.in[0]), tokens, i.packed, rows(i.out));
      case Op::add:
        return add(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.out));
      case Op::multiply:
        return multiply_rows(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.out));
      case Op::gated_rms_norm:
        return state(i).normalize();
      case Op::causal_conv:
        return state(i).convolve();
      case Op::gated_delta:
        return state(i).template scan_heads<true>();
      case Op::ssd_scan:
        return state(i).template scan_heads<false>();
      case Op::selective_scan:
        return state(i).scan_channels();
      case Op::route:  // weight: the `RoutingRule`
        return quire::route(worker, tokens, rows(i.in[0]), *static_cast<const RoutingRule*>(i.weight), rows(i.out));
      case Op::moe:  // weight: the `Mixture`; in[1]: what `route` has chosen; in[2]: scratch memory
        return compute_experts(worker, tokens, *static_cast<const Mixture*>(i.weight), rows(i.in[0]), rows(i.in[1]),
                               rows(i.in[2]), rows(i.out));
      case Op::select:
        return gather(worker, tokens, early.selected_by(i), rows(i.in[0]), rows(i.out));
      case Op::low_rank:  // weight: the adapter slots; layer: the runtime's index; out: y, changed in place
        return i.wide ? apply_adapters<float>(i) : apply_adapters<T>(i);
      case Op::shrink:  // weight and layer: as of low_rank
        return shrink_rows(i);
      case Op::argmax:
        return find_argmax(i);
      case Op::all_reduce:  // weight: the `Member`; out: contiguous rows, changed in place
        return quire::all_reduce(worker, *static_cast<Member*>(const_cast<void*>(i.weight)), rows(i.out).base,
                                 tokens * i.out.parts * i.out.width);
      case Op::clamp:
        return clamp(worker, tokens, rows(i.in[0]), i.factor, rows(i.out));
      case Op::scale:
        return scale(worker, tokens, rows(i.in[0]), i.factor, rows(i.out));
    }
  }
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int64_t FEW_TOKENS = 32;  // with more tokens, computing a product takes longer than reading its weights

// Prefetches the first weights of a thread's next product while it waits for others, so that the memory is busy
// between products. They must fit in the second-level cache beside the current data.
class WeightPrefetcher {
  static constexpr int64_t MAX_BYTES = 512 << 10, BYTES_AT_ONCE = 512;

 public:
  template <class T>
  void target(const Instruction& product, const Worker& worker) {
    if (product_ == &product) return;
    product_ = &product;
    const Packed& w = product.packed;
    const int64_t bytes = w.panel_bytes(padded(w.inputs, INPUT_STEP) / (product.op == Op::product ? PER_UNIT<T> : 4));
    at_ = reinterpret_cast<const char*>(w.units) + w.panels() * worker.id / worker.size * bytes;
    const char* all = reinterpret_cast<const char*>(w.units) + w.panels() * (worker.id + 1) / worker.size * bytes;
    end_ = std::min(all, at_ + MAX_BYTES);
  }
  bool prefetch_some() {
    if (at_ >= end_) return false;
    for (int64_t i = 0; i < BYTES_AT_ONCE; i += 64) prefetch_l2(at_ + i);
    at_ += BYTES_AT_ONCE;
    return true;
  }

 private:
  const Instruction* product_ = nullptr;
  const char *at_ = nullptr, *end_ = nullptr;
};

template <class T>
void run(const Step& step, const Instruction* program, int64_t count) {
  const EarlyRows early(step);
  const InstructionSegments segments(step, early, program, count);
  const StepAdapters adapters(step, early, segments, program, count);
  run_parallel(step.threads, [&](Worker& worker) {
    double before = step.seconds ? now() : 0;
    WeightPrefetcher prefetcher;
    PrefetchQueue queue;
    for (int64_t i = 0, next = 0; i < count; i++) {
      const int64_t tokens = early.tokens(program[i]);
      if (tokens == 0 || (program[i].op == Op::shrink && !step.segments[program[i].layer])) continue;
      const Interpreter<T> interpreter{step, worker, tokens, queue, early, adapters, segments};
      while (next < count && (next <= i || !multiplies(program[next].op))) next++;
      if (multiplies(program[i].op)) interpreter.queue_adapter_reads(program + i + 1, program + count);
      if (next < count && program[next].op == Op::product) queue.set_after(&program[next].packed);
      interpreter.run(program[i]);
      if (next < count && tokens <= FEW_TOKENS) prefetcher.target<T>(program[next], worker);
      worker.barrier([&] { return prefetcher.prefetch_some(); });
      if (step.seconds && worker.id == 0) {
        const double after = now();
        step.seconds[i] += after - before;
        before = after;
      }
    }
  });
}

// Compiled in program_bf16.cpp and program_float.cpp, which a compiler can work on at the same time.
extern template void run<bf16>(const Step&, const Instruction*, int64_t);
extern template void run<float>(const Step&, const Instruction*, int64_t);

}  // namespace quire
