#include "command/bench/fastest_products.hpp"

namespace muonrt::tool {

std::unique_ptr<cuda::VendorProducts> make_fastest_products(Device&, int) {
  throw Error(Status::kNotSupported, "this build has no CUDA backend");
}

}  // namespace muonrt::tool
