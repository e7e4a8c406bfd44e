#include <stdexcept>

#include "control.hpp"
#include "cuda/machine.hpp"

namespace cuda_test {

bool is_emulated() { return true; }
int64_t slow_calls() { return emulator::slow_calls(); }
void leave_out(const char* why) { throw std::logic_error(why); }  // it has all that cases ask for

}  // namespace cuda_test
