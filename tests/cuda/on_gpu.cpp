#define CATCH_CONFIG_RUNNER
#include <catch2/catch.hpp>
#include <iostream>

#include "backend/cuda_device.hpp"
#include "cuda/machine.hpp"
#include "host/host_device.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(bool naive, int index) {
  return muonrt::make_cuda_device(index, {.naive_products = naive});
}
std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric) {
  return muonrt::make_cuda_device(0, {.symmetric = symmetric});
}
bool is_emulated() { return false; }
int64_t slow_calls() { return 0; }
std::unique_ptr<muonrt::Device> make_host(int threads) {
  return muonrt::host::make_host_device({.threads = threads, .portable_gemm = false});
}

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
