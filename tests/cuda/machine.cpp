#include "cuda/machine.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric, int reserved_sms,
                                            const muonrt::Sm90Tuning& tuning) {
  // Allocating the vendor's scratch takes long on an emulated device, and tests create hundreds.
  return muonrt::make_cuda_device(0, {.naive_products = is_emulated() || without_vendor(),
                                      .symmetric = symmetric,
                                      .reserved_sms = reserved_sms,
                                      .sm90 = tuning});
}

}  // namespace cuda_test
