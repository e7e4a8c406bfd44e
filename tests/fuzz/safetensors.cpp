// Fuzzes headers of safetensors files: parsing any bytes must return a table or an error.
#include "state/safetensors.hpp"

#include "base/error.hpp"
#include "fuzz/target.hpp"

int LLVMFuzzerTestOneInput(const unsigned char* data, size_t size) {
  if (size < 1) return 0;
  const std::string_view header(reinterpret_cast<const char*>(data) + 1, size - 1);
  try {
    // The first byte is the number of data bytes after the header, so that some headers match.
    const auto table = muonrt::parse_tensor_table(header, data[0], "file");
    int64_t bytes = 0;
    for (const auto& entry : table.entries) bytes += entry.bytes();
    // The tensors of an accepted header must cover all data bytes.
    if (bytes != data[0]) __builtin_trap();
  } catch (const muonrt::Error&) {
  }
  return 0;
}
