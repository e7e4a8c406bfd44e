#include "cuda/machine.hpp"

#include <cstdlib>

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"

namespace cuda_test {

namespace {

/// Under compute-sanitizer the vendor's library takes longer to load than a small case to run.
bool without_vendor() { return std::getenv("MUONRT_TEST_NAIVE") != nullptr; }

}  // namespace

std::unique_ptr<muonrt::Device> make_device(bool naive, int index) {
  return muonrt::make_cuda_device(index, {.naive_products = naive || without_vendor()});
}
std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric, int reserved_sms,
                                            const muonrt::Sm90Tuning& tuning) {
  // An emulated device takes its time for the vendor's scratch; tests make hundreds.
  return muonrt::make_cuda_device(0, {.naive_products = is_emulated() || without_vendor(),
                                      .symmetric = symmetric,
                                      .reserved_sms = reserved_sms,
                                      .sm90 = tuning});
}
std::unique_ptr<muonrt::Device> make_host(int threads) {
  return muonrt::host::make_host_device({.threads = threads, .portable_gemm = false});
}

}  // namespace cuda_test
