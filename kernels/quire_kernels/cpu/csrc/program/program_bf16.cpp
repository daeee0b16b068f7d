// Programs whose buffers hold bfloat16 numbers.
#include "program/program.hpp"

namespace quire {
template void run<bf16>(const Step&, const Instruction*, int64_t);
}  // namespace quire
