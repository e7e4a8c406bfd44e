#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/shapes.hpp"
#include "opt_json/value.hpp"

namespace muonrt::tool {

/// An optional field of a config.json, and its default.
struct FieldDefault {
  const char* field;
  int64_t value;
};

constexpr int64_t kMaxWidth = int64_t{1} << 31;
constexpr int64_t kMaxCount = 1 << 20;  // limit for layers, heads and experts

/// Reads the fields of one config.json and collects the tensors.
class ConfigBuilder {
 public:
  ConfigBuilder(const nlohmann::json& config, std::string file)
      : config_{config, ""}, file_(std::move(file)) {}

  bool has(const char* field) const {
    return config_.json.contains(field) && !config_.json.at(field).is_null();
  }
  Value at(const char* field) const { return {config_.json.at(field), file_ + ": " + field}; }
  /// Returns a positive number.
  /// @param absent  the default, or 0 if the field is required.
  int64_t width(const char* field, int64_t absent = 0) const {
    return number(field, 1, kMaxWidth, absent);
  }
  int64_t count(const char* field, int64_t absent = 0) const {
    return number(field, 1, kMaxCount, absent);
  }
  /// Returns a number >= 0. If the field is missing, returns 0.
  int64_t count_or_zero(const char* field) const {
    return has(field) ? at(field).integer(0, kMaxCount) : 0;
  }
  bool flag(const char* field, bool absent) const {
    return has(field) ? at(field).boolean() : absent;
  }
  [[noreturn]] void refuse(const std::string& problem) const {
    throw std::runtime_error(file_ + ": " + problem);
  }

  void add(const std::string& name, std::vector<int64_t> shape) {
    add_tensor(out, {.name = name, .shape = std::move(shape)});
  }
  void transposed(const std::string& name, std::vector<int64_t> shape) {
    add_tensor(out, {.name = name, .shape = shape, .transposed = true, .stack = shape.size() == 3});
  }
  void stack(const std::string& name, std::vector<int64_t> shape) {
    add_tensor(out, {.name = name, .shape = std::move(shape), .stack = true});
  }
  void linear(const std::string& name, int64_t rows, int64_t cols, bool bias = false) {
    add(name + ".weight", {rows, cols});
    if (bias) add(name + ".bias", {rows});
  }

  ModelShapes out;
  std::vector<FieldDefault> defaults;

 private:
  int64_t number(const char* field, int64_t low, int64_t high, int64_t absent) const {
    if (has(field)) return at(field).integer(low, high);
    for (const FieldDefault& d : defaults)
      if (std::string_view(d.field) == field) absent = d.value;
    if (absent > 0) return absent;
    refuse(std::string(field) + " is missing; add it to the file");
  }

  Value config_;
  std::string file_;
};

/// Adds an MLP with a gate. It consists of three matrices, or of two if gate and up form one
/// matrix.
inline void add_mlp(ConfigBuilder& b, const std::string& at, int64_t d, int64_t ffn,
                    bool fused = false) {
  const bool bias = b.flag("mlp_bias", false);
  if (fused) {
    b.linear(at + "gate_up_proj", 2 * ffn, d, bias);
  } else {
    b.linear(at + "gate_proj", ffn, d, bias);
    b.linear(at + "up_proj", ffn, d, bias);
  }
  b.linear(at + "down_proj", d, ffn, bias);
}

/// Adds the experts of a layer as three stacks.
inline void add_stacks(ConfigBuilder& b, const std::string& at, int64_t experts, int64_t d,
                       int64_t ffn) {
  b.stack(at + "gate_proj.weight", {experts, ffn, d});
  b.stack(at + "up_proj.weight", {experts, ffn, d});
  b.stack(at + "down_proj.weight", {experts, d, ffn});
}

/// Adds all tensors of a DeepSeek-V4 model.
void add_deepseek_v4(ConfigBuilder& b);

}  // namespace muonrt::tool
