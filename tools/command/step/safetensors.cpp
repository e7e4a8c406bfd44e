#include "command/step/safetensors.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

struct TypeSize {
  std::string_view name;
  int64_t bytes;
};
constexpr TypeSize kTypes[] = {
    {"F32", 4}, {"BF16", 2},    {"F16", 2},     {"F64", 8},     {"BOOL", 1}, {"U8", 1},
    {"I8", 1},  {"U16", 2},     {"I16", 2},     {"U32", 4},     {"I32", 4},  {"U64", 8},
    {"I64", 8}, {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}, {"C64", 8}};
constexpr size_t kMostDims = 64;

[[noreturn]] void refuse(const std::string& where, const std::string& problem) {
  throw std::runtime_error(where + ": " + problem);
}

int64_t whole_number(const Json& value, const std::string& where, const char* what) {
  if (!value.is_number_unsigned() || value.get<uint64_t>() > INT64_MAX) {
    refuse(where, std::string(what) + " is " + shown(value.dump()) +
                      " (a whole number from 0 to 2^63 - 1 belongs there)");
  }
  return value.get<int64_t>();
}

std::vector<int64_t> whole_numbers(const Json& value, const std::string& where, const char* what) {
  if (!value.is_array() || value.size() > kMostDims) {
    refuse(where, std::string(what) + " is no list of at most " + std::to_string(kMostDims) +
                      " whole numbers");
  }
  std::vector<int64_t> out;
  for (const Json& item : value) out.push_back(whole_number(item, where, what));
  return out;
}

/// Bytes of a tensor; refused where they do not fit into 63 bits.
int64_t bytes_of(const TensorEntry& e, const std::string& where) {
  int64_t out = element_bytes(e.dtype);
  for (const int64_t n : e.shape) {
    if (n == 0) return 0;
  }
  for (const int64_t n : e.shape) {
    if (__builtin_mul_overflow(out, n, &out)) refuse(where, "its shape overflows 63 bits");
  }
  return out;
}

TensorEntry read_entry(const std::string& name, const Json& value, const std::string& where) {
  if (!value.is_object()) refuse(where, "its entry is no object");
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      refuse(where, "unknown key " + shown(key) + " (dtype, shape and data_offsets belong there)");
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) refuse(where, std::string(key) + " is missing");
  }
  TensorEntry out;
  out.name = name;
  const Json& dtype = value["dtype"];
  if (!dtype.is_string()) refuse(where, "dtype is no text");
  out.dtype = dtype.get<std::string>();
  if (element_bytes(out.dtype) == 0) refuse(where, "dtype " + shown(out.dtype) + " is unknown");
  out.shape = whole_numbers(value["shape"], where, "shape");
  const auto offsets = whole_numbers(value["data_offsets"], where, "data_offsets");
  if (offsets.size() != 2) refuse(where, "data_offsets are no pair of begin and end");
  out.begin = offsets[0];
  out.end = offsets[1];
  if (out.begin > out.end) refuse(where, "data_offsets end before they begin");
  const int64_t bytes = bytes_of(out, where);
  if (out.bytes() != bytes) {
    refuse(where, "data_offsets span " + std::to_string(out.bytes()) +
                      " bytes, but dtype and shape make " + std::to_string(bytes));
  }
  return out;
}

void read_metadata(TensorTable& table, const Json& value, const std::string& file) {
  const std::string where = file + ": __metadata__";
  if (!value.is_object()) refuse(where, "it is no object");
  for (const auto& [key, text] : value.items()) {
    if (!text.is_string()) refuse(where, "the value of " + shown(key) + " is no text");
    table.metadata[key] = text.get<std::string>();
  }
}

void check_cover(const TensorTable& table, int64_t data_bytes, const std::string& file) {
  int64_t at = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& e : table.entries) {
    const std::string where = file + ": tensor " + shown(e.name);
    if (e.end > data_bytes) {
      refuse(where, "its data ends at byte " + std::to_string(e.end) + ", but the file holds " +
                        std::to_string(data_bytes) + " bytes of data (it is truncated)");
    }
    if (e.begin < at) {
      refuse(where, "its data overlaps that of tensor " + shown(before->name));
    }
    if (e.begin > at) {
      refuse(where, "no tensor covers the bytes " + std::to_string(at) + " to " +
                        std::to_string(e.begin) + " before its data");
    }
    at = e.end;
    before = &e;
  }
  if (at != data_bytes) {
    refuse(file, "no tensor covers the last " + std::to_string(data_bytes - at) + " bytes");
  }
}

}  // namespace

