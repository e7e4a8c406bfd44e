#include "base/text.hpp"

#include <catch2/catch.hpp>

using muonrt::cat;
using muonrt::shorten_names;

TEST_CASE("text: shorten_names shortens only long quotations", "[unit][base]") {
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
  CHECK(got == "'" + umlauts.substr(0, 99) + "...' (301 bytes)");  // no character is cut
}

TEST_CASE("text: a pointer is formatted as an address, not as a bool", "[unit][base]") {
  int value = 0;
  const auto text = muonrt::cat(&value);
  CHECK(text.substr(0, 2) == "0x");
  CHECK(std::stoull(text, nullptr, 16) == reinterpret_cast<uintptr_t>(&value));
  CHECK(muonrt::cat(static_cast<void*>(nullptr), " ", true) == "0x0 true");
}
