// A program: the operations of a step, or of a single call, as a list that all threads go through together.
//
// The structs are shared with Python (`layout.py` declares the same fields in the same order).
#pragma once
#include <chrono>

#include "attention.hpp"
#include "low_rank.hpp"
#include "pages.hpp"
#include "product.hpp"
#include "product_int8.hpp"
#include "product_split.hpp"
#include "row_attention.hpp"
#include "rowwise.hpp"
#include "sampling.hpp"

namespace quire {

enum class Op : int32_t { rms_norm, add_rms_norm, layer_norm, product, rotary_write, attention, gated_act, act, add, scale, product_int8, select, low_rank, argmax, row_attention, rotary, product_split };

// Part of a buffer: token t, part p at offset + t · stride + p · width (elements).
struct View {
  int32_t buffer, parts;
  int64_t offset, stride, width;
};

struct Instruction {
  Op op;
  Act act;
  View in[3];
  View out;
  const void *weight, *bias;
  Packed packed;
  int64_t window;
  float factor, softcap;  // eps, or the scale
  int32_t layer, angles;
  int32_t wide;         // weight (of norms) or output (of products) is float32
  int32_t interleaved;  // rotary
  int32_t gated;        // product: what becomes of its sums, a Finish
  int32_t few;          // computed for the selected tokens only, which `select` has gathered
  int32_t of_sources;   // attention: to the tokens' sources
};

struct Step {
  int32_t is_bf16, threads;
  int64_t tokens;
  void* const* buffers;
  const int64_t* slots;
  StepRows rows;
  void* const *k_pools, *const *v_pools;
  int64_t page_size;
  const float* const* cos;
  const float* const* sin;
  const int64_t* pairs;  // of each table of cosines and sines
  const int64_t* const* angle_rows;  // which row of the table is a token's; null: a row for each token
  const int64_t* selected;  // tokens, num_selected of them
  int64_t num_selected;
  double* seconds;  // of each instruction, added up; or null
  int32_t kv_bytes;  // whether pools hold bytes
  const StepSegments* const* segments;  // of each lane of adapters; null where none is at work
  StepRows sources;  // one of each token, if a program reads any
};

constexpr int64_t FEWEST_BESIDE = 24;  // tokens of a product beside which other memory is asked for

template <class T>
struct Machine {
  const Step& step;
  Worker& worker;
  int64_t tokens;
  Soon& soon;

  Rows<T> rows(const View& v) const {
    return {static_cast<T*>(step.buffers[v.buffer]) + v.offset, v.stride, v.parts, v.width};
  }
  Pool pool(void* const* pools, const Instruction& i, const View& kv) const {
    return {pools[i.layer], step.page_size, kv.parts, kv.width, step.kv_bytes != 0};
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
    const Target to{y, i.out.stride, i.bias, static_cast<Finish>(i.gated), i.act, i.wide};
    if (i.op == Op::product_int8)  // weight: the scales; in[1]: memory for x as bytes
      return multiply_int8<T>(worker, x.base, x.stride, tokens, i.packed, static_cast<const float*>(i.weight),
                              rows(i.in[1]).base, to, soon);
#if defined(__AMX_TILE__) && defined(__AMX_BF16__)
    if constexpr (sizeof(T) == 4)
      if (i.op == Op::product_split)
        return multiply_split(worker, x.base, x.stride, tokens, x.width * x.parts, i.packed, to);
#endif
    multiply<T>(worker, x.base, x.stride, tokens, i.packed, to, soon);
  }

  Angles angles(const Instruction& i) const {
    const bool turns = i.angles >= 0;
    return {turns ? step.cos[i.angles] : nullptr, turns ? step.sin[i.angles] : nullptr,
            turns && step.angle_rows ? step.angle_rows[i.angles] : nullptr, turns ? step.pairs[i.angles] : 0,
            i.interleaved != 0};
  }

  void rotary(const Instruction& i) const {
    rotary_write<T>(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.in[2]), angles(i),
                    pool(step.k_pools, i, i.in[1]), pool(step.v_pools, i, i.in[2]), step.slots);
  }

  // in[1] describes keys and values: parts and width only
  void attention(const Instruction& i) const {
    const AttentionArgs args{pool(step.k_pools, i, i.in[1]), pool(step.v_pools, i, i.in[1]), i.in[0].parts, i.factor,
                             i.softcap, i.window};
    attend<T>(worker, args, i.of_sources ? step.sources : step.rows, rows(i.in[0]), rows(i.out));
  }

  void row_attention(const Instruction& i) const {
    const RowAttentionArgs args{i.in[0].parts, i.in[1].parts, i.in[0].width, i.factor, i.window};
    attend_rows<T>(worker, args, step.rows, rows(i.in[0]), rows(i.in[1]), rows(i.in[2]), rows(i.out));
  }

