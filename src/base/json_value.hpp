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

/// A JSON value that was read. A whole number that int64_t does not hold is a double.
struct JsonValue {
  using List = std::vector<JsonValue>;
  using Object = std::map<std::string, JsonValue, std::less<>>;

  std::variant<std::nullptr_t, bool, int64_t, double, std::string, List, Object> value = nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
  /// Null where it is of another kind.
  template <class T>
  const T* as() const {
    return std::get_if<T>(&value);
  }
  /// A member; null where there is none, or this is no object.
  const JsonValue* find(std::string_view key) const;
};

/// How much of a text from outside is read before it is refused.
struct JsonLimits {
  int depth = 16;            // of nested objects and lists
  size_t values = 10000000;  // in all, keys included
  /// What parse_json_parts gives out at once.
  size_t part = std::numeric_limits<size_t>::max();
};

/// Reads JSON that nobody vouches for: UTF-8 without a byte order mark, one value, no NUL, no key
/// twice in an object, no deeper and no larger than the limits; without recursion.
/// @param what  names the text in errors.
/// Errors: CORRUPT.
JsonValue parse_json(std::string_view text, const std::string& what, const JsonLimits& limits = {});

/// What takes an object part by part, so that it never lies in memory as a whole.
struct JsonParts {
  /// A member. Of a list whose items were given out, what is left of it: an empty one.
  std::function<void(const std::string& key, JsonValue value)> member;
  /// By the key of a member that is a list: takes its items, one after the other.
  std::map<std::string, std::function<void(JsonValue item)>, std::less<>> items = {};
};

/// Reads one object like that. What `parts` throw goes to the caller. Errors: CORRUPT.
void parse_json_parts(std::string_view text, const std::string& what, const JsonLimits& limits,
                      const JsonParts& parts);

}  // namespace muonrt
