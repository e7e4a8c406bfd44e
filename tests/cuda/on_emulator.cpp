#include "control.hpp"
#include "cuda/machine.hpp"

namespace cuda_test {

bool is_emulated() { return true; }
int64_t slow_calls() { return emulator::slow_calls(); }

}  // namespace cuda_test
