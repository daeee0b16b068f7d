// Functions called from Python (`library.py` declares them). Plain C, so that neither Python nor torch is needed to
// compile them.
#include <sys/syscall.h>
#include <unistd.h>

#include "sampling/sample.hpp"
#include "sampling/logprobs.hpp"
#include "sampling/mask_logits.hpp"
#include "program/generate.hpp"
#include "program/program.hpp"
#include "quantized/pack_blocks.hpp"
#include "quantized/search.hpp"

using namespace quire;

#define EXPORTED extern "C" [[gnu::visibility("default")]]

// Requests what the instruction set needs from the system; returns 0 if it may be used.
EXPORTED int quire_prepare() {
#if defined(__AMX_TILE__)
  constexpr int ARCH_REQ_XCOMP_PERM = 0x1023, XTILE_DATA = 18;  // Linux, Documentation/arch/x86/xstate.rst
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILE_DATA) == 0 ? 0 : 1;
#else
  return 0;
#endif
}

EXPORTED void quire_run(const Step* step, const Instruction* program, int64_t count) {
  if (step->is_bf16)
    run<bf16>(*step, program, count);
  else
    run<float>(*step, program, count);
}

EXPORTED void quire_generate(const Step* step, const Instruction* program, int64_t count, const Generation* generation) {
  if (step->is_bf16)
    generate<bf16>(*step, program, count, *generation);
  else
    generate<float>(*step, program, count, *generation);
}

// Number of panels of a packed matrix.
EXPORTED int64_t quire_panels(int64_t outputs, int32_t halves) { return Packed{nullptr, outputs, 0, halves, nullptr}.panels(); }

// rows: the address of each row of the matrix, as for the next functions that have it.
EXPORTED void quire_pack(int32_t is_bf16, const void* const* rows, int64_t outputs, int64_t inputs, int32_t halves, void* units,
                int32_t threads) {
  run_parallel(threads, [&](Worker& worker) {
    if (is_bf16)
      pack(worker, reinterpret_cast<const bf16* const*>(rows), outputs, inputs, halves, static_cast<uint32_t*>(units));
    else
      pack(worker, reinterpret_cast<const float* const*>(rows), outputs, inputs, halves, static_cast<uint32_t*>(units));
  });
}

// Rows `ids` of a packed matrix, to out [count, inputs].
EXPORTED void quire_unpack(int32_t is_bf16, const Packed* packed, const int64_t* ids, int64_t count, void* out, int32_t threads) {
  run_parallel(threads, [&](Worker& worker) {
    worker.each(count, [&](int64_t i) {
      if (packed->book)
        unpack_compressed_row(*packed, ids[i], static_cast<bf16*>(out) + i * packed->inputs);
      else if (is_bf16)
        unpack_row(*packed, ids[i], static_cast<bf16*>(out) + i * packed->inputs);
      else
        unpack_row(*packed, ids[i], static_cast<float*>(out) + i * packed->inputs);
    });
  });
}

// The int8 counterparts of quire_pack and quire_unpack: scales is float [panels * 32].
EXPORTED void quire_pack_int8(int32_t is_bf16, const void* w, int64_t outputs, int64_t inputs, int32_t halves, void* units,
                     float* scales, int32_t threads) {
  run_parallel(threads, [&](Worker& worker) {
    if (is_bf16)
      pack_int8(worker, static_cast<const bf16*>(w), outputs, inputs, halves, static_cast<uint32_t*>(units), scales);
    else
      pack_int8(worker, static_cast<const float*>(w), outputs, inputs, halves, static_cast<uint32_t*>(units), scales);
  });
}

EXPORTED void quire_unpack_int8(int32_t is_bf16, const Packed* packed, const float* scales, const int64_t* ids, int64_t count,
                       void* out, int32_t threads) {
  run_parallel(threads, [&](Worker& worker) {
    worker.each(count, [&](int64_t i) {
      if (is_bf16)
        unpack_row_int8(*packed, scales, ids[i], static_cast<bf16*>(out) + i * packed->inputs);
      else
        unpack_row_int8(*packed, scales, ids[i], static_cast<float*>(out) + i * packed->inputs);
    });
  });
}

// The counterparts for matrices of few bits: q is complete, except for `bytes`; factors is float [panels * 32]. Returns
// the bits of `PackProblem`.
EXPORTED int32_t quire_pack_quantized(const QuantizedSource* from, const Packed* packed, Quantized* q, float* factors,
                             int32_t threads) {
  std::atomic<int32_t> problems{0};
  run_parallel(threads, [&](Worker& worker) { pack_quantized(worker, *from, *packed, *q, factors, problems); });
  return problems;
}

// The same from blocks of ggml's types.
EXPORTED int32_t quire_pack_blocks(const BlockRows* from, const Packed* packed, Quantized* q, float* factors, int32_t threads) {
  std::atomic<int32_t> problems{0};
  run_parallel(threads, [&](Worker& worker) { pack_blocks(worker, *from, *packed, *q, factors, problems); });
  return problems;
}

// Unpacks blocks of ggml's types in the calling thread; returns what `unpack_blocks` does.
EXPORTED int32_t quire_unpack_blocks(int32_t type, const BlockCodes* to) { return unpack_blocks(static_cast<BlockType>(type), *to); }

