#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"
#include "muonrt/bench_device.hpp"

namespace muonrt::tool {

std::vector<Provider> providers(const std::string& device, int index, int threads) {
  if (device == "cuda") {
    const auto with = [=](SymmetricProvider symmetric) {
      return [=] { return make_cuda_device(index, false, symmetric); };
    };
    return {{"default", with(SymmetricProvider::kDefault), false},
            {"cublaslt", with(SymmetricProvider::kVendor), false},
            {"sm80", with(SymmetricProvider::kSm80), false},
            {"sm90", with(SymmetricProvider::kSm90), false},
            {"naive", [=] { return make_cuda_device(index, true); }, true}};
  }
  return {{"onednn",
           [=] {
             return host::make_host_device({threads, false});
           },
           false},
          {"portable",
           [=] {
             return host::make_host_device({threads, true});
           },
           true}};
}

}  // namespace muonrt::tool
