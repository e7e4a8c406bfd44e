#include "cuda/machine.hpp"

namespace cuda_test {

std::unique_ptr<muonrt::Device> make_device(muonrt::SymmetricProvider symmetric, int reserved_sms,
                                            const muonrt::Sm90Tuning& tuning) {
  // An emulated device needs long for the vendor's scratch, and tests make hundreds.
  return muonrt::make_cuda_device(0, {.naive_products = is_emulated() || without_vendor(),
                                      .symmetric = symmetric,
                                      .reserved_sms = reserved_sms,
                                      .sm90 = tuning});
}

}  // namespace cuda_test
