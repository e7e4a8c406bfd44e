#include "cuda/machine.hpp"

#include <cstdlib>
#include <cstring>

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"

namespace cuda_test {

namespace {

/// Under compute-sanitizer the vendor's library takes longer to load than a small case to run.
bool without_vendor() { return std::getenv("MUONRT_TEST_NAIVE") != nullptr; }
/// A kernel that is known to hang.
bool left_out(const char* kernel) {
  const char* const named = std::getenv("MUONRT_TEST_LEAVE_OUT");
  return named && std::strstr(named, kernel);
}

}  // namespace

std::unique_ptr<muonrt::Device> make_device(bool naive, int index) {
  const bool own = !left_out("sm90");  // which is the default where there is any
  return muonrt::make_cuda_device(index, {.naive_products = naive || without_vendor(),
                                          .symmetric = own ? muonrt::SymmetricProvider::kDefault
                                                           : muonrt::SymmetricProvider::kVendor});
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
