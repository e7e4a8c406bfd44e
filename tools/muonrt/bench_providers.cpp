#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"
#include "muonrt/bench_device.hpp"

namespace muonrt::tool {

std::vector<Provider> providers(const std::string& device, int index, int threads) {
  if (device == "cuda") {
    const auto with = [=](SymmetricProvider symmetric) {
      return [=] { return make_cuda_device(index, false, symmetric); };
    };
    return {{"default", with(SymmetricProvider::kDefault)},
            {"cublaslt", with(SymmetricProvider::kVendor)},
            {"sm80", with(SymmetricProvider::kSm80)},
            {"sm90", with(SymmetricProvider::kSm90)},
            {"naive", [=] { return make_cuda_device(index, true); }}};
  }
  return {{"onednn",
           [=] {
             return host::make_host_device({threads, false});
           }},
          {"portable", [=] {
             return host::make_host_device({threads, true});
           }}};
}

}  // namespace muonrt::tool
