#include "base/text.hpp"

#include <catch2/catch.hpp>

using muonrt::cat;
using muonrt::json_quote;
using muonrt::shorten_names;

TEST_CASE("text: long quotations are cut, with their length, and nothing else", "[unit][base]") {
  const std::string n(300, 'n'), cut = cat(std::string(100, 'n'), "...' (300 bytes)");
  CHECK(shorten_names("param '" + n + "': shape is 'x'") == "param '" + cut + ": shape is 'x'");
  CHECK(shorten_names("'" + n + "' of '" + n + "'") == "'" + cut + " of '" + cut);
  CHECK(shorten_names("a '" + n + "'s' b") == "a '" + std::string(100, 'n') + "...' (302 bytes) b");
  for (const std::string& same :
       {std::string(), "the device's " + n + " and rank's", "'" + n, n, std::string("''"),
        "param '" + std::string(200, 'n') + "': x", shorten_names("param '" + n + "': shape")})
    CHECK(shorten_names(same) == same);
  std::string umlauts = "x";
  for (int i = 0; i < 150; ++i) umlauts += "\xc3\xa4";
  const std::string got = shorten_names("'" + umlauts + "'");
  CHECK(got == "'" + umlauts.substr(0, 99) + "...' (301 bytes)");  // whole characters
}

TEST_CASE("text: a pointer is an address, never true", "[unit][base]") {
  int value = 0;
  const auto text = muonrt::cat(&value);
  CHECK(text.substr(0, 2) == "0x");
  CHECK(std::stoull(text, nullptr, 16) == reinterpret_cast<uintptr_t>(&value));
  CHECK(muonrt::cat(static_cast<void*>(nullptr), " ", true) == "0x0 true");
}

TEST_CASE("text: JSON strings hold UTF-8 alone", "[unit][base]") {
  CHECK(json_quote("a\"b\\\n") == R"("a\"b\\\u000a")");
  for (const char* good : {"\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x98\x80", "\xed\x9f\xbf", "\x7f"})
    CHECK(json_quote(good) == std::string("\"") + good + '"');
  CHECK(json_quote("\xff") == R"("\ufffd")");
  CHECK(json_quote("w\xe4g") == R"("w\ufffdg")");                            // Latin-1
  CHECK(json_quote("\xc0\xaf") == R"("\ufffd\ufffd")");                      // overlong
  CHECK(json_quote("\xed\xa0\x80") == R"("\ufffd\ufffd\ufffd")");            // a surrogate
  CHECK(json_quote("\xf4\x90\x80\x80") == R"("\ufffd\ufffd\ufffd\ufffd")");  // too large
  CHECK(json_quote("\xe2\x82") == R"("\ufffd\ufffd")");                      // cut off
}
