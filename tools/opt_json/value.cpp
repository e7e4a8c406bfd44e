#include "opt_json/value.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <sstream>
#include <stdexcept>

#include "base/size_text.hpp"
#include "opt_json/strict_json.hpp"

namespace muonrt::tool {

namespace {

std::string digits(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

template <class List>
std::string joined(const List& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + std::string(word);
  return out;
}

}  // namespace

void Value::refuse(const std::string& problem) const {
  throw std::runtime_error((path.empty() ? "" : path + ": ") + problem);
}

std::string Value::shown() const {
  const std::string text = json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() > 100 ? text.substr(0, 100) + "..." : text;
}

double Value::number(double low, double high, bool or_zero) const {
  const double value = json.is_number() ? json.get<double>() : NAN;
  if (!(value >= low && value <= high) && !(or_zero && value == 0)) {
    refuse("must be a number from " + digits(low) + " to " + digits(high) +
           (or_zero ? ", or 0" : "") + ", but is " + shown());
  }
  return value;
}

double Value::below_one(double low, bool in_f32) const {
  const double value = json.is_number() ? json.get<double>() : NAN;
  const bool below = value < 1 && !(in_f32 && static_cast<float>(value) >= 1.0f);
  if (!(value >= low && below)) {
    refuse("must be a number from " + digits(low) + " to below 1" +
           (in_f32 ? ", also after rounding to f32" : "") + ", but is " + shown());
  }
  return value;
}

int64_t Value::integer(int64_t low, int64_t high) const {
  const bool fits =
      json.is_number_unsigned() ? json.get<uint64_t>() <= INT64_MAX : json.is_number_integer();
  if (!fits || json.get<int64_t>() < low || json.get<int64_t>() > high) {
    refuse("must be a whole number from " + std::to_string(low) + " to " + std::to_string(high) +
           ", but is " + shown());
  }
  return json.get<int64_t>();
}

int64_t Value::bytes() const {
  if (!json.is_string()) return integer(0, kMaxSize);
  const auto bytes = parse_bytes(json.get<std::string>());
  if (!bytes || *bytes > kMaxSize)
    refuse("must be a number of bytes, such as 268435456 or \"256MiB\", but is " + shown());
  return *bytes;
}

bool Value::boolean() const {
  if (!json.is_boolean()) refuse("must be true or false, but is " + shown());
  return json.get<bool>();
}

std::string Value::text() const {
  if (!json.is_string()) refuse("must be a text, but is " + shown());
  const std::string out = json.get<std::string>();
  if (out.empty()) refuse("must be a text, but is empty");
  return out;
}

std::string Value::choice(const std::vector<const char*>& known) const {
  if (json.is_string()) {
    for (const char* word : known) {
      if (json.get<std::string>() == word) return word;
    }
  }
  refuse("unknown value " + shown() + " (known: " + joined(known) + ")");
}

int32_t Value::choice(std::span<const Word> known) const {
  std::vector<const char*> texts;
  for (const Word& word : known) texts.push_back(word.text);
  const std::string text = choice(texts);
  for (const Word& word : known) {
    if (text == word.text) return word.value;
  }
  refuse("internal: a word without a value");
}

void Value::require_object() const {
  if (!json.is_object()) refuse("must be an object {...}, but is " + shown());
}

void Value::require_list(size_t least) const {
  if (!json.is_array()) refuse("must be a list [...], but is " + shown());
  if (json.size() < least)
    refuse("must have at least " + std::to_string(least) + " items, but has " +
           std::to_string(json.size()));
}

std::vector<int64_t> Value::integers(int64_t low, int64_t high) const {
  require_list();
  std::vector<int64_t> out;
  for (size_t i = 0; i < json.size(); ++i) out.push_back(at(i).integer(low, high));
  return out;
}

std::vector<int64_t> Value::sizes(int64_t low, int64_t high) const {
  if (!json.is_string()) return integers(low, high);
  const std::vector<int64_t> out = sizes_of(json.get<std::string>());
  const bool fit = std::all_of(out.begin(), out.end(),
                               [&](int64_t size) { return size >= low && size <= high; });
  if (out.empty() || !fit)
    refuse("must be sizes from " + std::to_string(low) + " to " + std::to_string(high) +
           ", such as [2, 4] or \"2x4\", but is " + shown());
  return out;
}

std::string Value::words() const {
  if (json.is_string()) return text();
  if (!json.is_array()) refuse("must be a text or a list of texts, but is " + shown());
  require_list(1);
  std::string out;
  for (size_t i = 0; i < json.size(); ++i) out += (i > 0 ? "," : "") + at(i).text();
  return out;
}

std::vector<int64_t> sizes_of(const std::string& shape) {
  std::vector<int64_t> out;
  const char* at = shape.data();
  const char* end = at + shape.size();
  for (;;) {
    int64_t n = 0;
    const auto [next, error] = std::from_chars(at, end, n);
    if (error != std::errc() || n < 1 || (next != end && *next != 'x' && *next != 'X')) return {};
    out.push_back(n);
    if (next == end) return out;
    at = next + 1;
  }
}

void refuse_key(const Value& object, const std::string& key,
                const std::vector<std::string>& known) {
  // Muon and AdamW have different epsilons, so the short name would be ambiguous.
  if (key == "eps" && std::find(known.begin(), known.end(), "adamw_eps") != known.end())
    object.refuse(
        "unknown key 'eps'; use normalize_eps for Muon's normalization, adamw_eps for AdamW");
  object.refuse("unknown key " + shown(key) + " (known: " + joined(known) + ")");
}

}  // namespace muonrt::tool
