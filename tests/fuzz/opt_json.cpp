// Fuzzes opt.json: parsing any bytes must return a configuration or an error.
#include <stdexcept>

#include "command/step/parts.hpp"
#include "fuzz/target.hpp"
#include "opt_json/config.hpp"
#include "opt_json/glob.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  try {
    const auto config =
        muonrt::tool::parse_config({reinterpret_cast<const char*>(data), size}, "opt.json");
    for (const auto& rule : config.rules) {
      muonrt::tool::glob_matches(rule.pattern, "layers.0.wq.weight");
      if (rule.config.parts.heads <= 1000) {
        muonrt::tool::parts_of(rule.config.parts, 12, 8, "parts");
      }
    }
    config.rule_of("layers.0.wq.weight", {12, 8});
  } catch (const std::runtime_error&) {
  }
  return 0;
}
