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
  int32_t file = 0;  // index of the file, if a model has several

  int64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

/// Returns the bits of an element of a safetensors dtype (4 and 6 are possible), or 0 if the dtype
/// is unknown.
int64_t element_bits(std::string_view dtype);
/// Returns the bytes of an element, or 0 if it does not have whole bytes.
int64_t element_bytes(std::string_view dtype);

/// "[4, 2]".
std::string shape_text(const std::vector<int64_t>& shape);

/// The contents of the header of a safetensors file.
struct TensorTable {
  std::vector<TensorEntry> entries;  // by offset, then by name
  std::map<std::string, std::string> metadata;

  /// Returns null if there is no such tensor.
  const TensorEntry* find(const std::string& name) const;
  void index();

 private:
  std::map<std::string, size_t> places_;
};

/// Largest header that is read, as in the reference implementation.
constexpr int64_t kMaxHeaderBytes = 100000000;

/// Returns the bytes of the header, which the first eight bytes of a file give.
/// Errors: CORRUPT, with the name of the file, if it has no such header.
int64_t header_bytes(const unsigned char* length, int64_t file_bytes, const std::string& file);

/// Reads a header (the JSON after the eight bytes of its length). Tensors must cover the data from
/// its first byte to its last with no gap and no overlap, each as long as dtype and shape say.
/// @param data_bytes  bytes after the header in the file.
/// @param file        name for error messages.
/// Errors: CORRUPT, with file and tensor.
TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file);

/// Returns the bytes before the data: the length, and the header, which is padded so that the data
/// begins at a multiple of eight bytes. parse_tensor_table reads it back unchanged.
/// @param entries  in the order of their data, end - begin bytes each. begin and end are set here.
/// Errors: INVALID_ARGUMENT, with file and tensor, if parse_tensor_table would reject the header.
std::string tensor_header(std::vector<TensorEntry>& entries,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& file);

}  // namespace muonrt
