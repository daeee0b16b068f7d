// Programs whose buffers hold float32 numbers.
#include "program/program.hpp"

namespace quire {
template void run<float>(const Step&, const Instruction*, int64_t);
}  // namespace quire
