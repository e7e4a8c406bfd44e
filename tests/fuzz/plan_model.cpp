// Fuzzes config.json files of Hugging Face: any bytes must give tensors of valid sizes, or an
// error.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "fuzz/target.hpp"
#include "models/hf_config.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  const auto json = nlohmann::json::parse(data, data + size, nullptr, false);
  if (json.is_discarded()) return 0;
  try {
    const auto model = muonrt::tool::read_hf_config(json, "config.json");
    if (model.tensors.size() > static_cast<size_t>(muonrt::tool::kMaxTensors)) std::abort();
    for (const auto& tensor : model.tensors) {
      if (tensor.name.empty() || tensor.shape.empty()) std::abort();
      for (const int64_t n : tensor.shape)
        if (n < 1) std::abort();
    }
  } catch (const std::runtime_error&) {
  }
  return 0;
}
