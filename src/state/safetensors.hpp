#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

// Headers of safetensors files. A safetensors file consists of the length of the header in eight
// bytes, the header in JSON, and the data without gaps.

namespace muonrt {

/// A tensor in a safetensors file. `begin` and `end` are offsets in bytes from the end of the
/// header.
struct TensorEntry {
  std::string name;
  std::string dtype;  // for example "F32"
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;
  int32_t file = 0;  // index of the file if the model has multiple files

  int64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

/// Returns the size in bits of an element of a safetensors dtype, or 0 for an unknown dtype. Some
/// dtypes have 4 or 6 bits.
int64_t element_bits(std::string_view dtype);
/// Returns the size of an element in bytes, or 0 if the size is not a whole number of bytes.
int64_t element_bytes(std::string_view dtype);

/// Returns the shape as text, for example "[4, 2]".
std::string shape_text(const std::vector<int64_t>& shape);

/// The content of the header of a safetensors file.
struct TensorTable {
  std::vector<TensorEntry> entries;  // ordered by offset, then by name
  std::map<std::string, std::string> metadata;

  /// Returns null if there is no tensor with this name.
  const TensorEntry* find(const std::string& name) const;
  void index();

 private:
  std::map<std::string, size_t> places_;
};

/// The largest header that is accepted. The reference implementation has the same limit.
constexpr int64_t kMaxHeaderBytes = 100000000;

/// Returns the size of the header in bytes. The first eight bytes of a file contain this size.
/// Errors: CORRUPT, with the name of the file, if this size is invalid.
int64_t header_bytes(const unsigned char* length, int64_t file_bytes, const std::string& file);

/// Parses a header, which is the JSON text after the eight bytes of its length. The tensors must
/// cover all data without gaps and overlaps, and each tensor must have the size that follows from
/// its dtype and shape.
/// @param data_bytes  Number of bytes after the header in the file.
/// @param file        Name of the file for error messages.
/// Errors: CORRUPT, with the file and the tensor.
TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file);

/// Returns the bytes that come before the data: the length of the header, and the header. The
/// header is padded, so the data begins at a multiple of eight bytes. parse_tensor_table() returns
/// the same entries for this header.
/// @param entries  In the order of their data. On entry, the size of an entry is end - begin. The
///     function sets begin and end to the final offsets.
/// Errors: INVALID_ARGUMENT, with the file and the tensor, if parse_tensor_table() would reject the
/// header.
std::string tensor_header(std::vector<TensorEntry>& entries,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& file);

}  // namespace muonrt
