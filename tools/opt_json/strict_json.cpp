#include "opt_json/strict_json.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "base/json_builder.hpp"

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

struct Tree {
  using Value = Json;
  template <class T>
  static Value of(T v) {
    return Value(std::move(v));
  }
  static Value make_object() { return Json::object(); }
  static Value make_list() { return Json::array(); }
  static Value number(uint64_t v) { return v; }
  static bool is_list(const Value& v) { return v.is_array(); }
  static bool contains(const Value& object, const std::string& key) { return object.contains(key); }
  static Value& append(Value& list, Value v) {
    list.push_back(std::move(v));
    return list.back();
  }
  static Value& insert(Value& object, std::string key, Value v) {
    return object[std::move(key)] = std::move(v);
  }
  static std::string quoted(const std::string& key) { return shown(key); }
};

}  // namespace

Json parse_strict(std::string_view text, const std::string& what) {
  JsonBuilder<Tree> builder(JsonLimits{});
  const std::string problem = builder.parse(text);
  if (!problem.empty()) throw std::runtime_error(what + ": " + problem);
  return builder.take();
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  // Do not insert the text of an empty file, because this would set the fail bit although the file
  // is readable.
  if (in && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || !text) throw std::runtime_error(path + ": cannot be read");
  return text.str();
}

std::string shown(std::string_view text) {
  constexpr size_t kMaxShown = 200;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
  }
  return out + (text.size() > kMaxShown ? "...'" : "'");
}

}  // namespace muonrt::tool
