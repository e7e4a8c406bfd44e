#include <vector>

#include "cuda/primary_context.hpp"
#include "machine.hpp"

namespace muonrt::cuda {

namespace {
thread_local std::vector<int> former;  // what a thread's stack of contexts says of devices
}

void push_context(int device) {
  const emulator::Lock lock;
  former.push_back(emulator::current_device);
  emulator::current_device = device;
  emulator::touch();
}

void pop_context() noexcept {
  emulator::current_device = former.back();
  former.pop_back();
}

}  // namespace muonrt::cuda
