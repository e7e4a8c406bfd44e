// Headers of safetensors files: whatever the bytes, a table or an error.
#include "state/safetensors.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    // The first byte says how much data follows the header, so that some of it fits.
    const auto table = muonrt::parse_tensor_table(header, data[0], "file");
    int64_t bytes = 0;
    for (const auto& entry : table.entries) bytes += entry.bytes();
    // What is accepted covers the data.
    if (bytes != data[0]) __builtin_trap();
  } catch (const muonrt::Error&) {
  }
  return 0;
}
