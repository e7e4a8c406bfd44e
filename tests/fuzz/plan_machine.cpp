// Fuzzes profiles of machines: any bytes must give rates above 0 for products of every size, or an
// error.
#include <cmath>
#include <cstdlib>

#include "base/error.hpp"
#include "fuzz/target.hpp"
#include "plan/machine/profile.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  try {
    const muonrt::MachineProfile p =
        muonrt::parse_profile({reinterpret_cast<const char*>(data), size}, "profile");
    for (const int64_t n : {1, 100, 4096, 1 << 30})
      for (const bool symmetric : {false, true})
        for (const auto dtype : {muonrt::DType::kF32, muonrt::DType::kBF16})
          if (const double rate = p.product_rate(n, symmetric, dtype);
              !(rate > 0) || !std::isfinite(rate))
            std::abort();
    if (!(p.pass_bytes > 0 && p.node_bytes > 0 && p.network_bytes > 0 && p.node_ranks >= 1))
      std::abort();
  } catch (const muonrt::Error&) {
  }
  return 0;
}
