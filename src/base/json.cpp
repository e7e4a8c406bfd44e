// Only this file and json_builder.hpp use nlohmann-json: this file to format floating-point numbers
// and strings with special characters, and json_builder.hpp to parse.

#include "base/json.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/json_builder.hpp"
#include "base/json_value.hpp"
#include "base/text.hpp"

namespace muonrt {

namespace {

std::string dump(const nlohmann::json& scalar) {
  return scalar.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void JsonWriter::comma() {
  if (!first_) text_ += ", ";
  first_ = false;
}

void JsonWriter::open(char bracket) {
  comma();
  text_ += bracket;
  first_ = true;
}

void JsonWriter::close(char bracket) {
  text_ += bracket;
  first_ = false;
}

void JsonWriter::key(std::string_view name) {
  comma();
  text_ += '"';
  text_ += name;
  text_ += "\":";
  first_ = true;
}

void JsonWriter::value(std::string_view text) {
  comma();
  // Most strings need no escapes.
  const bool no_escapes = std::all_of(text.begin(), text.end(), [](char c) {
    return c >= 0x20 && c <= 0x7e && c != '"' && c != '\\';
  });
  if (!no_escapes) {
    text_ += dump(text);
    return;
  }
  text_ += '"';
  text_ += text;
  text_ += '"';
}

void JsonWriter::value(bool v) {
  comma();
  append(text_, v);
}

void JsonWriter::value(double v) {
  comma();
  text_ += dump(v);
}

void JsonWriter::integer(int64_t v) {
  comma();
  append(text_, v);
}

void JsonWriter::integer(uint64_t v) {
  comma();
  append(text_, v);
}

namespace {

struct Tree {
  using Value = JsonValue;
  template <class T>
  static Value of(T v) {
    return {std::move(v)};
  }
  static Value make_object() { return {JsonValue::Object()}; }
  static Value make_list() { return {JsonValue::List()}; }
  static Value number(uint64_t v) {
    return v > INT64_MAX ? of(static_cast<double>(v)) : of(static_cast<int64_t>(v));
  }
  static bool is_list(const Value& v) { return v.as<JsonValue::List>() != nullptr; }
  static bool contains(const Value& object, const std::string& key) { return object.find(key); }
  static Value& append(Value& list, Value v) {
    return std::get<JsonValue::List>(list.value).emplace_back(std::move(v));
  }
  static Value& insert(Value& object, std::string key, Value v) {
    return std::get<JsonValue::Object>(object.value)[std::move(key)] = std::move(v);
  }
  static std::string quoted(const std::string& key) { return in_quotes(key); }
};

/// Parses an object and delivers it part by part. The object keeps only the key of a delivered
/// part, so the parser still detects a second occurrence of the key.
class PartsBuilder : public JsonBuilder<Tree> {
 public:
  PartsBuilder(const JsonLimits& limits, const JsonParts& parts)
      : JsonBuilder(limits), parts_(parts) {}

 private:
  bool key(string_t& v) override {
    if (around().size() == 1) member_ = v;
    return JsonBuilder::key(v);
  }
  bool count() override {
    if (!around().empty() && Tree::is_list(*around()[0])) return fail("is not an object");
    if (++part_values_ > limits_.part)
      return fail(cat(in_quotes(member_), " has more than ", limits_.part, " values in one part"));
    return JsonBuilder::count();
  }
  void began() override {
    if (around().size() != 2 || !Tree::is_list(*around()[1])) return;
    const auto found = parts_.items.find(member_);
    if (found != parts_.items.end()) items_ = &found->second;
  }
  void ended(JsonValue& value) override {
    if (around().size() == 1) {
      items_ = nullptr;
      part_values_ = 0;
      parts_.member(member_, std::exchange(value, {}));
    } else if (around().size() == 2 && items_) {
      part_values_ = 0;
      (*items_)(std::move(value));
      std::get<JsonValue::List>(around()[1]->value).clear();
    }
  }

  const JsonParts& parts_;
  // Receives the items of the list that is currently open.
  const std::function<void(JsonValue)>* items_ = nullptr;
  std::string member_;      // the last key of the outer object
  size_t part_values_ = 0;  // number of values in the current part
};

JsonValue parse(JsonBuilder<Tree>& builder, std::string_view text, const std::string& what) {
  const std::string problem = builder.parse(text);
  MUONRT_REQUIRE(problem.empty(), Status::kCorrupt, what, ": ", problem);
  return builder.take();
}

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto* object = as<Object>();
  if (!object) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &found->second;
}

JsonValue parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  JsonBuilder<Tree> builder(limits);
  return parse(builder, text, what);
}

void parse_json_parts(std::string_view text, const std::string& what, const JsonLimits& limits,
                      const JsonParts& parts) {
  PartsBuilder builder(limits, parts);
  MUONRT_REQUIRE(parse(builder, text, what).as<JsonValue::Object>(), Status::kCorrupt, what,
                 ": is not an object");
}

}  // namespace muonrt
