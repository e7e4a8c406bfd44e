#include "state/safetensors.hpp"

#include <algorithm>
#include <tuple>

#include "base/error.hpp"
#include "base/json.hpp"
#include "base/json_value.hpp"

namespace muonrt {

namespace {

struct TypeSize {
  std::string_view name;
  int64_t bits;
};
constexpr TypeSize kTypes[] = {
    {"F32", 32},    {"BF16", 16}, {"F16", 16},        {"F64", 64},        {"BOOL", 8},
    {"U8", 8},      {"I8", 8},    {"U16", 16},        {"I16", 16},        {"U32", 32},
    {"I32", 32},    {"U64", 64},  {"I64", 64},        {"F8_E4M3", 8},     {"F8_E5M2", 8},
    {"F8_E8M0", 8}, {"C64", 64},  {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"F6_E2M3", 6},
    {"F6_E3M2", 6}, {"F4", 4}};
constexpr size_t kMaxDims = 64;
constexpr const char* kMetadata = "__metadata__";

[[noreturn]] void reject(const std::string& where, const std::string& problem) {
  throw Error(Status::kCorrupt, cat(where, ": ", problem));
}

/// @param where  Returns the position for an error message. It is called only if there is an error,
///     so the text is not created otherwise.
template <class Where>
std::vector<int64_t> whole_numbers(const JsonValue& value, const Where& where, const char* what) {
  const auto* list = value.as<JsonValue::List>();
  if (!list || list->size() > kMaxDims)
    reject(where(), cat(what, " is not a list of at most ", kMaxDims, " integers"));
  std::vector<int64_t> out;
  for (const JsonValue& item : *list) {
    const int64_t* number = item.as<int64_t>();
    if (!number || *number < 0)
      reject(where(),
             cat("element ", out.size(), " of ", what, " is not an integer from 0 to 2^63 - 1"));
    out.push_back(*number);
  }
  return out;
}

template <class Where>
int64_t elements_of(const std::vector<int64_t>& shape, const Where& where) {
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return 0;
  int64_t out = 1;
  for (const int64_t n : shape)
    if (__builtin_mul_overflow(out, n, &out)) reject(where(), "its shape overflows 63 bits");
  return out;
}

template <class Where>
int64_t bytes_of(const TensorEntry& e, const Where& where) {
  const int64_t elements = elements_of(e.shape, where), bits = element_bits(e.dtype);
  const int64_t rest = elements % 8 * bits;
  int64_t out = 0;
  if (__builtin_mul_overflow(elements / 8, bits, &out))
    reject(where(), "its shape overflows 63 bits");
  if (rest % 8 != 0)
    reject(where(), cat(elements, " elements of ", e.dtype, " are not a whole number of bytes"));
  if (__builtin_add_overflow(out, rest / 8, &out)) reject(where(), "its shape overflows 63 bits");
  return out;
}

template <class Where>
TensorEntry read_entry(const std::string& name, const JsonValue& value, const Where& where) {
  const auto* object = value.as<JsonValue::Object>();
  if (!object) reject(where(), "its entry is not an object");
  if (name.find('\0') != name.npos) reject(where(), "its name contains NUL");
  for (const auto& [key, unused] : *object) {
    if (key != "dtype" && key != "shape" && key != "data_offsets")
      reject(where(),
             cat("the key ", in_quotes(key), " is unknown; use dtype, shape and data_offsets"));
  }
  for (const char* key : {"dtype", "shape", "data_offsets"})
    if (!value.find(key)) reject(where(), cat(key, " is missing"));
  TensorEntry out;
  out.name = name;
  const auto* dtype = value.find("dtype")->as<std::string>();
  if (!dtype) reject(where(), "dtype is not a string");
  out.dtype = *dtype;
  if (element_bits(out.dtype) == 0)
    reject(where(), cat("dtype ", in_quotes(*dtype), " is unknown"));
  out.shape = whole_numbers(*value.find("shape"), where, "shape");
  const auto offsets = whole_numbers(*value.find("data_offsets"), where, "data_offsets");
  if (offsets.size() != 2) reject(where(), "data_offsets is not a pair of begin and end");
  out.begin = offsets[0];
  out.end = offsets[1];
  if (out.begin > out.end) reject(where(), "data_offsets end before they begin");
  const int64_t bytes = bytes_of(out, where);
  if (out.bytes() != bytes)
    reject(where(),
           cat("data_offsets span ", out.bytes(), " bytes, but dtype and shape make ", bytes));
  return out;
}

void read_metadata(TensorTable& table, const JsonValue& value, const std::string& file) {
  if (value.is_null()) return;
  const std::string where = cat(file, ": ", kMetadata);
  const auto* object = value.as<JsonValue::Object>();
  if (!object) reject(where, "the value is not an object");
  for (const auto& [key, item] : *object) {
    const auto* text = item.as<std::string>();
    if (!text) reject(where, cat("the value of ", in_quotes(key), " is not a string"));
    table.metadata[key] = *text;
  }
}

void check_cover(const TensorTable& table, int64_t data_bytes, const std::string& file) {
  int64_t at = 0;
  const TensorEntry* before = nullptr;
  for (const TensorEntry& e : table.entries) {
    const auto where = [&] { return cat(file, ": tensor ", in_quotes(e.name)); };
    if (e.end > data_bytes)
      reject(where(), cat("its data ends at byte ", e.end, ", but the file is truncated to ",
                          data_bytes, " bytes of data"));
    if (e.begin < at)
      reject(where(), cat("its data overlaps that of tensor ", in_quotes(before->name)));
    if (e.begin > at)
      reject(where(), cat("no tensor covers the bytes ", at, " to ", e.begin, " before its data"));
    at = e.end;
    before = &e;
  }
  if (at != data_bytes) reject(file, cat("no tensor covers the last ", data_bytes - at, " bytes"));
}

/// Returns the text as a JSON string.
std::string json_text(std::string_view text) {
  JsonWriter json;
  json.value(text);
  return json.take();
}

std::string entry_text(const TensorEntry& e) {
  std::string out = json_text(e.name) + ":{\"dtype\":" + json_text(e.dtype) + ",\"shape\":[";
  for (size_t i = 0; i < e.shape.size(); ++i) out += cat(i ? "," : "", e.shape[i]);
  return out + cat("],\"data_offsets\":[", e.begin, ",", e.end, "]}");
}

void check_reads_back(const std::string& header, const std::vector<TensorEntry>& entries,
                      const std::map<std::string, std::string>& metadata, const std::string& file) {
  const int64_t end = entries.empty() ? 0 : entries.back().end;
  try {
    const TensorTable table = parse_tensor_table(std::string_view(header).substr(8), end, file);
    for (const TensorEntry& e : entries) {
      const TensorEntry* found = table.find(e.name);
      if (!found || found->begin != e.begin || found->end != e.end)
        reject(cat(file, ": tensor ", in_quotes(e.name)), "its name occurs twice or is not UTF-8");
    }
    if (table.metadata != metadata) reject(file, "the metadata is not UTF-8");
  } catch (const Error& e) {
    throw Error(Status::kInvalidArgument, cat(e.message(), ", so the file would be unreadable"));
  }
  const auto bytes = static_cast<int64_t>(header.size()) - 8;
  MUONRT_REQUIRE(bytes <= kMaxHeaderBytes, kInvalidArg, file, ": its header would have ", bytes,
                 " bytes, but at most ", kMaxHeaderBytes, " are allowed; write fewer tensors");
}

}  // namespace

int64_t TensorEntry::elements() const {
  int64_t out = bytes() == 0 ? 0 : 1;
  for (const int64_t n : shape) out = out == 0 ? 0 : out * n;
  return out;
}

int64_t element_bits(std::string_view dtype) {
  for (const TypeSize& type : kTypes)
    if (type.name == dtype) return type.bits;
  return 0;
}

int64_t element_bytes(std::string_view dtype) {
  const int64_t bits = element_bits(dtype);
  return bits % 8 == 0 ? bits / 8 : 0;
}

std::string shape_text(const std::vector<int64_t>& shape) { return cat(shape); }

void TensorTable::index() {
  places_.clear();
  for (size_t i = 0; i < entries.size(); ++i) places_[entries[i].name] = i;
}

const TensorEntry* TensorTable::find(const std::string& name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : &entries[found->second];
}

int64_t header_bytes(const unsigned char* length, int64_t file_bytes, const std::string& file) {
  if (file_bytes < 8)
    reject(file, "the file has fewer than 8 bytes, so it is not a safetensors file");
  uint64_t out = 0;
  for (size_t i = 8; i-- > 0;) out = out << 8 | length[i];
  if (out > static_cast<uint64_t>(file_bytes - 8))
    reject(file, cat("the header should have ", out, " bytes, but the file only has ", file_bytes,
                     "; it is truncated or not a safetensors file"));
  if (out > static_cast<uint64_t>(kMaxHeaderBytes))
    reject(file,
           cat("the header has ", out, " bytes, but at most ", kMaxHeaderBytes, " are allowed"));
  return static_cast<int64_t>(out);
}

TensorTable parse_tensor_table(std::string_view header, int64_t data_bytes,
                               const std::string& file) {
  // Parses one tensor at a time, because a JsonValue needs many times the memory of its text.
  constexpr JsonLimits kLimits{3, 20000000, 1 << 22};
  TensorTable table;
  parse_json_parts(header, file + ": header", kLimits,
                   {.member = [&](const std::string& name, JsonValue value) {
                     const auto where = [&] { return cat(file, ": tensor ", in_quotes(name)); };
                     if (name == kMetadata) {
                       read_metadata(table, value, file);
                     } else {
                       table.entries.push_back(read_entry(name, value, where));
                     }
                   }});
  if (header[0] != '{')
    reject(file, "the header is not a JSON object that begins with its first byte");
  std::sort(table.entries.begin(), table.entries.end(),
            [](const TensorEntry& a, const TensorEntry& b) {
              return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
            });
  check_cover(table, data_bytes, file);
  table.index();
  return table;
}

std::string tensor_header(std::vector<TensorEntry>& entries,
                          const std::map<std::string, std::string>& metadata,
                          const std::string& file) {
  std::string out(8, '\0');
  out += '{';
  const auto comma = [&] { out += out.back() == '{' ? "" : ","; };
  if (!metadata.empty()) {
    out += cat("\"", kMetadata, "\":{");
    for (const auto& [key, text] : metadata) {
      comma();
      out += json_text(key) + ":" + json_text(text);
    }
    out += '}';
  }
  int64_t at = 0;
  for (TensorEntry& e : entries) {
    const int64_t bytes = e.bytes();
    e.begin = at;
    e.end = at += bytes;
    comma();
    out += entry_text(e);
  }
  out += '}';
  while (out.size() % 8 != 0) out += ' ';
  for (size_t i = 0; i < 8; ++i)
    out[i] = static_cast<char>(uint64_t{out.size() - 8} >> (8 * i) & 0xff);
  check_reads_back(out, entries, metadata, file);
  return out;
}

}  // namespace muonrt
