// The one file that knows nlohmann-json: it writes what has rules of its own, strings and floats.

#include "base/json.hpp"

#include <nlohmann/json.hpp>

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

}  // namespace muonrt