EXPORTED void quire_unpack_quantized(int32_t is_bf16, const Packed* packed, const Quantized* q, const int64_t* ids, int64_t count,
                            void* out, int32_t threads) {
  run_parallel(threads, [&](Worker& worker) {
    worker.each(count, [&](int64_t i) {
      if (is_bf16)
        unpack_row_quantized(*packed, *q, ids[i], static_cast<bf16*>(out) + i * packed->inputs);
      else
        unpack_row_quantized(*packed, *q, ids[i], static_cast<float*>(out) + i * packed->inputs);
    });
  });
}

// Searches for scales and codes of w [groups · size]; returns 1 if all weights are finite.
EXPORTED int32_t quire_search_scales(int32_t is_bf16, const void* w, const ScaleSearch* search, int32_t threads) {
  return is_bf16 ? search_scales(static_cast<const bf16*>(w), *search, threads)
                 : search_scales(static_cast<const float*>(w), *search, threads);
}

// `pack_lanes` in the calling thread: adapters are packed concurrently with steps.
EXPORTED void quire_pack_lanes(int32_t from_bf16, int32_t to_bf16, const void* w, int64_t rows, int64_t columns, int64_t first,
                      int64_t units, void* panels) {
  const auto pack = [&](auto* from, auto* to) { pack_lanes(from, rows, columns, first, units, to); };
  const auto *halves = static_cast<const bf16*>(w);
  const auto *floats = static_cast<const float*>(w);
  if (to_bf16)
    from_bf16 ? pack(halves, static_cast<bf16*>(panels)) : pack(floats, static_cast<bf16*>(panels));
  else
    from_bf16 ? pack(halves, static_cast<float*>(panels)) : pack(floats, static_cast<float*>(panels));
}

// These expose `count_upper_bytes`, `choose_upper_bytes` and `compress`.
EXPORTED void quire_count_upper_bytes(int32_t from_bf16, const void* values, int64_t count, int64_t* counts) {
  if (from_bf16)
    count_upper_bytes(static_cast<const bf16*>(values), count, counts);
  else
    count_upper_bytes(static_cast<const float*>(values), count, counts);
}

EXPORTED int64_t quire_choose_upper_bytes(const int64_t* counts, uint8_t* upper) { return choose_upper_bytes(counts, upper); }

EXPORTED void quire_compress(const void* elements, int64_t count, Codebook* book, void* to) {
  compress(static_cast<const bf16*>(elements), count, book->upper, book->rare, static_cast<uint8_t*>(to));
}

// Determines the code book for compressed panels with `sample_code_book`; exact: the rare values are counted.
EXPORTED void quire_plan_compression(const void* const* rows, int64_t outputs, int64_t inputs, int32_t halves, int32_t exact,
                            PanelCodebook* book, int32_t threads) {
  std::vector<int64_t> counts(MAX_THREADS * 256), most_rare(MAX_THREADS);
  const auto from = reinterpret_cast<const bf16* const*>(rows);
  run_parallel(threads, [&](Worker& worker) {
    sample_code_book(worker, from, outputs, inputs, *book, reinterpret_cast<int64_t(*)[256]>(counts.data()));
    if (exact) count_rare_values(worker, from, outputs, inputs, halves, *book, most_rare.data());
  });
}

// Returns whether the rare values had space.
EXPORTED int32_t quire_pack_compressed(const void* const* rows, const Packed* to, int32_t threads) {
  std::atomic<bool> fits{true};
  run_parallel(threads, [&](Worker& worker) {
    pack_compressed(worker, reinterpret_cast<const bf16* const*>(rows), *to, fits);
  });
  return fits;
}

// Begins an attempt of a group; returns its state, 0 if all ranks have begun.
EXPORTED int32_t quire_begin_attempt(Member* member, uint64_t attempt) {
  begin_attempt(*member, attempt);
  return member->state;
}

EXPORTED void quire_gather_columns(Member* member, const float* from, float* to, int64_t rows, const int64_t* widths,
                          int32_t threads) {
  run_parallel(threads, [&](Worker& worker) { gather_columns(worker, *member, from, to, rows, widths); });
}

// Number of bytes of the memory that a group shares.
EXPORTED int64_t quire_group_bytes(const Member* member) {
  return (1 + member->lanes * member->size) * static_cast<int64_t>(sizeof(SharedWord)) +
         2 * member->lanes * member->size * member->slot_bytes;
}

EXPORTED void quire_argmax(const Logits* logits, int64_t* out, int32_t threads) { argmax(*logits, out, threads); }

EXPORTED void quire_mask_logits(const Logits* logits, const BitMasks* masks, int32_t threads) {
  mask_logits(*logits, *masks, threads);
}

EXPORTED void quire_sample(const Logits* logits, const Settings* settings, int64_t* out, int32_t threads) {
  sample(*logits, *settings, out, threads);
}

EXPORTED void quire_logprobs(const Logits* logits, const int64_t* tokens, const Found* found, int32_t threads) {
  logprobs(*logits, tokens, *found, threads);
}
