#include "models/model_file.hpp"

#include <filesystem>
#include <fstream>
#include <map>
#include <stdexcept>

#include "models/hf_config.hpp"
#include "opt_json/strict_json.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

namespace {

namespace fs = std::filesystem;

constexpr int64_t kMaxSize = int64_t{1} << 40;  // limit of a dimension
constexpr int64_t kMaxHeader = 100 << 20;       // in bytes; safetensors has the same limit

[[noreturn]] void refuse(const std::string& file, const std::string& problem) {
  throw std::runtime_error(file + ": " + problem);
}

/// Returns the header of a safetensors file. The data after the header may be missing.
nlohmann::json read_header(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) refuse(path, "cannot be read");
  unsigned char head[8] = {};
  in.read(reinterpret_cast<char*>(head), sizeof head);
  uint64_t size = 0;
  for (int i = 7; i >= 0; --i) size = size << 8 | head[i];
  if (!in || size < 2 || size > kMaxHeader)
    refuse(path,
           "is not a safetensors file, because its first 8 bytes are not the size of a header; "
           "pass a file that safetensors has written");
  std::string text(size, '\0');
  in.read(text.data(), static_cast<std::streamsize>(size));
  if (in.gcount() != static_cast<std::streamsize>(size))
    refuse(path, "ends after " + std::to_string(in.gcount()) + " bytes of its header of " +
                     std::to_string(size) + "; copy the file again");
  return parse_strict(text, path);
}

bool ends_with_any(const std::string& name, std::initializer_list<const char*> ends) {
  for (const char* end : ends)
    if (name.ends_with(end)) return true;
  return false;
}

/// Collects the tensors from one or more headers. Omits tensors that are not parameters in a
/// trainer.
class Headers {
 public:
  void add(const std::string& name, const Value& entry) {
    entry.require_object();
    for (const char* key : {"dtype", "shape"})
      if (!entry.json.contains(key)) entry.refuse(std::string("has no ") + key);
    const std::string dtype = entry.at("dtype").text();
    const bool scale =
        ends_with_any(name, {"_scale_inv", "weight_scale", "input_scale", "inv_freq"});
    const bool whole = dtype.starts_with('I') || dtype.starts_with('U') || dtype == "BOOL";
    if (scale || whole) {
      if (left_out_++ == 0) first_ = name + " (" + dtype + ")";
      return;
    }
    add_tensor(out_, {.name = name, .shape = entry.at("shape").integers(0, kMaxSize)});
  }

  ModelShapes take(const std::string& file) {
    if (out_.tensors.empty()) refuse(file, "has no tensors of floating-point numbers");
    if (left_out_ > 0)
      out_.notes.push_back(std::to_string(left_out_) +
                           " tensors are left out, because they are integers, scales of quantized "
                           "weights or frequencies; the first is " +
                           first_);
    stack_experts(out_);
    return std::move(out_);
  }

 private:
  ModelShapes out_;
  int64_t left_out_ = 0;
  std::string first_;
};

ModelShapes read_safetensors(const std::string& path) {
  const nlohmann::json header = read_header(path);
  Value{header, path}.require_object();
  Headers out;
  for (const auto& [name, entry] : header.items())
    if (name != "__metadata__") out.add(name, {entry, path + ": " + shown(name)});
  return out.take(path);
}

ModelShapes read_index(const nlohmann::json& index, const std::string& path) {
  const Value map{index.at("weight_map"), path + ": weight_map"};
  map.require_object();
  std::map<std::string, std::vector<std::string>> by_shard;
  for (const auto& [name, shard] : map.json.items()) by_shard[map.at(name).text()].push_back(name);
  int64_t unknown = 0;
  std::string missing;
  for (const auto& [shard, names] : by_shard) {
    if (fs::exists(fs::path(path).parent_path() / shard)) continue;
    if (missing.empty()) missing = shard;
    unknown += std::ssize(names);
  }
  if (unknown > 0)
    refuse(path, "the shapes of " + std::to_string(unknown) + " tensors are unknown, because " +
                     shown(missing) +
                     " is not in the same folder; add the files that it names "
                     "(their headers are enough), or pass config.json");
  Headers out;
  for (const auto& [shard, names] : by_shard) {
    const std::string file = (fs::path(path).parent_path() / shard).string();
    const nlohmann::json header = read_header(file);
    Value{header, file}.require_object();
    for (const std::string& name : names) {
      if (!header.contains(name))
        refuse(file, "has no tensor " + shown(name) + ", which " + path + " says");
      out.add(name, {header.at(name), file + ": " + shown(name)});
    }
  }
  return out.take(path);
}

ModelShapes read_shapes(const nlohmann::json& shapes, const std::string& path) {
  const std::vector<Key<ModelShape>> keys = {
      {"shape", [](ModelShape& t, const Value& v) { t.shape = v.sizes(0, kMaxSize); }},
      {"stack", [](ModelShape& t, const Value& v) { t.stack = v.boolean(); }},
      {"transposed", [](ModelShape& t, const Value& v) { t.transposed = v.boolean(); }},
      {"role",
       [](ModelShape& t, const Value& v) {
         t.role = v.choice(std::vector<const char*>{"muon", "adamw"});
       }},
  };
  ModelShapes out;
  for (const auto& [name, value] : shapes.items()) {
    const Value given{value, path + ": " + shown(name)};
    ModelShape tensor;
    tensor.name = name;
    if (value.is_array() || value.is_string()) {
      tensor.shape = given.sizes(0, kMaxSize);
    } else {
      read_object(tensor, given, keys);
      if (!value.contains("shape")) given.refuse("has no shape");
    }
    if (tensor.stack && tensor.shape.size() != 3)
      given.refuse("is a stack, but has " + std::to_string(tensor.shape.size()) +
                   " dimensions; use 3: experts, rows, columns");
    add_tensor(out, std::move(tensor));
  }
  if (out.tensors.empty()) refuse(path, "has no tensors; write {\"name\": [rows, columns], ...}");
  stack_experts(out);
  return out;
}

ModelShapes read_json(const std::string& text, const std::string& path) {
  const nlohmann::json json = parse_strict(text, path);
  Value{json, path}.require_object();
  if (json.contains("weight_map")) return read_index(json, path);
  for (const char* key : {"model_type", "architectures", "text_config"})
    if (json.contains(key)) return read_hf_config(json, path);
  return read_shapes(json, path);
}

}  // namespace

bool is_model_file(const std::string& text) {
  std::error_code error;
  return text.find('/') != std::string::npos || ends_with_any(text, {".json", ".safetensors"}) ||
         fs::exists(text, error);
}

ModelShapes read_model(const std::string& text) {
  for (const NamedModel& model : named_models())
    if (text == model.name) return read_json(model.json, text);
  std::error_code error;
  if (fs::is_directory(text, error)) {
    for (const char* name : {"config.json", "model.safetensors.index.json", "model.safetensors"}) {
      const fs::path path = fs::path(text) / name;
      if (fs::exists(path, error)) return read_model(path.string());
    }
    refuse(text, "has no config.json and no model.safetensors; pass a file");
  }
  if (text.ends_with(".safetensors")) return read_safetensors(text);
  return read_json(read_text(text), text);
}

}  // namespace muonrt::tool
