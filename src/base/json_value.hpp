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

/// A parsed JSON value. An integer that does not fit into int64_t is stored as a double.
struct JsonValue {
  using List = std::vector<JsonValue>;
  using Object = std::map<std::string, JsonValue, std::less<>>;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Object> value = nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  /// Returns the value, or null if it has a different type.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  /// Returns a member. Returns null if there is no such member or this value is not an object.
  const JsonValue* find(std::string_view key) const;
};

/// Limits for untrusted text. A text that exceeds them is rejected.
struct JsonLimits {
  int depth = 16;            // levels of nested objects and lists
  size_t values = 10000000;  // total number of values; a key counts as a value
  /// The maximum number of values in one part that parse_json_parts() delivers.
  size_t part = std::numeric_limits<size_t>::max();
};

/// Parses untrusted JSON without recursion.
/// @param what  Name of the text in error messages.
/// Errors: CORRUPT if the text is not a single JSON value, is not UTF-8, contains a byte order mark
/// or NUL, repeats a key within an object, or exceeds a limit.
JsonValue parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

/// The functions that receive a JSON object part by part, so that the whole object is never in
/// memory.
struct JsonParts {
  /// Receives one member. For a list whose items were delivered separately, the value is an empty
  /// list.
  std::function<void(const std::string& key, JsonValue value)> member;
  /// For members that are lists: maps the key to a function that receives the items one by one.
  std::map<std::string, std::function<void(JsonValue item)>, std::less<>> items = {};
};

/// Parses one object part by part, with the rules of parse_json(). Exceptions that a function of
/// `parts` throws propagate to the caller. Errors: CORRUPT in the same cases as for parse_json().
void parse_json_parts(std::string_view text, const std::string& what, const JsonLimits& limits,
                      const JsonParts& parts);

}  // namespace muonrt