int64_t TensorEntry::elements() const { return bytes() / element_bytes(dtype); }

int64_t element_bytes(std::string_view dtype) {
  for (const TypeSize& type : kTypes) {
    if (type.name == dtype) return type.bytes;
  }
  return 0;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string out;
  for (const int64_t n : shape) out += (out.empty() ? "" : ", ") + std::to_string(n);
  return "[" + out + "]";
}

void TensorTable::index() {
  places_.clear();
  for (size_t i = 0; i < entries.size(); ++i) places_[entries[i].name] = i;
}

const TensorEntry* TensorTable::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries[found->second];
}

TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file) {
  constexpr JsonLimits kLimits{3, 20000000};
  const Json json = parse_strict(header, file + ": header", kLimits);
  if (!json.is_object()) refuse(file, "its header is no JSON object");
  TensorTable table;
  for (const auto& [name, value] : json.items()) {
    if (name == "__metadata__") {
      read_metadata(table, value, file);
    } else {
      table.entries.push_back(read_entry(name, value, file + ": tensor " + shown(name)));
    }
  }
  std::sort(table.entries.begin(), table.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_cover(table, data_bytes, file);
  table.index();
  return table;
}

TensorFile::TensorFile(std::string path) : path_(std::move(path)) {
  const auto system = [&](const char* what) {
    const std::string reason = std::strerror(errno);
    if (file_ >= 0) close(file_);
    refuse(path_, std::string(what) + ": " + reason);
  };
  // Without waiting for a writer, where it is a pipe.
  file_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file_ < 0) system("cannot be opened");
  struct stat info;
  if (fstat(file_, &info) != 0) system("cannot be read");
  try {
    if (!S_ISREG(info.st_mode)) refuse(path_, "is no regular file");
    const int64_t size = info.st_size;
    if (size < 8) refuse(path_, "is no safetensors file (shorter than 8 bytes)");
    TensorEntry span;
    span.end = size;
    const auto length = read(span, 0, 8);
    uint64_t header = 0;
    for (size_t i = 8; i-- > 0;) header = header << 8 | length[i];
    if (header > static_cast<uint64_t>(size - 8)) {
      refuse(path_, "its header claims " + std::to_string(header) + " bytes of a file of " +
                        std::to_string(size) + " (truncated, or no safetensors file)");
    }
    if (header > static_cast<uint64_t>(kMostHeaderBytes)) {
      refuse(path_, "its header has " + std::to_string(header) + " bytes (at most " +
                        std::to_string(kMostHeaderBytes) + ")");
    }
    const auto text = read(span, 8, static_cast<int64_t>(header));
    data_at_ = 8 + static_cast<int64_t>(header);
    table_ = parse_tensor_table({reinterpret_cast<const char*>(text.data()), text.size()},
                                size - data_at_, path_);
  } catch (...) {
    close(file_);
    throw;
  }
}

TensorFile::~TensorFile() { close(file_); }

const TensorEntry& TensorFile::at(const std::string& name) const {
  const TensorEntry* found = table_.find(name);
  if (!found) refuse(path_, "there is no tensor " + shown(name));
  return *found;
}

std::vector<unsigned char> TensorFile::read(const TensorEntry& entry, int64_t begin,
                                            int64_t bytes) const {
  std::vector<unsigned char> out(static_cast<size_t>(bytes));
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(file_, out.data() + done, static_cast<size_t>(bytes - done),
                              data_at_ + entry.begin + begin + done);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) {
      refuse(path_, "tensor " + shown(entry.name) + " cannot be read: " +
                        (got < 0 ? std::strerror(errno) : "the file ended (it was changed)"));
    }
    done += got;
  }
  return out;
}

}  // namespace muonrt::tool
