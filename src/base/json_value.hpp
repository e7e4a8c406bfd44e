#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace muonrt {

/// A parsed JSON value. An integer that does not fit into int64_t is a double.
struct JsonValue {
  using List = std::vector<JsonValue>;
  using Object = std::map<std::string, JsonValue, std::less<>>;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Object> value = nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  /// Returns null if the value has another type.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  /// Returns a member, or null if there is none or this is not an object.
  const JsonValue* find(std::string_view key) const;
};

/// Limits for untrusted text; a text that exceeds them is rejected.
struct JsonLimits {
  int depth = 16;            // nested objects and lists
  size_t values = 10000000;  // in total, including keys
  /// Maximum number of values in one part that parse_json_parts delivers.
  size_t part = std::numeric_limits<size_t>::max();
};

/// Parses untrusted JSON without recursion.
/// @param what  names the text in errors.
/// Errors: CORRUPT, unless the text is one value in UTF-8 without a byte order mark and NUL, no key
/// occurs twice in an object, and the limits are kept.
JsonValue parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

/// Receives an object part by part, so the whole object is never in memory.
struct JsonParts {
  /// Receives a member. A list whose items were delivered separately arrives as an empty list.
  std::function<void(const std::string& key, JsonValue value)> member;
  /// For members that are lists, by key: receives the items one by one.
  std::map<std::string, std::function<void(JsonValue item)>, std::less<>> items = {};
};

/// Parses one object part by part, with the rules of parse_json. Exceptions of `parts` propagate.
/// Errors: CORRUPT.
void parse_json_parts(std::string_view text, const std::string& what, const JsonLimits& limits,
                      const JsonParts& parts);

}  // namespace muonrt
