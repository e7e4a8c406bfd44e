#include "cuda/machine.hpp"

#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(bool naive, int index) {
  return muonrt::make_cuda_device(index, {.naive_products = naive});
}
std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric, int reserved_sms) {
  // An emulated device takes its time for the vendor's scratch; tests make hundreds.
  return muonrt::make_cuda_device(
      0, {.naive_products = is_emulated(), .symmetric = symmetric, .reserved_sms = reserved_sms});
}
std::unique_ptr<muonrt::Device> make_host(int threads) {
  return muonrt::host::make_host_device({.threads = threads, .portable_gemm = false});
}

}  // namespace cuda_test
