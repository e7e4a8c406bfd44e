// The one file that knows nlohmann-json: it writes what has rules of its own, strings and floats,
// and reads.

#include "base/json.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
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
  text_ += dump(text);
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

/// Builds the value, and stops at the first thing that is too deep, too much, or there twice.
class Builder : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool v) override { return put(v); }
  bool number_integer(number_integer_t v) override { return put(v); }
  bool number_unsigned(number_unsigned_t v) override {
    return v > INT64_MAX ? put(static_cast<double>(v)) : put(static_cast<int64_t>(v));
  }
  bool number_float(number_float_t v, const string_t&) override { return put(v); }
  bool string(string_t& v) override { return put(std::move(v)); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(JsonValue::Object()); }
  bool start_array(std::size_t) override { return open(JsonValue::List()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& v) override {
    if (std::get<JsonValue::Object>(open_.back()->value).contains(v))
      return fail(cat("the key ", in_quotes(v), " occurs twice"));
    key_ = std::move(v);
    return count();
  }
  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception& e) override {
    std::string reason = e.what();
    // The library's text begins with its own name and number in brackets.
    if (const auto end = reason.find("] "); end != std::string::npos) reason.erase(0, end + 2);
    if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
    // It quotes what it last read, which may be no text at all.
    for (char& c : reason)
      if (c < 0x20 || c > 0x7e) c = '?';
    return fail(cat("no JSON at byte ", position, ": ", reason));
  }

  JsonValue take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  bool count() {
    return ++values_ <= limits_.values || fail(cat("more than ", limits_.values, " values"));
  }
  template <class T>
  JsonValue* place(T v) {
    JsonValue* at = &root_;
    if (!open_.empty()) {
      auto& parent = open_.back()->value;
      if (auto* list = std::get_if<JsonValue::List>(&parent)) {
        at = &list->emplace_back();
      } else {
        at = &std::get<JsonValue::Object>(parent)[std::move(key_)];
      }
    }
    at->value = std::move(v);
    return at;
  }
  template <class T>
  bool put(T v) {
    place(std::move(v));
    return count();
  }
  template <class T>
  bool open(T v) {
    if (std::ssize(open_) >= limits_.depth)
      return fail(cat("nested deeper than ", limits_.depth, " levels"));
    open_.push_back(place(std::move(v)));
    return count();
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  JsonValue root_;
  // A parent is not added to while a child is open, so that the pointers stay valid.
  std::vector<JsonValue*> open_;
  std::string key_, problem_;
  size_t values_ = 0;
};

}  // namespace

const JsonValue* JsonValue::find(std::string_view key) const {
  const auto* object = as<Object>();
  if (!object) return nullptr;
  const auto found = object->find(key);
  return found == object->end() ? nullptr : &found->second;
}

JsonValue parse_json(std::string_view text, const std::string& what, const JsonLimits& limits) {
  // The library takes a mark for nothing, and a NUL for the end.
  MUONRT_REQUIRE(!text.starts_with("\xef\xbb\xbf"), Status::kCorrupt, what,
                 ": no JSON: it begins with a byte order mark; remove it");
  const size_t nul = text.find('\0');
  MUONRT_REQUIRE(nul == text.npos, Status::kCorrupt, what, ": no JSON at byte ", nul,
                 ": it is NUL; remove it");
  Builder builder(limits);
  bool good = false;
  try {
    good = nlohmann::json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const nlohmann::json::exception& e) {
    throw Error(Status::kCorrupt, cat(what, ": ", e.what()));
  }
  MUONRT_REQUIRE(good, Status::kCorrupt, what, ": ", builder.problem());
  return builder.take();
}

}  // namespace muonrt
