#include "train/rates.hpp"

namespace muonrt::train {

Rates best_rates(const std::string& preset) {
  if (preset == "tiny") return {0.02, 0.02};
  return {0.01, 0.01};
}

}  // namespace muonrt::train
