#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <vector>

#include "optimizer/settings/fields.hpp"

namespace muonrt::tool {

/// A value of opt.json and its path. If the value is not allowed, the functions of this struct
/// throw std::runtime_error with the path, the value and the allowed values.
struct Value {
  const nlohmann::json& json;
  std::string path;

  [[noreturn]] void refuse(const std::string& problem) const;
  std::string shown() const;
  bool null() const { return json.is_null(); }

  Value at(const std::string& key) const { return {json.at(key), child(key)}; }
  Value at(size_t index) const {
    return {json.at(index), path + "[" + std::to_string(index) + "]"};
  }
  std::string child(const std::string& key) const { return path.empty() ? key : path + "." + key; }

  /// Returns a number in [low, high].
  /// @param or_zero  whether 0 is also allowed.
  double number(double low, double high, bool or_zero = false) const;
  /// Returns a number in [low, 1).
  /// @param in_f32  whether the number must also be below 1 after it is rounded to f32.
  double below_one(double low, bool in_f32) const;
  int64_t integer(int64_t low, int64_t high) const;
  /// Returns a number of bytes. The value may also be a text such as "256MiB".
  int64_t bytes() const;
  bool boolean() const;
  std::string text() const;
  std::string choice(const std::vector<const char*>& known) const;
  /// Returns the C value for the name.
  int32_t choice(std::span<const Word> known) const;
  void require_object() const;
  /// Throws unless the value is a list with at least `least` items.
  void require_list(size_t least = 0) const;
  std::vector<int64_t> integers(int64_t low, int64_t high) const;
  /// Returns the sizes of the dimensions. The value is a list, or a text such as "64x32".
  std::vector<int64_t> sizes(int64_t low, int64_t high) const;
  /// Returns a text. If the value is a list of texts, joins them with commas.
  std::string words() const;
};

/// Returns the sizes in a text such as "768x768x4". If the text has a different form or a size is
/// below 1, returns no sizes.
std::vector<int64_t> sizes_of(const std::string& shape);

/// A key of an object and the function that reads its value.
template <class T>
struct Key {
  const char* name;
  std::function<void(T&, const Value&)> read;
};

[[noreturn]] void refuse_key(const Value& object, const std::string& key,
                             const std::vector<std::string>& known);

/// Reads every key in an object with the function in the key's row. Rejects keys without a row.
template <class T>
void read_object(T& out, const Value& object, const std::vector<Key<T>>& keys) {
  object.require_object();
  for (const auto& [name, unused] : object.json.items()) {
    const Key<T>* found = nullptr;
    for (const Key<T>& key : keys) {
      if (name == key.name) found = &key;
    }
    if (!found) {
      std::vector<std::string> known;
      for (const Key<T>& key : keys) known.emplace_back(key.name);
      refuse_key(object, name, known);
    }
    found->read(out, object.at(name));
  }
}

constexpr double kHuge = 1e30;
constexpr int64_t kMaxSize = int64_t{1} << 62;

}  // namespace muonrt::tool
