#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace muonrt::tool {

/// One tensor of a safetensors file. `begin` and `end` count bytes from the end of the header.
struct TensorEntry {
  std::string name;
  std::string dtype;  // "F32"
  std::vector<int64_t> shape;
  int64_t begin = 0, end = 0;

  int64_t bytes() const { return end - begin; }
  int64_t elements() const;
};

/// Bytes of an element of a dtype as safetensors names it; 0: no such dtype.
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
constexpr int64_t kMostHeaderBytes = 100000000;

/// Reads a header (the JSON after the eight bytes of its length). Tensors must cover the data from
/// its first byte to its last with no gap and no overlap, each as long as dtype and shape say.
/// @param data_bytes  what follows the header in the file.
/// @param file        for messages.
/// Throws std::runtime_error that names file and tensor.
TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file);

/// A safetensors file open for reading; parts of it are read when asked for. Calls from several
/// threads are fine.
class TensorFile {
 public:
  /// Throws std::runtime_error that names the file.
  explicit TensorFile(std::string path);
  ~TensorFile();
  TensorFile(const TensorFile&) = delete;
  TensorFile& operator=(const TensorFile&) = delete;

  const std::string& path() const { return path_; }
  const TensorTable& table() const { return table_; }
  /// Throws where there is none.
  const TensorEntry& at(const std::string& name) const;
  /// Bytes [begin, begin + bytes) of the tensor.
  std::vector<unsigned char> read(const TensorEntry& entry, int64_t begin, int64_t bytes) const;

 private:
  std::string path_;
  int file_ = -1;
  int64_t data_at_ = 0;
  TensorTable table_;
};

}  // namespace muonrt::tool
