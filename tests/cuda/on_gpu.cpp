#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <iostream>

#include "backend/cuda_device.hpp"
#include "cuda/machine.hpp"

namespace cuda_test {

bool is_emulated() { return false; }
int64_t slow_calls() { return 0; }

}  // namespace cuda_test

// CTest shows this exit status as a test that was skipped.
constexpr int kSkipped = 77;

int main(int argc, char** argv) {
  if (muonrt::cuda_device_count() == 0) {
    std::cout << "skipped: no CUDA device (CUDA is "
              << (muonrt::cuda_is_built() ? "built" : "not built") << ")\n";
    return kSkipped;
  }
  return Catch::Session().run(argc, argv);
}
