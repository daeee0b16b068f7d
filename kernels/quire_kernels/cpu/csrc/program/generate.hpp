// Greedy generation: runs a program again and again, each time on the tokens that the last run predicts.
#pragma once
#include <cstring>

#include "program/program.hpp"

namespace quire {

struct Generation {
  const Packed* packed;  // the embedding table; null: it is `table`
  const void* table;     // [vocabulary, width]
  int64_t width;
  float scale;  // of the embeddings
  const Step* search;
  const Instruction* search_program;  // finds the most likely token of each row of the program's result
  int64_t search_count;
  const int64_t* found;  // by `search_program`, one for each row
  int64_t length;        // runs of the program
  const int64_t* slots;  // [length, rows]: the slot mapping of each run
  int64_t* tokens;       // [length + 1, rows]: the first are given, those after them are predicted
  int64_t* positions;    // of each row, and its context: counted up after each run
  int32_t* contexts;
};

template <class T>
void embed(const Generation& g, int64_t token, T* row) {
  if (!g.packed) {
    std::memcpy(row, static_cast<const T*>(g.table) + token * g.width, g.width * sizeof(T));
  } else if constexpr (sizeof(T) == 2) {
    g.packed->book ? unpack_compressed_row(*g.packed, token, row) : unpack_row(*g.packed, token, row);
  } else {
    unpack_row(*g.packed, token, row);
  }
  if (g.scale != 1) lanes(g.width, [&](int64_t i, int n) { set(row + i, get(row + i, n) * set1(g.scale), n); });
}

// The program's rows have one token each; buffer 0 gets their embeddings. A token below 0, which is none, counts as 0.
template <class T>
void generate(const Step& step, const Instruction* program, int64_t count, const Generation& g) {
  const int64_t rows = step.tokens;
  for (int64_t i = 0; i < g.length; i++) {
    const int64_t* tokens = g.tokens + i * rows;
    for (int64_t r = 0; r < rows; r++) embed(g, std::max<int64_t>(tokens[r], 0), static_cast<T*>(step.buffers[0]) + r * g.width);
    Step now = step;
    now.slot_mapping = g.slots + i * rows;
    run<T>(now, program, count);
    run<T>(*g.search, g.search_program, g.search_count);
    std::memcpy(g.tokens + (i + 1) * rows, g.found, rows * sizeof(int64_t));
    for (int64_t r = 0; r < rows; r++) g.positions[r]++, g.contexts[r]++;
  }
}

}  // namespace quire
