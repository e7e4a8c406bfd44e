#include "base/error.hpp"
#include "cuda/vendor_products.hpp"

namespace muonrt::cuda {

std::unique_ptr<VendorProducts> make_vendor_products(Device&) {
  throw Error(Status::kNotSupported,
              "the emulated GPU has no library for products; ask for naive ones");
}

}  // namespace muonrt::cuda
