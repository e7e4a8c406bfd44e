#include "base/json.hpp"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "base/error.hpp"
#include "base/json_value.hpp"

using muonrt::JsonWriter;

namespace {

template <class T>
std::string written(const T& value) {
  JsonWriter json;
  json.value(value);
  return json.take();
}

}  // namespace

TEST_CASE("json: parse_json_parts delivers no part of a list", "[unit][base]") {
  bool given = false;
  const muonrt::JsonParts parts{[&](const std::string&, muonrt::JsonValue) { given = true; }};
  std::string words;
  try {
    muonrt::parse_json_parts("[1, {\"a\": 2}]", "a text", {}, parts);
  } catch (const muonrt::Error& error) {
    words = error.message();
  }
  CHECK(words == "a text: is not an object");
  CHECK_FALSE(given);
}

TEST_CASE("json: brackets are closed and values separated by commas", "[unit][base]") {
  JsonWriter json;
  json.object([&] {
    json.field("none", std::vector<int>{});
    json.key("rows");
    json.list([&] {
      json.object([] {});
      json.object([&] {
        json.field("n", 1);
        json.field("list", std::vector<std::vector<int>>{{1, 2}, {}});
      });
    });
    json.field("last", "x");
  });
  const std::string expected =
      R"({"none":[], "rows":[{}, {"n":1, "list":[[1, 2], []]}], "last":"x"})";
  CHECK(json.take() == expected);
}

TEST_CASE("json: numbers parse back to the same value, or are null", "[unit][base]") {
  CHECK(written(std::numeric_limits<int64_t>::min()) == "-9223372036854775808");
  CHECK(written(std::numeric_limits<uint64_t>::max()) == "18446744073709551615");
  CHECK(written(int32_t{-7}) == "-7");
  CHECK(written(true) == "true");
  for (const double v : {0.1, 1.0 / 3, 1e22, 5e-324, 12345678.9})
    CHECK(std::strtod(written(v).c_str(), nullptr) == v);
  CHECK(written(std::nan("")) == "null");
  CHECK(written(std::numeric_limits<double>::infinity()) == "null");
}

TEST_CASE("json: strings contain only UTF-8", "[unit][base]") {
  CHECK(written("a\"b\\\n\x01") == R"("a\"b\\\n\u0001")");
  for (const char* good : {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\x7f"})
    CHECK(written(good) == std::string("\"") + good + '"');
  const std::string unknown = "\xef\xbf\xbd";  // U+FFFD
  const auto of = [&](int count) {
    std::string out = "\"";
    for (int i = 0; i < count; ++i) out += unknown;
    return out + '"';
  };
  CHECK(written("\xff") == of(1));
  CHECK(written("w\xe4g") == "\"w" + unknown + "g\"");  // Latin-1
  CHECK(written("\xc0\xaf") == of(2));                  // overlong
  CHECK(written("\xed\xa0\x80") == of(3));              // a surrogate
  CHECK(written("\xf4\x90\x80\x80") == of(4));          // too large
  CHECK(written("\xe2\x82") == of(1));                  // cut off
}
