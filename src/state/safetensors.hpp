#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Headers of safetensors files: eight bytes of length, JSON, then data without gaps.

namespace muonrt {

/// One tensor of a safetensors file. `begin` and `end` count bytes from the end of the header.
struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  int32_t file = 0;  // of a model of several

  int64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

/// Bits of an element of a dtype as safetensors names it, 4 and 6 among them; 0: no such dtype.
int64_t element_bits(std::string_view dtype);
/// Bytes of one that has whole ones; else 0.
int64_t element_bytes(std::string_view dtype);

/// "[4, 2]".
std::string shape_text(const std::vector<int64_t>& shape);

/// What the header of a safetensors file says.
struct TensorTable {
  std::vector<TensorEntry> entries;  // by offset, then by name
  std::map<std::string, std::string> metadata;

  /// Null where there is none.
  const TensorEntry* find(const std::string& name) const;
  void index();

 private:
  std::map<std::string, size_t> places_;
};

/// Largest header that is read, as in the reference implementation.
constexpr int64_t kMaxHeaderBytes = 100000000;

/// Bytes of the header whose length the first eight bytes of a file give.
/// Errors: CORRUPT where the file has no such header, naming it.
int64_t header_bytes(const unsigned char* length, int64_t file_bytes, const std::string& file);

/// Reads a header (the JSON after the eight bytes of its length). Tensors must cover the data from
/// its first byte to its last with no gap and no overlap, each as long as dtype and shape say.
/// @param data_bytes  what follows the header in the file.
/// @param file        for messages.
/// Errors: CORRUPT, naming file and tensor.
TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file);

/// What stands in front of the data: the length, and the header, which ends at a multiple of eight
/// bytes. It reads back as what it was made from.
/// @param entries  in the order of their data, as long as end - begin says; begin and end are set.
/// Errors: INVALID_ARGUMENT for what could not be read back, naming file and tensor.
std::string tensor_header(std::vector<TensorEntry>& entries,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& file);

}  // namespace muonrt
