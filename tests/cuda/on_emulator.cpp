#include "backend/cuda_device.hpp"
#include "control.hpp"
#include "cuda/machine.hpp"
#include "host/host_device.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(bool, int index) {
  return muonrt::make_cuda_device(index, {.naive_products = true});
}
std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric) {
  return muonrt::make_cuda_device(0, {.naive_products = true, .symmetric = symmetric});
}
bool is_emulated() { return true; }
int64_t slow_calls() { return emulator::slow_calls(); }
std::unique_ptr<muonrt::Device> make_host(int threads) {
  return muonrt::host::make_host_device({.threads = threads, .portable_gemm = false});
}

}  // namespace cuda_test
