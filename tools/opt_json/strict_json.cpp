#include "opt_json/strict_json.hpp"

#include <fstream>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace muonrt::tool {

namespace {

using Json = nlohmann::json;

/// Builds the value, and stops at the first thing that is too deep, too much, or there twice.
class Builder : public nlohmann::json_sax<Json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t&) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary value"); }
  bool start_object(std::size_t) override { return open(Json::object()); }
  bool start_array(std::size_t) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    if (open_.back()->contains(value)) return fail("the key " + shown(value) + " occurs twice");
    key_ = std::move(value);
    return count();
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& e) override {
    std::string reason = e.what();
    // The library's text begins with its own name and number in brackets.
    if (const auto end = reason.find("] "); end != std::string::npos) reason.erase(0, end + 2);
    if (reason.size() > 300) reason = reason.substr(0, 300) + "...";
    // It quotes what it last read, which may be no text at all.
    for (char& c : reason) {
      if (c < 0x20 || c > 0x7e) c = '?';
    }
    return fail("no JSON at byte " + std::to_string(position) + ": " + reason);
  }

  Json take() { return std::move(root_); }
  const std::string& problem() const { return problem_; }

 private:
  bool fail(std::string problem) {
    if (problem_.empty()) problem_ = std::move(problem);
    return false;
  }
  bool count() {
    return ++values_ <= limits_.values ||
           fail("more than " + std::to_string(limits_.values) + " values");
  }
  Json* place(Json value) {
    if (open_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *open_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    return &(parent[key_] = std::move(value));
  }
  bool put(Json value) {
    place(std::move(value));
    return count();
  }
  bool open(Json value) {
    if (static_cast<int>(open_.size()) >= limits_.depth) {
      return fail("nested deeper than " + std::to_string(limits_.depth) + " levels");
    }
    open_.push_back(place(std::move(value)));
    return count();
  }
  bool close() {
    open_.pop_back();
    return true;
  }

  JsonLimits limits_;
  Json root_;
  // A parent is not added to while a child is open, so that the pointers stay valid.
  std::vector<Json*> open_;
  std::string key_, problem_;
  size_t values_ = 0;
};

}  // namespace

Json parse_strict(std::string_view text, const std::string& what, const JsonLimits& limits) {
  Builder builder(limits);
  bool good = false;
  try {
    good = Json::sax_parse(text.begin(), text.end(), &builder);
  } catch (const Json::exception& e) {
    throw std::runtime_error(what + ": " + e.what());
  }
  if (!good) throw std::runtime_error(what + ": " + builder.problem());
  return builder.take();
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  // An empty file can be read, which inserting its text would deny.
  if (in && in.peek() != std::ifstream::traits_type::eof()) text << in.rdbuf();
  if (!in.is_open() || in.bad() || !text) throw std::runtime_error(path + ": cannot be read");
  return text.str();
}

std::string shown(std::string_view text) {
  constexpr size_t kMost = 200;
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out = "'";
  for (const char c : text.substr(0, kMost)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte != 0x7f) {
      out += c;
    } else {
      out += std::string("\\x") + kDigits[byte >> 4] + kDigits[byte & 15];
    }
  }
  return out + (text.size() > kMost ? "...'" : "'");
}

}  // namespace muonrt::tool