  template <class Y>
  void change(const Instruction& i) const {
    const Rows<Y> y{static_cast<Y*>(step.buffers[i.out.buffer]) + i.out.offset, i.out.stride, i.out.parts, i.out.width};
    if (const StepSegments* segments = step.segments[i.layer])
      low_rank(worker, *static_cast<const Seats*>(i.weight), *segments, rows(i.in[0]), y);
  }

  // What comes after a product, instructions from `next` to `end`: adapters change it, of each lane that is at work. With
  // fewer tokens memory has nothing left to give beside the product.
  void look_beyond(const Instruction* next, const Instruction* end) const {
    soon.clear();
    if (tokens < FEWEST_BESIDE) return;
    for (; next < end && next->op == Op::low_rank; next++)
      if (const StepSegments* segments = step.segments[next->layer])
        announce_shares(worker, *static_cast<const Seats*>(next->weight), *segments, soon);
  }

  // in[0]: float32; in[1]: memory for `argmax`; out: an int64 for each token
  void choose(const Instruction& i) const {
    const Logits logits{static_cast<const float*>(step.buffers[i.in[0].buffer]), tokens, i.in[0].width, i.in[0].stride};
    argmax(worker, logits, static_cast<float*>(step.buffers[i.in[1].buffer]), static_cast<int64_t*>(step.buffers[i.out.buffer]));
  }

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
        return product(i);
      case Op::rotary_write:
        return rotary(i);
      case Op::rotary:
        return turn_heads<T>(worker, tokens, rows(i.in[0]), rows(i.in[1]), angles(i));
      case Op::attention:
        return attention(i);
      case Op::row_attention:
        return row_attention(i);
      case Op::gated_act:
        return gated_act(worker, tokens, rows(i.in[0]), i.act, rows(i.out));
      case Op::act:
        return activation(worker, tokens, rows(i.in[0]), i.act, rows(i.out));
      case Op::add:
        return add(worker, tokens, rows(i.in[0]), rows(i.in[1]), rows(i.out));
      case Op::select:
        return gather(worker, tokens, step.selected, rows(i.in[0]), rows(i.out));
      case Op::low_rank:  // weight: the seats; layer: the lane; out: y, which is changed
        return i.wide ? change<float>(i) : change<T>(i);
      case Op::argmax:
        return choose(i);
      case Op::scale:
        return scale(worker, tokens, rows(i.in[0]), i.factor, rows(i.out));
    }
  }
};

inline double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int64_t FEW_TOKENS = 32;  // with more, products take longer than reading their weights

inline bool multiplies(Op op) { return op == Op::product || op == Op::product_int8; }

// The weights that a thread will begin its next product with: asked for while it waits for others, so that memory has
// something to do between products. They must fit in the second-level cache beside what is being worked on.
class Ahead {
  static constexpr int64_t MOST_BYTES = 512 << 10, BYTES_AT_ONCE = 512;

 public:
  template <class T>
  void aim(const Instruction& product, const Worker& worker) {
    if (product_ == &product) return;
    product_ = &product;
    const Packed& w = product.packed;
    const int64_t bytes = w.panel_bytes(padded(w.inputs, INPUT_STEP) / (product.op == Op::product ? PER_UNIT<T> : 4));
    at_ = reinterpret_cast<const char*>(w.units) + w.panels() * worker.id / worker.size * bytes;
    const char* all = reinterpret_cast<const char*>(w.units) + w.panels() * (worker.id + 1) / worker.size * bytes;
    end_ = std::min(all, at_ + MOST_BYTES);
  }
  bool ask() {
    if (at_ >= end_) return false;
    for (int64_t i = 0; i < BYTES_AT_ONCE; i += 64) _mm_prefetch(at_ + i, _MM_HINT_T1);
    at_ += BYTES_AT_ONCE;
    return true;
  }

 private:
  const Instruction* product_ = nullptr;
  const char *at_ = nullptr, *end_ = nullptr;
};

template <class T>
void run(const Step& step, const Instruction* program, int64_t count) {
  together(step.threads, [&](Worker& worker) {
    double before = step.seconds ? now() : 0;
    Ahead ahead;
    Soon soon;
    for (int64_t i = 0, next = 0; i < count; i++) {
      const int64_t tokens = program[i].few ? step.num_selected : step.tokens;
      const Machine<T> machine{step, worker, tokens, soon};
      if (multiplies(program[i].op)) machine.look_beyond(program + i + 1, program + count);
      machine.run(program[i]);
      while (next < count && (next <= i || !multiplies(program[next].op))) next++;
      if (next < count && tokens <= FEW_TOKENS) ahead.aim<T>(program[next], worker);
      worker.barrier([&] { return ahead.ask(); });
      if (step.seconds && worker.id == 0) {
        const double after = now();
        step.seconds[i] += after - before;
        before = after;
      }
    }
  });
}

}  // namespace quire
