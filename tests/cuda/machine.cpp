#include "cuda/machine.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric, int reserved_sms,
                                            const muonrt::Sm90Tuning& tuning) {
  // An emulated device uses naive products, because allocating the scratch memory of the vendor's
  // library is slow, and tests create hundreds of devices.
  return muonrt::make_cuda_device(0, {.naive_products = is_emulated() || without_vendor(),
                                      .symmetric = symmetric,
                                      .reserved_sms = reserved_sms,
                                      .sm90 = tuning});
}

}  // namespace cuda_test
