// The rows of a step and their states.
#pragma once
#include "attention/attention.hpp"

namespace quire {

// One state tensor, `size` elements a slot, and the slot of each row.
template <class S>
struct RowStates {
  S* base;
  const int64_t* slots;
  int64_t size;

  S* of(int64_t row) const { return base + slots[row] * size; }
};

// Calls work(row, part) for every row that has tokens and each of `parts` parts of it.
template <class Work>
void each_row_part(Worker& worker, const StepRows& rows, int64_t parts, Work&& work) {
  worker.each(rows.count * parts, [&](int64_t i) {
    const int64_t row = i / parts;
    if (rows.query_starts[row + 1] > rows.query_starts[row]) work(row, i % parts);
  });
}

}  // namespace quire
