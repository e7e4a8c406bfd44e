#include "support/machine.hpp"

#include <cstdlib>

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"
#include "support/wrapped_device.hpp"

namespace machines {

using namespace muonrt;

std::unique_ptr<Device> make_host(int threads, bool portable_gemm) {
  return host::make_host_device({.threads = threads, .portable_gemm = portable_gemm});
}

std::unique_ptr<Device> make_reference() {
  return wrapped::with<reference_ops::ReferenceOps>(make_host());
}

std::unique_ptr<Device> make_device(bool naive, int index) {
  return make_cuda_device(index, {.naive_products = naive || without_vendor(),
                                  .symmetric = is_left_out("sm90") ? SymmetricProvider::kVendor
                                                                   : SymmetricProvider::kDefault});
}

bool without_vendor() { return std::getenv("MUONRT_TEST_NAIVE") != nullptr; }

bool is_left_out(const char* kernel) {
  const char* const named = std::getenv("MUONRT_TEST_LEAVE_OUT");
  return named && std::strstr(named, kernel);
}

}  // namespace machines
