#include "backend/cuda_device.hpp"
#include "host/host_device.hpp"
#include "muonrt/bench_device.hpp"

namespace muonrt::tool {

std::vector<Provider> providers(const DeviceArguments& where) {
  const int index = where.index, threads = where.threads;
  if (where.device == "cuda") {
    // Able to record; what is not recorded is enqueued as by any device.
    const auto settings = [reserved = where.reserved_sms](bool naive, SymmetricProvider symmetric) {
      return CudaSettings{naive, symmetric, /*graphs=*/true, reserved};
    };
    const auto with = [=](SymmetricProvider symmetric) {
      return [=] { return make_cuda_device(index, settings(false, symmetric)); };
    };
    return {{"default", with(SymmetricProvider::kDefault), false},
            {"cublaslt", with(SymmetricProvider::kVendor), false},
            {"sm80", with(SymmetricProvider::kSm80), false},
            {"sm90", with(SymmetricProvider::kSm90), false},
            {"naive",
             [=] { return make_cuda_device(index, settings(true, SymmetricProvider::kDefault)); },
             true}};
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
